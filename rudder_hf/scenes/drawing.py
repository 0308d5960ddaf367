"""Sprites in several colour styles, and backgrounds of flat shapes in several variants.

The sprites are emoji glyphs in one small PNG atlas, so that every image can be drawn again bit for bit without the
font that the atlas was made from (by `tools/train_scenes/atlas.py` in the source repository).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from .world import CATEGORIES, PLACES

ATLAS = Path(__file__).parent / "data" / "sprites.png"
SPRITE_SIDE = 64  # pixels of one sprite in the atlas
ATLAS_COLUMNS = 16

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


def glyph_ids(name_index: int, held_out: bool) -> tuple[int, ...]:
    """Return the atlas positions of a category's glyphs, those of training or those held out of it."""
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
    """Return one sprite at atlas size in one colour style."""
    left, top = (glyph % ATLAS_COLUMNS) * SPRITE_SIDE, (glyph // ATLAS_COLUMNS) * SPRITE_SIDE
    pixels = np.asarray(_atlas().crop((left, top, left + SPRITE_SIDE, top + SPRITE_SIDE))).astype(np.float64)
    swap, share, gain, grey = STYLES[style]
    colour = pixels[..., :3] * (1.0 - share) + pixels[..., swap] * share
    mean = (colour[..., 0] + colour[..., 1] + colour[..., 2])[..., None] / 3.0
    colour = np.clip((colour * (1.0 - grey) + mean * grey) * gain, 0.0, 255.0)
    return Image.fromarray(np.concatenate([colour, pixels[..., 3:]], axis=-1).astype(np.uint8), "RGBA")


@cache
def sprite(glyph: int, style: int, size: int, flip: bool) -> NDArray[np.int32]:
    """Return a sprite as an integer array (size, size, 4), resized and mirrored."""
    image = _styled(glyph, style).resize(
        (size, size), Image.Resampling.BOX if size < SPRITE_SIDE // 2 else Image.Resampling.BICUBIC
    )
    pixels = np.asarray(image).astype(np.int32)
    return np.ascontiguousarray(pixels[:, ::-1]) if flip else pixels


Colour = tuple[int, int, int]

# Upper and lower colour of each place, and the colour of its shapes.
_PALETTES: dict[str, tuple[Colour, Colour, Colour]] = {
    "street": ((168, 196, 222), (118, 118, 124), (150, 132, 120)),
    "kitchen": ((238, 226, 200), (196, 160, 116), (214, 214, 214)),
    "office": ((214, 220, 228), (150, 150, 158), (180, 192, 206)),
    "living room": ((228, 206, 190), (150, 98, 70), (196, 150, 130)),
    "park": ((176, 216, 244), (110, 176, 84), (64, 132, 62)),
    "beach": ((150, 208, 240), (240, 222, 166), (70, 150, 200)),
    "savanna": ((246, 214, 150), (206, 170, 84), (150, 132, 60)),
    "farm": ((196, 224, 240), (168, 190, 92), (176, 70, 58)),
}
TRAIN_VARIANTS = (0, 1, 2, 3, 4)
HELD_OUT_VARIANTS = (5, 6)


def _shapes(draw: ImageDraw.ImageDraw, place: str, variant: int, side: int, colour: Colour, horizon: int) -> None:
    """Draw the shapes of a place above the horizon, and lines below it."""
    random = np.random.RandomState(1000 * list(PLACES).index(place) + variant)
    count = 3 + variant % 3
    for _ in range(count):
        x, width = int(random.randint(0, side)), int(random.randint(side // 10, side // 4))
        height = int(random.randint(side // 10, max(horizon - side // 20, side // 8)))
        shade: Colour = tuple(int(np.clip(v + random.randint(-18, 19), 0, 255)) for v in colour)  # type: ignore[assignment]
        if place in ("street", "kitchen", "office", "living room", "farm"):
            draw.rectangle((x, horizon - height, x + width, horizon), fill=shade)
        else:
            draw.ellipse((x - width, horizon - height // 2, x + width, horizon + height // 4), fill=shade)
    if place in ("kitchen", "office", "living room", "street"):
        step = side // (4 + variant % 3)
        for y in range(horizon + step // 2, side, step):
            line: Colour = tuple(max(v - 40, 0) for v in colour)  # type: ignore[assignment]
            draw.line((0, y, side, y), fill=line, width=max(side // 120, 1))


@cache
def background(place: str, variant: int, side: int) -> NDArray[np.int32]:
    """Return the background of a place as an integer array (side, side, 3)."""
    random = np.random.RandomState(7919 * list(PLACES).index(place) + variant)
    shift = random.randint(-22, 23, size=3)
    top, bottom, shape = (
        [int(np.clip(v + s, 0, 255)) for v, s in zip(c, shift, strict=True)] for c in _PALETTES[place]
    )
    horizon = int(side * (0.3 + 0.05 * (variant % 5)))
    image = Image.new("RGB", (side, side), tuple(top))
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, horizon, side, side), fill=tuple(bottom))
    _shapes(draw, place, variant, side, tuple(shape), horizon)  # type: ignore[arg-type]
    fade = np.linspace(-10, 10, side).astype(np.int32)[:, None, None]
    pixels: NDArray[np.int32] = np.clip(np.asarray(image).astype(np.int32) + fade, 0, 255)
    return pixels
