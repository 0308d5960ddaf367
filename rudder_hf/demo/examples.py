"""The annotated examples: their images, and what is in an image if it is one of them."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from PIL import Image

from ..scenes.coco import file_name
from ..scenes.embedded import EXAMPLE_SCALE, draw, examples


def _digest(image: Image.Image) -> str:
    pixels = image.convert("RGB")
    return hashlib.sha256(repr(pixels.size).encode() + pixels.tobytes()).hexdigest()


@cache
def _numbers() -> dict[str, int]:
    """Pixels of an example, at the model's size or the shown one -> its number."""
    return {
        _digest(draw(scene, scale)): number
        for number, scene in enumerate(examples(), start=1)
        for scale in (1, EXAMPLE_SCALE)
    }


def count() -> int:
    """Number of examples."""
    return len(examples())


def example(number: int) -> Image.Image:
    """An example image, counted from 1."""
    return draw(examples()[number - 1], EXAMPLE_SCALE)


def recognise(image: Image.Image) -> int | None:
    """The number of an example by its pixels, wherever it comes from; None for any other image."""
    return _numbers().get(_digest(image))


def present(number: int | None) -> frozenset[str] | None:
    """The COCO categories in an example; None if it is not known what is in the image."""
    return None if number is None else frozenset(examples()[number - 1].names)


def write(folder: Path) -> list[Path]:
    """Write the examples as PNG files into a folder."""
    paths = [folder / file_name(scene, "examples") for scene in examples()]
    for number, path in enumerate(paths, start=1):
        example(number).save(path)
    return paths
