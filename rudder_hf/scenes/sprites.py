"""Sprites: one small PNG atlas of the emoji glyphs, and its colour styles.

The atlas is made once by a maintainer from Debian's `fonts-noto-color-emoji`:

    python -m rudder_hf.scenes.sprites --font /usr/share/fonts/truetype/noto/NotoColorEmoji.ttf

It ships with the package, so every picture can be drawn again bit for bit without the font.
"""

from __future__ import annotations

import argparse
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from .world import CATEGORIES

ATLAS = Path(__file__).parent / "data" / "sprites.png"
SIDE = 64  # pixels of one sprite in the atlas
COLUMNS = 16
FONT_SIZE = 109  # the only bitmap size in the font

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


def build_atlas(font_path: Path, out: Path = ATLAS) -> None:
    """Draw every glyph with the font, crop it, fit it into a square and save all of them as one PNG."""
    font = ImageFont.truetype(str(font_path), FONT_SIZE)
    rows = -(-len(GLYPHS) // COLUMNS)
    atlas = Image.new("RGBA", (COLUMNS * SIDE, rows * SIDE))
    for number, glyph in enumerate(GLYPHS):
        canvas = Image.new("RGBA", (160, 160))
        ImageDraw.Draw(canvas).text((10, 10), glyph, font=font, embedded_color=True)
        box = canvas.getbbox()
        if box is None:
            raise ValueError(f"the font {font_path} has no glyph for U+{ord(glyph):X}; use fonts-noto-color-emoji")
        sprite = canvas.crop(box)
        longest = max(sprite.size)
        square = Image.new("RGBA", (longest, longest))
        square.paste(sprite, ((longest - sprite.width) // 2, (longest - sprite.height) // 2))
        square = square.resize((SIDE, SIDE), Image.Resampling.LANCZOS)
        atlas.paste(square, ((number % COLUMNS) * SIDE, (number // COLUMNS) * SIDE))
    out.parent.mkdir(parents=True, exist_ok=True)
    atlas.save(out, optimize=True)


@lru_cache(maxsize=1)
def _atlas() -> Image.Image:
    if not ATLAS.is_file():
        raise FileNotFoundError(f"{ATLAS} is missing; make it with `python -m rudder_hf.scenes.sprites --font FONT`")
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


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Make the sprite atlas (a maintainer's step).")
    parser.add_argument("--font", type=Path, default=Path("/usr/share/fonts/truetype/noto/NotoColorEmoji.ttf"))
    parser.add_argument("--out", type=Path, default=ATLAS)
    arguments = parser.parse_args()
    build_atlas(arguments.font, arguments.out)
    print(f"{len(GLYPHS)} glyphs -> {arguments.out}")
