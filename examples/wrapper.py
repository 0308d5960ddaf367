"""Steer a model with the wrapper, and compare with the model as it is.

python examples/wrapper.py --model llava-hf/llava-1.5-7b-hf --image photo.jpg
"""

from __future__ import annotations

from _common import answers, arguments, ask, load_image, settings
from transformers import AutoProcessor

from rudder_hf import RudderForConditionalGeneration


def main() -> None:
    given = arguments(__doc__)
    model = RudderForConditionalGeneration.from_base(given.model, settings(given))
    processor = AutoProcessor.from_pretrained(given.model)
    inputs = ask(processor, [load_image(given)])

    vanilla = model.generate(**inputs, max_new_tokens=given.max_new_tokens, do_sample=False, rudder=False)
    steered = model.generate(
        **inputs,
        max_new_tokens=given.max_new_tokens,
        do_sample=False,
        return_dict_in_generate=True,
        output_rudder=True,
    )
    print("vanilla:", answers(processor, inputs, vanilla)[0])
    print("steered:", answers(processor, inputs, steered.sequences)[0])
    print("gate:   ", " ".join(f"{gate:.2f}" for gate in steered.rudder.gate[0].tolist()))


if __name__ == "__main__":
    main()
