"""The annotated examples: their pictures, and what is in a picture if it is one of them."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from PIL import Image

from ..scenes.coco import file_name
from ..scenes.embedded import EXAMPLE_SCALE, draw, examples


def _digest(picture: Image.Image) -> str:
    pixels = picture.convert("RGB")
    return hashlib.sha256(repr(pixels.size).encode() + pixels.tobytes()).hexdigest()


@cache
def _known() -> dict[str, int]:
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
    """An example picture, counted from 1."""
    return draw(examples()[number - 1], EXAMPLE_SCALE)


def recognise(picture: Image.Image) -> int | None:
    """The number of an example by its pixels, however it came in; None for any other picture."""
    return _known().get(_digest(picture))


def present(number: int | None) -> frozenset[str] | None:
    """The COCO categories in an example; None if it is not known what is in the picture."""
    return None if number is None else frozenset(examples()[number - 1].names)


def write(folder: Path) -> list[Path]:
    """Write the examples as PNG files into a folder."""
    paths = []
    for number, scene in enumerate(examples(), start=1):
        paths.append(folder / file_name(scene, "examples"))
        example(number).save(paths[-1])
    return paths
