"""Scenes and their images: what is where, and the pixels.

Every scene is a function of one seed. The splits own disjoint ranges of seeds, so no scene can be in two of them.
All drawing uses integer arithmetic and NumPy's frozen `RandomState`, so images repeat bit for bit. Sprites are emoji
glyphs in one small PNG atlas, so that no font is needed to draw an image again (`tools/train_scenes/atlas.py` in the
source repository makes the atlas).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from .world import CATEGORIES, OBJECT_NAMES, PARTNER_FACTOR, PARTNERS, PLACES

SIDE = 120  # pixels
GRID = 5  # objects sit in a grid of cells, one cell per patch of the vision tower
CELL = SIDE // GRID

# Split -> first seed and size. Settings are chosen on `calibration` alone and checked on the evaluation splits; the
# test bed is measured on `evaluation4`. `examples` are shown to people: nothing is chosen or checked on them.
SPLITS: dict[str, tuple[int, int]] = {
    "calibration": (1_000_000, 300),
    "evaluation": (2_000_000, 500),
    "evaluation2": (3_000_000, 500),
    "evaluation3": (5_000_000, 500),
    "evaluation4": (6_000_000, 1000),
    "examples": (4_000_000, 48),
}
TRAINING = 10_000_000  # first seed of the training scenes, which have no end
HELD_OUT_SHARE = 0.2  # share of sprites (and of backgrounds) of these splits that training never shows
OBJECT_COUNTS = (0, 0, 0, 0, 1, 1, 1, 1, 1)  # weights of having 1, 2, 3, ... objects: more than a caption names

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


@dataclass(frozen=True)
class Thing:
    """One object of a scene: category, glyph, style, and its square box in pixels of an image `SIDE` wide."""

    name: str
    glyph: int
    style: int
    cell: int
    x: int
    y: int
    size: int
    flip: bool
    alpha: int  # 0 to 255


@dataclass(frozen=True)
class Scene:
    """A place with things in it, made from one seed."""

    seed: int
    place: str
    variant: int
    brightness: int
    things: tuple[Thing, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the categories of the things, in order."""
        return tuple(thing.name for thing in self.things)


def pick(random: np.random.RandomState, weights: Sequence[float]) -> int:
    """Draw an index in proportion to `weights`."""
    threshold = float(random.random_sample()) * sum(weights)
    for index, weight in enumerate(weights):
        threshold -= weight
        if threshold < 0:
            return index
    return len(weights) - 1


def prior_weight(place: str, name: str, present: frozenset[str] | set[str]) -> float:
    """Return how likely `name` is in `place` beside `present`: Zipf popularity, times five for a partner."""
    objects = PLACES[place]
    weight = 1.0 / (objects.index(name) + 1.5) if name in objects else 0.01
    return weight * (PARTNER_FACTOR if PARTNERS[name] & present else 1.0)


def _categories(random: np.random.RandomState, place: str, count: int, surprise: float) -> list[str]:
    """Draw distinct categories: each from the place's priors, or with probability `surprise` from all."""
    chosen: list[str] = []
    while len(chosen) < count:
        if float(random.random_sample()) < surprise:
            name = OBJECT_NAMES[int(random.randint(len(OBJECT_NAMES)))]
        else:
            objects = PLACES[place]
            name = objects[pick(random, [prior_weight(place, o, set(chosen)) for o in objects])]
        if name not in chosen:
            chosen.append(name)
    return chosen


def _thing(random: np.random.RandomState, name: str, cell: int, allow_held_out: bool) -> Thing:
    """Choose how one object looks and where in its cell it stands."""
    index = OBJECT_NAMES.index(name)
    held_out = allow_held_out and float(random.random_sample()) < HELD_OUT_SHARE
    unseen_glyphs = glyph_ids(index, True)
    unseen_glyph = held_out and bool(unseen_glyphs) and float(random.random_sample()) < 0.5
    glyphs = unseen_glyphs if unseen_glyph else glyph_ids(index, False)
    styles = HELD_OUT_STYLES if held_out and not unseen_glyph else TRAIN_STYLES
    size = int(random.randint(19, 25))
    x = (cell % GRID) * CELL + (CELL - size) // 2 + int(random.randint(-2, 3))
    y = (cell // GRID) * CELL + (CELL - size) // 2 + int(random.randint(-2, 3))
    return Thing(
        name=name,
        glyph=glyphs[int(random.randint(len(glyphs)))],
        style=styles[int(random.randint(len(styles)))],
        cell=cell,
        x=min(max(x, 0), SIDE - size),
        y=min(max(y, 0), SIDE - size),
        size=size,
        flip=bool(random.randint(2)),
        alpha=int(random.randint(190, 256)),
    )


def make_scene(
    seed: int, surprise: float, allow_held_out: bool = False, counts: tuple[float, ...] = OBJECT_COUNTS
) -> Scene:
    """Return the scene of a seed. `counts` are the weights of having 1, 2, 3, ... objects."""
    random = np.random.RandomState(seed)
    place = list(PLACES)[int(random.randint(len(PLACES)))]
    unseen = allow_held_out and float(random.random_sample()) < HELD_OUT_SHARE
    variants = HELD_OUT_VARIANTS if unseen else TRAIN_VARIANTS
    variant = variants[int(random.randint(len(variants)))]
    count = 1 + pick(random, counts)
    cells = random.permutation(GRID * GRID)[:count]
    names = _categories(random, place, count, surprise)
    things = tuple(_thing(random, n, int(c), allow_held_out) for n, c in zip(names, cells, strict=True))
    return Scene(seed, place, variant, int(random.randint(-14, 15)), things)


def file_name(scene: Scene, split: str) -> str:
    """Return the name of a scene's image, in COCO's form."""
    return f"scenes_{split}_{scene.seed:012d}.png"


def split_scenes(split: str) -> list[Scene]:
    """Return all scenes of a held-out split; they break the priors, and some sprites and backgrounds are held out."""
    if split not in SPLITS:
        raise ValueError(f"There is no split {split!r} of the scenes. Choose one of {', '.join(SPLITS)}.")
    first, size = SPLITS[split]
    return [make_scene(first + number, surprise=0.5, allow_held_out=True) for number in range(size)]


def train_scene(seed: int, number: int) -> Scene:
    """Return training scene `number` of training run `seed`."""
    return make_scene(TRAINING + 20_000_000 * seed + number, surprise=0.25)


# Pixels


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


@cache
def _noise(scale: int) -> NDArray[np.int32]:
    return np.random.RandomState(12345).randint(-9, 10, size=(2 * SIDE * scale, 2 * SIDE * scale, 3)).astype(np.int32)


def draw(scene: Scene, scale: int = 1) -> Image.Image:
    """Draw a scene, `SIDE * scale` pixels wide."""
    side = SIDE * scale
    pixels = background(scene.place, scene.variant, side) + scene.brightness
    for thing in scene.things:
        patch = sprite(thing.glyph, thing.style, thing.size * scale, thing.flip)
        rows = slice(thing.y * scale, (thing.y + thing.size) * scale)
        columns = slice(thing.x * scale, (thing.x + thing.size) * scale)
        opacity = patch[..., 3:] * thing.alpha // 255
        pixels[rows, columns] = (pixels[rows, columns] * (255 - opacity) + patch[..., :3] * opacity) // 255
    left, top = scene.seed * 7919 % side, scene.seed * 104729 % side
    pixels = pixels + _noise(scale)[top : top + side, left : left + side]
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8), "RGB")
