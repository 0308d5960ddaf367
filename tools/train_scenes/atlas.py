"""Make the sprite atlas of the scenes from the font of Debian's `fonts-noto-color-emoji`.

python -m tools.train_scenes.atlas --font /usr/share/fonts/truetype/noto/NotoColorEmoji.ttf
"""

from __future__ import annotations

import argparse
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from rudder_hf.scenes.images import ATLAS, ATLAS_COLUMNS, SPRITE_SIDE
from rudder_hf.scenes.world import CATEGORIES

FONT_SIZE = 109  # the only bitmap size in the font
GLYPHS = tuple(glyph for category in CATEGORIES for glyph in category.glyphs + category.held_out_glyphs)


def build_atlas(font_path: Path, out: Path = ATLAS) -> None:
    """Draw every glyph with the font, crop it, fit it into a square and save all of them as one PNG."""
    font = ImageFont.truetype(str(font_path), FONT_SIZE)
    rows = -(-len(GLYPHS) // ATLAS_COLUMNS)
    atlas = Image.new("RGBA", (ATLAS_COLUMNS * SPRITE_SIDE, rows * SPRITE_SIDE))
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
        square = square.resize((SPRITE_SIDE, SPRITE_SIDE), Image.Resampling.LANCZOS)
        atlas.paste(square, ((number % ATLAS_COLUMNS) * SPRITE_SIDE, (number // ATLAS_COLUMNS) * SPRITE_SIDE))
    out.parent.mkdir(parents=True, exist_ok=True)
    atlas.save(out, optimize=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Make the sprite atlas.")
    parser.add_argument("--font", type=Path, default=Path("/usr/share/fonts/truetype/noto/NotoColorEmoji.ttf"))
    parser.add_argument("--out", type=Path, default=ATLAS)
    arguments = parser.parse_args()
    build_atlas(arguments.font, arguments.out)
    print(f"{len(GLYPHS)} glyphs -> {arguments.out}")
