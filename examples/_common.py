"""What the examples share: a model to try them with, an image, and a way to print two answers."""

from __future__ import annotations

import argparse
from functools import cache
from typing import Any

from PIL import Image

from rudder_hf import RudderConfig, get_preset
from rudder_hf.analyze.examples import answer_examples
from rudder_hf.hub.images import read_image
from rudder_hf.metrics.chair import marked
from rudder_hf.scenes import embedded

QUESTION = "Please help me describe the image in detail"


def arguments(description: str | None) -> argparse.Namespace:
    """The options of every example; without a model it is the one that comes with the package."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(embedded.folder()), help="Hub id or folder; default: the embedded one")
    parser.add_argument("--image", help="an image file; default: an example")
    parser.add_argument("--layer", type=int, help="decoder layer to steer; default: that of the model's settings")
    parser.add_argument("--alpha-max", type=float, help="strength; default: that of the model's settings")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    return parser.parse_args()


def settings(given: argparse.Namespace) -> RudderConfig:
    """RUDDER's settings: those given, or those of the embedded model, or the preset of the model."""
    named = {"layer": given.layer, "alpha_max": given.alpha_max}
    named = {name: value for name, value in named.items() if value is not None}
    if given.model == str(embedded.folder()):
        return embedded.config(**named)
    if not named:
        return get_preset(given.model).config()
    return RudderConfig(base_model_name_or_path=given.model, **named)


@cache
def differing() -> list[int]:
    """Numbers of the example scenes to which the embedded model gives another answer with RUDDER, better or worse."""
    found = answer_examples(*embedded.load())
    pairs = enumerate(zip(found.vanilla, found.steered, strict=True), start=1)
    return [number for number, (vanilla, steered) in pairs if vanilla != steered]


def load_image(given: argparse.Namespace, place: int = 0) -> tuple[Image.Image, frozenset[str] | None]:
    """The image to ask about, and the objects in it if they are known: each script takes another example scene."""
    if given.image:
        return read_image(given.image), None
    number = differing()[place % len(differing())]
    present = frozenset(embedded.examples()[number - 1].names)
    print(f"image: example scene {number} ({', '.join(sorted(present))})")
    return embedded.example_image(number), present


def show(present: frozenset[str] | None, **texts: str) -> None:
    """Print answers; (!) marks objects that are not in the image."""
    for name, text in texts.items():
        print(f"{name}: {marked(text.strip(), present)}")


def ask(processor: Any, images: list[Image.Image], question: str = QUESTION) -> dict[str, Any]:
    """Inputs of `generate`: one question about each image."""
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
