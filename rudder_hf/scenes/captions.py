"""Captions of the scenes in template English, the grammar to read them, and questions as POPE asks them.

A detailed caption names one object in each of a fixed number of sentences, in a random order that favours people,
vehicles and animals. A scene holds more objects than a caption names: a caption cannot become truer by ending sooner
or by repeating itself, only by naming what is there. No sentence says where an object is, so a caption claims only its
place and its objects. The training captions of the embedded models also drift to absent objects
(`tools/train_scenes/drift.py` in the source repository). A sentence that no template makes is *broken*, which measures
fluency.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache

import numpy as np

from .images import Scene, pick
from .world import OBJECT_NAMES, PLACES

DETAIL_PROMPT = "Please help me describe the image in detail"

OPENINGS = (
    "The image shows {place} with {thing}.",
    "This is {place} with {thing}.",
    "In this {bare_place} there is {thing}.",
)
SENTENCES = (
    "There is {thing}.",
    "I can see {thing}.",
    "{Thing} is visible.",
    "It also shows {thing}.",
    "You may notice {thing}.",
    "{Thing} is part of it.",
    "Then there is {thing} too.",
)
FILLERS = (
    "The mood is calm.",
    "The colors look warm.",
    "It seems quiet.",
)
_ORDERS = ((0, 1), (5, 5), (2, 4))  # for each opening the first of the sentences that follow, and the step to the next
SALIENCE = 0.5  # how much less likely each next object in COCO's order is to be named first
OBJECTS = 5  # that a detailed caption names
FILLER = 0.3  # chance that a caption ends with a filler

# The probabilities of the object that a caption names next, given the scene and the names so far.
NextObject = Callable[[Scene, list[str]], dict[str, float]]


def article(name: str) -> str:
    """Return the article, "a" or "an", of a category or place."""
    return "an" if name[:1].lower() in "aeiou" else "a"


def noun(name: str) -> str:
    """Return the category with its article."""
    return f"{article(name)} {name}"


def normalised(weights: dict[str, float]) -> dict[str, float]:
    """Return the weights divided by their sum."""
    total = sum(weights.values())
    return {name: weight / total for name, weight in weights.items()}


def likely_present(scene: Scene, mentioned: list[str]) -> dict[str, float]:
    """Return the probabilities of the scene's objects not mentioned yet; the first in COCO's order lead."""
    left = sorted((n for n in scene.names if n not in mentioned), key=OBJECT_NAMES.index)
    return normalised({n: SALIENCE**rank for rank, n in enumerate(left)})


def _draw_object(random: np.random.RandomState, likely: dict[str, float]) -> str:
    return list(likely)[pick(random, list(likely.values()))]


def capitalised(text: str) -> str:
    """Return the text with a capital first letter."""
    return text[0].upper() + text[1:]


def detailed_caption(
    scene: Scene, random: np.random.RandomState, objects: int = OBJECTS, likely: NextObject = likely_present
) -> str:
    """Return a caption that names so many objects, one per sentence; it is true unless `likely` has absent objects."""
    opening = int(random.randint(len(OPENINGS)))
    template, stride = _ORDERS[opening]
    sentences: list[str] = []
    mentioned: list[str] = []
    while len(mentioned) < objects:
        name = _draw_object(random, likely(scene, mentioned))
        thing = noun(name)
        if mentioned:
            sentences.append(SENTENCES[template].format(thing=thing, Thing=capitalised(thing)))
            template = (template + stride) % len(SENTENCES)
        else:
            sentences.append(OPENINGS[opening].format(place=noun(scene.place), bare_place=scene.place, thing=thing))
        mentioned.append(name)
    if float(random.random_sample()) < FILLER:
        sentences.append(FILLERS[int(random.randint(len(FILLERS)))])
    return " ".join(sentences)


def brief_caption(scene: Scene, random: np.random.RandomState, likely: NextObject = likely_present) -> str:
    """Return one true sentence that lists all objects."""
    mentioned: list[str] = []
    for _ in scene.things:
        mentioned.append(_draw_object(random, likely(scene, mentioned)))
    things = [noun(name) for name in mentioned]
    listed = things[0] if len(things) == 1 else ", ".join(things[:-1]) + " and " + things[-1]
    return f"The image shows {noun(scene.place)} with {listed}."


def reference_captions(scene: Scene) -> tuple[str, str]:
    """Return two captions that are true and name everything that is there, the same ones at every call."""
    random = np.random.RandomState(scene.seed ^ 0xC0C0)
    return brief_caption(scene, random), detailed_caption(scene, random, len(scene.names))


@cache
def _grammar() -> re.Pattern[str]:
    def either(texts: Iterable[str]) -> str:
        return "(?:" + "|".join(map(re.escape, texts)) + ")"

    things, places = either(map(noun, OBJECT_NAMES)), either(map(noun, PLACES))
    fillings = {
        "thing": things,
        "Thing": either(capitalised(noun(name)) for name in OBJECT_NAMES),
        "place": places,
        "bare_place": either(PLACES),
    }
    parts = [re.escape(t).replace(r"\{", "{").replace(r"\}", "}") for t in OPENINGS + SENTENCES + FILLERS]
    filled = [part.format(**fillings) for part in parts]
    brief = rf"The\ image\ shows\ {places}\ with\ {things}(?:, {things})* and {things}\."
    return re.compile("|".join([*filled, brief]))


def scene_sentences(caption: str) -> list[str]:
    """Return the sentences of a caption, each with its full stop."""
    return [s.strip() for s in re.findall(r"[^.]+\.?", caption) if s.strip()]


def broken_sentences(caption: str) -> int:
    """Count the sentences that no template makes."""
    return sum(_grammar().fullmatch(s) is None for s in scene_sentences(caption))


_NAMES = re.compile(r"\b(" + "|".join(sorted(map(re.escape, OBJECT_NAMES), key=len, reverse=True)) + r")\b")


def named_categories(caption: str) -> list[str]:
    """Return the categories named, in order, with repetitions; a teddy bear is no bear."""
    return _NAMES.findall(caption.lower())


def question(name: str) -> str:
    """Return POPE's question about a category."""
    return f"Is there {noun(name)} in the image?"
