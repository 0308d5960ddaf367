"""Tiny models and settings for them on disk, as the tests of sharing, pipelines and examples need them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
from PIL import Image

from rudder_hf import RudderConfig, write_repo
from tests.support.toy import LAYER, toy_model, toy_processor


def make_base(folder: Path, seed: int = 1) -> Path:
    """A tiny LLaVA with its processor."""
    toy_model(seed=seed).save_pretrained(folder)
    toy_processor().save_pretrained(folder)
    return folder


def make_settings(folder: Path, base: Path | str, **changes: Any) -> Path:
    """Settings that visibly steer the tiny LLaVA."""
    given = {"layer": LAYER, "alpha_max": 40.0, "base_model_name_or_path": str(base), **changes}
    write_repo(RudderConfig(**given), folder)
    return folder


def picture(hue: int = 0, size: tuple[int, int] = (64, 48)) -> Image.Image:
    """A picture with a gradient, different for each hue."""
    y, x = numpy.mgrid[: size[1], : size[0]]
    pixels = numpy.stack([7 * x + 40 * hue, 5 * y + 90 * hue, x * y], axis=-1) % 256
    return Image.fromarray(pixels.astype(numpy.uint8))


def chat(image: Any, text: str = "what is this") -> list[dict[str, Any]]:
    """One question about one picture."""
    return [{"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": text}]}]


def inputs_for(processor: Any, images: list[Any], text: str = "what is this") -> dict[str, Any]:
    """Inputs of `generate`, made by the processor's own chat template."""
    encoded = processor.apply_chat_template(
        [chat(image, text) for image in images],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
        processor_kwargs={"padding": True, "padding_side": "left"},
    )
    return dict(encoded)
