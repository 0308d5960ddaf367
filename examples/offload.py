"""Steer a model that does not fit into memory: some of its layers wait on disk. Needs accelerate.

python examples/offload.py --model llava-hf/llava-1.5-7b-hf --image photo.jpg
"""

from __future__ import annotations

import tempfile

from _common import answers, arguments, ask, load_image, settings
from transformers import AutoProcessor

from rudder_hf import RudderForConditionalGeneration


def main() -> None:
    given = arguments(__doc__)
    config = settings(given)
    # For a real machine: device_map="auto", and max_memory={0: "8GiB", "cpu": "16GiB"} if need be.
    device_map = {"model": "cpu", "lm_head": "disk"}
    with tempfile.TemporaryDirectory() as folder:
        model = RudderForConditionalGeneration.from_base(
            given.model, config, device_map=device_map, offload_folder=folder
        )
        processor = AutoProcessor.from_pretrained(given.model)
        inputs = ask(processor, [load_image(given)])
        output = model.generate(**inputs, max_new_tokens=given.max_new_tokens, do_sample=False)
        print("placed: ", model.hf_device_map)
        print("steered:", answers(processor, inputs, output)[0])


if __name__ == "__main__":
    main()
