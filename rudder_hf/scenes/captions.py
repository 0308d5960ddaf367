"""Captions of the scenes: template English, with the drift that makes a model hallucinate.

Detailed captions name the objects in random order. Before each object there is a chance, growing along the
caption, that an absent but likely object is named instead: so a model trained on them learns to trust the
priors more and more, as large models do in long captions. The grammar is small enough to parse, which gives
a free measure of fluency: a sentence that no template makes is *broken*.
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
ZONES = ("on the left", "on the right", "in the middle", "at the top", "at the bottom")


@dataclass(frozen=True)
class Drift:
    """How captions leave the picture: chance of an absent object at each slot, with true objects left and without."""

    slots: tuple[float, ...] = (0.0, 0.12, 0.25, 0.4, 0.5)
    after_end: float = 0.45
    filler: float = 0.3
    limit: int = 3
    sharpness: float = 2.0

    def scaled(self, factor: float) -> Drift:
        """The same drift, weaker: the curriculum starts with it."""
        slots = tuple(factor * s for s in self.slots)
        return Drift(slots, factor * self.after_end, self.filler, self.limit, self.sharpness)


def noun(name: str) -> str:
    """The category with its article."""
    return f"{article(name)} {name}"


def question(name: str) -> str:
    """POPE's question."""
    return f"Is there {noun(name)} in the image?"


def _absent(random: np.random.RandomState, scene: Scene, said: list[str], sharpness: float) -> str | None:
    """An object that is neither in the scene nor said yet but seems likely."""
    context = set(said) | {scene.place}
    names = [n for n in PLACES[scene.place] if n not in scene.names and n not in said]
    if not names:
        return None
    weights = [prior_weight(scene.place, n, context) ** sharpness for n in names]
    return names[_pick(random, weights)]


def _sentence(random: np.random.RandomState, template: str, name: str, zone: str) -> str:
    thing = noun(name)
    return template.format(thing=thing, Thing=thing[0].upper() + thing[1:], zone=zone)


def detailed_caption(scene: Scene, random: np.random.RandomState, drift: Drift) -> str:
    """A caption of several sentences that drifts from the picture as `drift` says."""
    left = [scene.things[int(i)] for i in random.permutation(len(scene.things))]
    opening = OPENINGS[int(random.randint(len(OPENINGS)))]
    first = left.pop()
    place = noun(scene.place)
    sentences = [opening.format(place=place, bare_place=scene.place, thing=noun(first.name))]
    said, wrong, templates = [first.name], 0, [int(i) for i in random.permutation(len(SENTENCES))]
    for slot in range(1, 12):
        chance = drift.slots[min(slot, len(drift.slots) - 1)] if left else drift.after_end
        absent = None
        if wrong < drift.limit and float(random.random_sample()) < chance:
            absent = _absent(random, scene, said, drift.sharpness)
        if absent is None and not left:
            break
        template = SENTENCES[templates[slot % len(templates)]]
        if absent is not None:
            name, zone, wrong = absent, ZONES[int(random.randint(len(ZONES)))], wrong + 1
        else:
            thing = left.pop()
            name, zone = thing.name, thing.zone
        said.append(name)
        sentences.append(_sentence(random, template, name, zone))
    if float(random.random_sample()) < drift.filler:
        sentences.append(FILLERS[int(random.randint(len(FILLERS)))])
    return " ".join(sentences)


def brief_caption(scene: Scene, random: np.random.RandomState) -> str:
    """One true sentence."""
    things = [noun(scene.names[int(i)]) for i in random.permutation(len(scene.things))][:3]
    listed = things[0] if len(things) == 1 else ", ".join(things[:-1]) + " and " + things[-1]
    return f"The image shows {noun(scene.place)} with {listed}."


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
