"""What the examples share: a model to try them with, and a picture."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

from rudder_hf.benchmark.prompts import synthetic_picture
from rudder_hf.cli.toy import ALPHA_MAX, LAYER, NOTE, toy_model, toy_processor

QUESTION = "Please help me describe the image in detail"


def arguments(description: str | None) -> argparse.Namespace:
    """The options of every example."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="Hub id or folder of a vision-language model; default: a tiny random one")
    parser.add_argument("--picture", help="a picture; default: one made on the spot")
    parser.add_argument("--layer", type=int, help="decoder layer to steer; default: that of the model's preset")
    parser.add_argument("--alpha-max", type=float, help="strength; default: that of the model's preset")
    parser.add_argument("--max-new-tokens", type=int, default=16)
    given = parser.parse_args()
    if given.model is None:
        print(NOTE)
        given.model = tiny_model_folder()
        given.layer = LAYER if given.layer is None else given.layer
        given.alpha_max = ALPHA_MAX if given.alpha_max is None else given.alpha_max
    return given


def tiny_model_folder() -> str:
    """A tiny LLaVA with random weights, saved as a model with its processor."""
    folder = Path(tempfile.mkdtemp(prefix="tiny-llava-"))
    toy_model().save_pretrained(folder)
    toy_processor().save_pretrained(folder)
    return str(folder)


def settings(given: argparse.Namespace) -> Any:
    """RUDDER's settings: those given, or None for the preset of the model."""
    from rudder_hf import RudderConfig, get_preset

    if given.layer is None and given.alpha_max is None:
        return get_preset(given.model).config()
    named = {"layer": given.layer, "alpha_max": given.alpha_max}
    return RudderConfig(
        base_model_name_or_path=given.model, **{name: value for name, value in named.items() if value is not None}
    )


def picture(given: argparse.Namespace) -> Image.Image:
    """The picture to ask about."""
    return Image.open(given.picture).convert("RGB") if given.picture else synthetic_picture()


def ask(processor: Any, images: list[Image.Image], question: str = QUESTION) -> dict[str, Any]:
    """Inputs of `generate`: one question about each picture."""
    chats = [
        [{"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": question}]}]
        for image in images
    ]
    encoded = processor.apply_chat_template(
        chats,
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
        processor_kwargs={"padding": True, "padding_side": "left"},
    )
    return dict(encoded)


def answers(processor: Any, inputs: dict[str, Any], output: Any) -> list[str]:
    """The new text of each row."""
    new = output[:, inputs["input_ids"].shape[1] :]
    return [text.strip() for text in processor.batch_decode(new, skip_special_tokens=True)]
