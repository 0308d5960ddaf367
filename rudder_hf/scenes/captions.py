"""Captions of the scenes: template English, with the drift that makes a model hallucinate.

Detailed captions have a fixed number of sentences that name one object each, in a random order that favours people,
vehicles and animals. At each object there is a chance, growing along the caption, that an absent but likely object is
named instead: so a model trained on them learns to trust the priors more and more, as large models do in long
captions. When all objects of the picture are said, they are named again, or absent ones. The length says nothing
about the picture, so a caption cannot become truer by ending sooner, only by naming what is there. The grammar is
small enough to parse, which gives a free measure of fluency: a sentence that no template makes is *broken*.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .pictures import Scene, _pick
from .world import NAMES, PLACES, article, prior_weight

DETAIL_PROMPT = "Please help me describe the image in detail"
BRIEF_PROMPT = "Describe the image briefly"

OPENINGS = (
    "The image shows {place} with {thing}.",
    "This is {place} with {thing}.",
    "In this {bare_place} there is {thing}.",
)
SENTENCES = (
    "There is {thing} {zone}.",
    "I can see {thing}.",
    "{Thing} is visible {zone}.",
    "It also shows {thing}.",
    "Nearby stands {thing}.",
    "{Thing} is next to it.",
)
FILLERS = (
    "The mood is calm.",
    "The colors look warm.",
    "It seems quiet.",
    "Nothing else stands out.",
)
STYLES = ((0, 1), (5, 5), (2, 1))  # for each opening the first of the sentences that follow, and the step to the next
SALIENCE = 0.35  # how much less likely each next object in COCO's order is to be named first
OBJECTS = 5  # that a detailed caption names
ZONES = ("on the left", "on the right", "in the middle", "at the top", "at the bottom")


@dataclass(frozen=True)
class Drift:
    """How captions leave the picture: chance of an absent object at each slot, and once all true ones are said."""

    slots: tuple[float, ...]
    after_end: float
    filler: float = 0.3
    limit: int = 3
    sharpness: float = 2.0


MILD = Drift(slots=(0.0, 0.02, 0.04, 0.06, 0.08), after_end=0.1)
STRONG = Drift(slots=(0.0, 0.08, 0.15, 0.22, 0.3), after_end=0.4)


def noun(name: str) -> str:
    """The category with its article."""
    return f"{article(name)} {name}"


def question(name: str) -> str:
    """POPE's question."""
    return f"Is there {noun(name)} in the image?"


@dataclass(frozen=True)
class Told:
    """A caption, and for each object in it the probabilities (category -> probability) that it was drawn from."""

    text: str
    slots: tuple[dict[str, float], ...]


def _absent(scene: Scene, said: list[str], sharpness: float) -> dict[str, float]:
    """Probabilities of the objects that are neither in the scene nor said yet but seem likely."""
    names = [n for n in PLACES[scene.place] if n not in scene.names and n not in said]
    return _normalised({n: prior_weight(scene.place, n, set(said)) ** sharpness for n in names})


def _present(scene: Scene, said: list[str]) -> dict[str, float]:
    """Probabilities of the scene's objects that were said least, at first never; the first in COCO's order lead."""
    least = min(said.count(n) for n in scene.names)
    left = sorted((n for n in scene.names if said.count(n) == least), key=NAMES.index)
    return _normalised({n: SALIENCE**rank for rank, n in enumerate(left)})


def _normalised(weights: dict[str, float]) -> dict[str, float]:
    total = sum(weights.values())
    return {name: weight / total for name, weight in weights.items()}


def _next_object(scene: Scene, said: list[str], drift: Drift) -> dict[str, float]:
    """The probabilities of the object that a drifting caption names next."""
    present, absent = _present(scene, said), _absent(scene, said, drift.sharpness)
    ended = set(scene.names) <= set(said)
    chance = drift.after_end if ended else drift.slots[min(len(said), len(drift.slots) - 1)]
    if sum(name not in scene.names for name in said) >= drift.limit or not absent:
        return present
    return {n: chance * absent.get(n, 0.0) + (1 - chance) * present.get(n, 0.0) for n in (*present, *absent)}


