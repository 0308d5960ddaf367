"""Steer a model with the wrapper, and compare with the original model.

python examples/wrapper.py --model llava-hf/llava-1.5-7b-hf --image photo.jpg

To see: `rudder=False` is the original model, bit for bit. The gate opens and closes from token to token; 0.00 stands
for the first token, which comes from the prefill and is not steered.
"""

from __future__ import annotations

from _common import answers, arguments, ask, load_image, settings, show
from transformers import AutoProcessor

from rudder_hf import RudderForConditionalGeneration


def main() -> None:
    given = arguments(__doc__)
    image, present = load_image(given)
    model = RudderForConditionalGeneration.from_base(given.model, settings(given))
    processor = AutoProcessor.from_pretrained(given.model)
    inputs = ask(processor, [image])
    options = {"max_new_tokens": given.max_new_tokens, "do_sample": False}

    vanilla = model.generate(**inputs, **options, rudder=False)
    steered = model.generate(**inputs, **options, return_dict_in_generate=True, output_rudder=True)
    show(
        present,
        vanilla=answers(processor, inputs, vanilla)[0],
        steered=answers(processor, inputs, steered.sequences)[0],
    )
    print("gate:", " ".join(f"{gate:.2f}" for gate in steered.rudder.gate[0].tolist()))


if __name__ == "__main__":
    main()
