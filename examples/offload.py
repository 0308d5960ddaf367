"""Steer a model that does not fit into memory: some of its layers wait on disk. Needs accelerate.

python examples/offload.py --model llava-hf/llava-1.5-7b-hf --image photo.jpg

To see: the steered layer itself is on disk, and the answers are the same as in memory.
"""

from __future__ import annotations

import tempfile

from _common import answers, arguments, ask, load_image, settings, show
from transformers import AutoConfig, AutoProcessor

from rudder_hf import RudderForConditionalGeneration


def main() -> None:
    given = arguments(__doc__)
    image, present = load_image(given, place=5)
    config = settings(given)
    # For a real machine: device_map="auto", and max_memory={0: "8GiB", "cpu": "16GiB"} if need be.
    layers = range(AutoConfig.from_pretrained(given.model).get_text_config().num_hidden_layers)
    language = [f"language_model.{part}" for part in ("embed_tokens", "norm", "rotary_emb")]
    device_map = {f"model.{part}": "cpu" for part in ("vision_tower", "multi_modal_projector", *language)}
    device_map |= {"lm_head": "cpu", **{f"model.language_model.layers.{layer}": "cpu" for layer in layers}}
    device_map[f"model.language_model.layers.{layers[config.layer]}"] = "disk"
    with tempfile.TemporaryDirectory() as folder:
        model = RudderForConditionalGeneration.from_base(
            given.model, config, device_map=device_map, offload_folder=folder
        )
        processor = AutoProcessor.from_pretrained(given.model)
        inputs = ask(processor, [image])
        options = {"max_new_tokens": given.max_new_tokens, "do_sample": False}
        print("on disk:", *(part for part, place in model.hf_device_map.items() if place == "disk"))
        show(
            present,
            vanilla=answers(processor, inputs, model.generate(**inputs, **options, rudder=False))[0],
            steered=answers(processor, inputs, model.generate(**inputs, **options))[0],
        )


if __name__ == "__main__":
    main()