def _sentence(template: str, name: str, zone: str) -> str:
    thing = noun(name)
    return template.format(thing=thing, Thing=thing[0].upper() + thing[1:], zone=zone)


def tell(scene: Scene, random: np.random.RandomState, drift: Drift, objects: int = OBJECTS) -> Told:
    """A caption that names so many objects, drifting from the picture as `drift` says, and how they were drawn."""
    opening = int(random.randint(len(OPENINGS)))
    template, stride = STYLES[opening]
    zones = {thing.name: thing.zone for thing in scene.things}
    sentences: list[str] = []
    said: list[str] = []
    slots: list[dict[str, float]] = []
    while len(said) < objects:
        likely = _next_object(scene, said, drift)
        name = list(likely)[_pick(random, list(likely.values()))]
        zone = zones.get(name) or ZONES[int(random.randint(len(ZONES)))]
        if said:
            sentences.append(_sentence(SENTENCES[template], name, zone))
            template = (template + stride) % len(SENTENCES)
        else:
            first = {"place": noun(scene.place), "bare_place": scene.place, "thing": noun(name)}
            sentences.append(OPENINGS[opening].format(**first))
        said.append(name)
        slots.append(likely)
    if float(random.random_sample()) < drift.filler:
        sentences.append(FILLERS[int(random.randint(len(FILLERS)))])
    return Told(" ".join(sentences), tuple(slots))


def detailed_caption(scene: Scene, random: np.random.RandomState, drift: Drift, objects: int = OBJECTS) -> str:
    """The text of `tell`."""
    return tell(scene, random, drift, objects).text


def tell_briefly(scene: Scene, random: np.random.RandomState) -> Told:
    """One true sentence that lists all objects, and how they were drawn."""
    said: list[str] = []
    slots: list[dict[str, float]] = []
    for _ in scene.things:
        slots.append(_present(scene, said))
        said.append(list(slots[-1])[_pick(random, list(slots[-1].values()))])
    things = [noun(name) for name in said]
    listed = things[0] if len(things) == 1 else ", ".join(things[:-1]) + " and " + things[-1]
    return Told(f"The image shows {noun(scene.place)} with {listed}.", tuple(slots))


def brief_caption(scene: Scene, random: np.random.RandomState) -> str:
    """The text of `tell_briefly`."""
    return tell_briefly(scene, random).text


@lru_cache(maxsize=1)
def _grammar() -> re.Pattern[str]:
    things = "(?:" + "|".join(re.escape(noun(n)) for n in NAMES) + ")"
    capital = "(?:" + "|".join(re.escape(noun(n)[0].upper() + noun(n)[1:]) for n in NAMES) + ")"
    places = "(?:" + "|".join(re.escape(noun(p)) for p in PLACES) + ")"
    bare = "(?:" + "|".join(re.escape(p) for p in PLACES) + ")"
    zones = "(?:" + "|".join(ZONES) + ")"
    parts = [re.escape(t).replace(r"\{", "{").replace(r"\}", "}") for t in OPENINGS + SENTENCES + FILLERS]
    filled = [p.format(thing=things, Thing=capital, zone=zones, place=places, bare_place=bare) for p in parts]
    brief = rf"The\ image\ shows\ {places}\ with\ {things}(?:, {things})* and {things}\."
    return re.compile("|".join([*filled, brief]))


def sentences(caption: str) -> list[str]:
    """The sentences of a caption, each with its full stop."""
    return [s.strip() for s in re.findall(r"[^.]+\.?", caption) if s.strip()]


def broken_sentences(caption: str) -> int:
    """How many sentences no template makes."""
    return sum(_grammar().fullmatch(s) is None for s in sentences(caption))


@lru_cache(maxsize=1)
def _names_pattern() -> re.Pattern[str]:
    return re.compile(r"\b(" + "|".join(sorted(map(re.escape, NAMES), key=len, reverse=True)) + r")\b")


def mentions(caption: str) -> list[str]:
    """The categories named, in order, repetitions kept; longest name first, so a teddy bear is no bear."""
    return _names_pattern().findall(caption.lower())
