"""One batch, one strength for each row: a sweep, or requests of several users.

python examples/batches.py --model llava-hf/llava-1.5-7b-hf --image photo.jpg
"""

from __future__ import annotations

from _common import answers, arguments, ask, load_image, settings
from transformers import AutoProcessor

from rudder_hf import RudderForConditionalGeneration


def main() -> None:
    given = arguments(__doc__)
    model = RudderForConditionalGeneration.from_base(given.model, settings(given))
    processor = AutoProcessor.from_pretrained(given.model)

    strengths = [share * model.config.alpha_max for share in (0.0, 0.5, 1.0, 2.0)]
    inputs = ask(processor, [load_image(given)] * len(strengths))
    output = model.generate(
        **inputs, max_new_tokens=given.max_new_tokens, do_sample=False, rudder={"alpha_max": strengths}
    )
    for strength, text in zip(strengths, answers(processor, inputs, output), strict=True):
        print(f"alpha_max {strength:5.1f}: {text}")


if __name__ == "__main__":
    main()
