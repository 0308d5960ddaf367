"""Scenes and their images: what is where, and the pixels.

Every scene is a function of one seed. The splits own disjoint ranges of seeds, so no scene can be in two of them.
All drawing uses integer arithmetic and NumPy's frozen `RandomState`, so images repeat bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from . import drawing
from .world import OBJECT_NAMES, PLACES, prior_weight

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
    unseen_glyphs = drawing.glyph_ids(index, True)
    unseen_glyph = held_out and bool(unseen_glyphs) and float(random.random_sample()) < 0.5
    glyphs = unseen_glyphs if unseen_glyph else drawing.glyph_ids(index, False)
    styles = drawing.HELD_OUT_STYLES if held_out and not unseen_glyph else drawing.TRAIN_STYLES
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
    variants = drawing.HELD_OUT_VARIANTS if unseen else drawing.TRAIN_VARIANTS
    variant = variants[int(random.randint(len(variants)))]
    count = 1 + pick(random, counts)
    cells = random.permutation(GRID * GRID)[:count]
    names = _categories(random, place, count, surprise)
    things = tuple(_thing(random, n, int(c), allow_held_out) for n, c in zip(names, cells, strict=True))
    return Scene(seed, place, variant, int(random.randint(-14, 15)), things)


def split_scenes(split: str) -> list[Scene]:
    """Return all scenes of a held-out split; they break the priors, and some sprites and backgrounds are held out."""
    if split not in SPLITS:
        raise ValueError(f"There is no split {split!r} of the scenes. Choose one of {', '.join(SPLITS)}.")
    first, size = SPLITS[split]
    return [make_scene(first + number, surprise=0.5, allow_held_out=True) for number in range(size)]


def train_scene(seed: int, number: int) -> Scene:
    """Return training scene `number` of training run `seed`."""
    return make_scene(TRAINING + 20_000_000 * seed + number, surprise=0.25)


@cache
def _noise(scale: int) -> NDArray[np.int32]:
    return np.random.RandomState(12345).randint(-9, 10, size=(2 * SIDE * scale, 2 * SIDE * scale, 3)).astype(np.int32)


def draw(scene: Scene, scale: int = 1) -> Image.Image:
    """Draw a scene, `SIDE * scale` pixels wide."""
    side = SIDE * scale
    pixels = drawing.background(scene.place, scene.variant, side) + scene.brightness
    for thing in scene.things:
        patch = drawing.sprite(thing.glyph, thing.style, thing.size * scale, thing.flip)
        rows = slice(thing.y * scale, (thing.y + thing.size) * scale)
        columns = slice(thing.x * scale, (thing.x + thing.size) * scale)
        opacity = patch[..., 3:] * thing.alpha // 255
        pixels[rows, columns] = (pixels[rows, columns] * (255 - opacity) + patch[..., :3] * opacity) // 255
    left, top = scene.seed * 7919 % side, scene.seed * 104729 % side
    pixels = pixels + _noise(scale)[top : top + side, left : left + side]
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8), "RGB")
