"""Sprites: one small PNG atlas of the emoji glyphs, and its colour styles.

The atlas ships with the package, so every image can be drawn again bit for bit without the font that it was made from
(by `tools/train_scenes/atlas.py` in the source repository).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .world import CATEGORIES

ATLAS = Path(__file__).parent / "data" / "sprites.png"
SIDE = 64  # pixels of one sprite in the atlas
COLUMNS = 16

# A style mixes the colour channels and then brightens: (swap of red/green/blue, share of the swap, gain, grey share).
# The last two are held out of training.
STYLES: tuple[tuple[tuple[int, int, int], float, float, float], ...] = (
    ((0, 1, 2), 0.0, 1.0, 0.0),
    ((0, 1, 2), 0.0, 0.8, 0.0),
    ((0, 1, 2), 0.0, 1.15, 0.25),
    ((1, 2, 0), 0.2, 1.0, 0.0),
    ((2, 0, 1), 0.2, 0.95, 0.1),
    ((1, 0, 2), 0.3, 1.0, 0.0),
    ((2, 1, 0), 0.3, 1.0, 0.0),
    ((0, 1, 2), 0.0, 0.9, 0.6),
)
TRAIN_STYLES = (0, 1, 2, 3, 4, 5)
HELD_OUT_STYLES = (6, 7)

GLYPHS: tuple[str, ...] = tuple(g for c in CATEGORIES for g in c.glyphs + c.held_out_glyphs)


def glyph_ids(name_index: int, held_out: bool) -> tuple[int, ...]:
    """Atlas positions of a category's glyphs, those of training or those held out of it."""
    category = CATEGORIES[name_index]
    first = sum(len(c.glyphs + c.held_out_glyphs) for c in CATEGORIES[:name_index])
    middle = first + len(category.glyphs)
    return tuple(range(middle, middle + len(category.held_out_glyphs)) if held_out else range(first, middle))


@cache
def _atlas() -> Image.Image:
    with Image.open(ATLAS) as image:
        return image.convert("RGBA")


@cache
def _styled(glyph: int, style: int) -> Image.Image:
    """One sprite at atlas size in one colour style."""
    left, top = (glyph % COLUMNS) * SIDE, (glyph // COLUMNS) * SIDE
    pixels = np.asarray(_atlas().crop((left, top, left + SIDE, top + SIDE))).astype(np.float64)
    swap, share, gain, grey = STYLES[style]
    colour = pixels[..., :3] * (1.0 - share) + pixels[..., swap] * share
    mean = (colour[..., 0] + colour[..., 1] + colour[..., 2])[..., None] / 3.0
    colour = np.clip((colour * (1.0 - grey) + mean * grey) * gain, 0.0, 255.0)
    return Image.fromarray(np.concatenate([colour, pixels[..., 3:]], axis=-1).astype(np.uint8), "RGBA")


@cache
def sprite(glyph: int, style: int, size: int, flip: bool) -> NDArray[np.int32]:
    """A sprite as an integer array (size, size, 4), resized and mirrored as asked."""
    image = _styled(glyph, style).resize(
        (size, size), Image.Resampling.BOX if size < SIDE // 2 else Image.Resampling.BICUBIC
    )
    pixels = np.asarray(image).astype(np.int32)
    return np.ascontiguousarray(pixels[:, ::-1]) if flip else pixels
