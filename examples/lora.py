"""Steer a base with a LoRA adapter. Needs `pip install 'rudder-hf[peft]'`.

python examples/lora.py --model llava-hf/llava-1.5-7b-hf --image photo.jpg
"""

from __future__ import annotations

from _common import answers, arguments, ask, load_image, settings
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForImageTextToText, AutoProcessor

from rudder_hf import RudderForConditionalGeneration


def main() -> None:
    given = arguments(__doc__)
    base = AutoModelForImageTextToText.from_pretrained(given.model)
    # In place of an adapter of yours: PeftModel.from_pretrained(base, "your-name/your-adapter").
    lora = LoraConfig(r=4, target_modules=r".*language_model.*\.(q_proj|v_proj)", init_lora_weights=False)
    adapted = get_peft_model(base, lora).eval()

    model = RudderForConditionalGeneration.from_base(adapted, settings(given))
    processor = AutoProcessor.from_pretrained(given.model)
    inputs = ask(processor, [load_image(given)])
    options = {"max_new_tokens": given.max_new_tokens, "do_sample": False}
    print("adapter, steered:  ", answers(processor, inputs, model.generate(**inputs, **options))[0])
    print("adapter, vanilla:  ", answers(processor, inputs, model.generate(**inputs, **options, rudder=False))[0])
    with adapted.disable_adapter():
        print("no adapter, steered:", answers(processor, inputs, model.generate(**inputs, **options))[0])


if __name__ == "__main__":
    main()
