"""Steer a base with a LoRA adapter. Needs `pip install 'rudder-hf[peft]'`.

python examples/lora.py --model llava-hf/llava-1.5-7b-hf --image photo.jpg

To see: the adapter and RUDDER are switched on and off independently of each other. The adapter of this example is
random and weak: it stands for one of yours.
"""

from __future__ import annotations

import torch
from _common import answers, arguments, ask, load_image, settings, show
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForImageTextToText, AutoProcessor

from rudder_hf import RudderForConditionalGeneration


def main() -> None:
    given = arguments(__doc__)
    image, present = load_image(given, place=4)
    base = AutoModelForImageTextToText.from_pretrained(given.model)
    # In place of an adapter of yours: PeftModel.from_pretrained(base, "your-name/your-adapter").
    torch.manual_seed(0)
    lora = LoraConfig(
        r=4, lora_alpha=8, target_modules=r".*language_model.*\.(q_proj|v_proj)", init_lora_weights=False
    )
    adapted = get_peft_model(base, lora).eval()

    model = RudderForConditionalGeneration.from_base(adapted, settings(given))
    processor = AutoProcessor.from_pretrained(given.model)
    inputs = ask(processor, [image])

    def say(**options: object) -> str:
        output = model.generate(**inputs, max_new_tokens=given.max_new_tokens, do_sample=False, **options)
        return answers(processor, inputs, output)[0]

    show(present, adapter_vanilla=say(rudder=False), adapter_steered=say())
    with adapted.disable_adapter():
        show(present, vanilla=say(rudder=False), steered=say())


if __name__ == "__main__":
    main()
