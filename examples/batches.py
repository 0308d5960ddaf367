"""One batch with a strength for each row: a sweep, or requests of several users.

python examples/batches.py --model llava-hf/llava-1.5-7b-hf --image photo.jpg

To see: with strength 0 the row is vanilla's, and the answers move away from it as the strength grows. Twice the
calibrated strength is too much: answers name less or repeat themselves.
"""

from __future__ import annotations

from _common import answers, arguments, ask, load_image, settings, show
from transformers import AutoProcessor

from rudder_hf import RudderForConditionalGeneration

SHARES = {"vanilla": 0.0, "half": 0.5, "steered": 1.0, "double": 2.0}


def main() -> None:
    given = arguments(__doc__)
    image, present = load_image(given, place=1)
    model = RudderForConditionalGeneration.from_base(given.model, settings(given))
    processor = AutoProcessor.from_pretrained(given.model)

    strengths = [share * model.config.alpha_max for share in SHARES.values()]
    inputs = ask(processor, [image] * len(strengths))
    output = model.generate(
        **inputs, max_new_tokens=given.max_new_tokens, do_sample=False, rudder={"alpha_max": strengths}
    )
    print("strengths:", ", ".join(f"{strength:.1f}" for strength in strengths))
    show(present, **dict(zip(SHARES, answers(processor, inputs, output), strict=True)))


if __name__ == "__main__":
    main()
