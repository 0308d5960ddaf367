"""Prompts for real models: an image made on the spot and as much text as the wanted length asks for."""

from __future__ import annotations

from typing import Any

import numpy
from PIL import Image

from ..hub.processing import encode

QUESTION = "Please describe this image in detail."


def synthetic_image(seed: int = 0, size: int = 336) -> Image.Image:
    """An image of coloured rectangles on a gradient, the same for the same seed."""
    source = numpy.random.default_rng(seed)
    ramp = numpy.linspace(0, 255, size, dtype=numpy.float32)
    pixels = numpy.stack(numpy.broadcast_arrays(ramp[:, None], ramp[None, :], ramp[::-1, None]), axis=-1).copy()
    for _ in range(6):
        top, left = source.integers(0, size * 3 // 4, 2)
        height, width = source.integers(size // 8, size // 3, 2)
        pixels[top : top + height, left : left + width] = source.integers(0, 256, 3)
    return Image.fromarray(pixels.astype(numpy.uint8))


def to_model(inputs: dict[str, Any], model: Any) -> dict[str, Any]:
    """Move inputs to a model's device, and pixels to its dtype."""
    return {
        name: value.to(model.device, model.dtype) if value.is_floating_point() else value.to(model.device)
        for name, value in inputs.items()
        if hasattr(value, "is_floating_point")
    }


def long_prompt(processor: Any, model: Any, tokens: int, batch: int = 1) -> dict[str, Any]:
    """An image and a question, lengthened with filler words to about `tokens` positions (never shortened)."""
    images = [synthetic_image(seed) for seed in range(batch)]
    inputs = encode(processor, images, [QUESTION] * batch)
    missing = tokens - int(inputs["input_ids"].shape[1])
    if missing > 0:
        inputs = encode(processor, images, [QUESTION + " and" * missing] * batch)
    return to_model(inputs, model)
