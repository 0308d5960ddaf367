"""Captions of the scenes in template English, the grammar to read them, and questions as POPE asks them.

Detailed captions have a fixed number of sentences that name one object each, in a random order that favours people,
vehicles and animals. A scene holds more objects than a caption names, and the length says nothing about the scene: a
caption cannot become truer by ending sooner or by repeating itself, only by naming what is there. No sentence says
where an object is, so a caption's only claims are its place and its objects. The captions that the embedded models
were trained on drift to absent objects besides: `tools/train_scenes/drift.py` in the source repository. The grammar is
small enough to parse, which gives a free measure of fluency: a sentence that no template makes is *broken*.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache

import numpy as np

from .images import Scene, pick
from .world import NAMES, PLACES, article

DETAIL_PROMPT = "Please help me describe the image in detail"
BRIEF_PROMPT = "Describe the image briefly"

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
STYLES = ((0, 1), (5, 5), (2, 4))  # for each opening the first of the sentences that follow, and the step to the next
SALIENCE = 0.5  # how much less likely each next object in COCO's order is to be named first
OBJECTS = 5  # that a detailed caption names
FILLER = 0.3  # chance that a caption ends with a filler


# The probabilities of the object that a caption names next, given the scene and the names so far.
NextObject = Callable[[Scene, list[str]], dict[str, float]]


def noun(name: str) -> str:
    """The category with its article."""
    return f"{article(name)} {name}"


def normalised(weights: dict[str, float]) -> dict[str, float]:
    """The weights divided by their sum."""
    total = sum(weights.values())
    return {name: weight / total for name, weight in weights.items()}


def present_objects(scene: Scene, mentioned: list[str]) -> dict[str, float]:
    """Probabilities of the scene's objects that were not mentioned yet; the first in COCO's order lead."""
    left = sorted((n for n in scene.names if n not in mentioned), key=NAMES.index)
    return normalised({n: SALIENCE**rank for rank, n in enumerate(left)})


def _draw_object(random: np.random.RandomState, likely: dict[str, float]) -> str:
    return list(likely)[pick(random, list(likely.values()))]


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def detailed_caption(
    scene: Scene, random: np.random.RandomState, objects: int = OBJECTS, likely: NextObject = present_objects
) -> str:
    """A caption that names so many objects, one in each sentence; a true one unless `likely` has absent objects."""
    opening = int(random.randint(len(OPENINGS)))
    template, stride = STYLES[opening]
    sentences: list[str] = []
    mentioned: list[str] = []
    while len(mentioned) < objects:
        name = _draw_object(random, likely(scene, mentioned))
        thing = noun(name)
        if mentioned:
            sentences.append(SENTENCES[template].format(thing=thing, Thing=_capital(thing)))
            template = (template + stride) % len(SENTENCES)
        else:
            sentences.append(OPENINGS[opening].format(place=noun(scene.place), bare_place=scene.place, thing=thing))
        mentioned.append(name)
    if float(random.random_sample()) < FILLER:
        sentences.append(FILLERS[int(random.randint(len(FILLERS)))])
    return " ".join(sentences)


def brief_caption(scene: Scene, random: np.random.RandomState, likely: NextObject = present_objects) -> str:
    """One true sentence that lists all objects."""
    mentioned: list[str] = []
    for _ in scene.things:
        mentioned.append(_draw_object(random, likely(scene, mentioned)))
    things = [noun(name) for name in mentioned]
    listed = things[0] if len(things) == 1 else ", ".join(things[:-1]) + " and " + things[-1]
    return f"The image shows {noun(scene.place)} with {listed}."


@cache
def _grammar() -> re.Pattern[str]:
    def either(texts: Iterable[str]) -> str:
        return "(?:" + "|".join(map(re.escape, texts)) + ")"

    things, places = either(map(noun, NAMES)), either(map(noun, PLACES))
    fillings = {
        "thing": things,
        "Thing": either(_capital(noun(name)) for name in NAMES),
        "place": places,
        "bare_place": either(PLACES),
    }
    parts = [re.escape(t).replace(r"\{", "{").replace(r"\}", "}") for t in OPENINGS + SENTENCES + FILLERS]
    filled = [part.format(**fillings) for part in parts]
    brief = rf"The\ image\ shows\ {places}\ with\ {things}(?:, {things})* and {things}\."
    return re.compile("|".join([*filled, brief]))


def sentences(caption: str) -> list[str]:
    """The sentences of a caption, each with its full stop."""
    return [s.strip() for s in re.findall(r"[^.]+\.?", caption) if s.strip()]


def broken_sentences(caption: str) -> int:
    """How many sentences no template makes."""
    return sum(_grammar().fullmatch(s) is None for s in sentences(caption))


@cache
def _names_pattern() -> re.Pattern[str]:
    return re.compile(r"\b(" + "|".join(sorted(map(re.escape, NAMES), key=len, reverse=True)) + r")\b")


def mentions(caption: str) -> list[str]:
    """The categories named, in order, repetitions kept; longest name first, so a teddy bear is no bear."""
    return _names_pattern().findall(caption.lower())


def place(caption: str) -> str | None:
    """The place that a caption names first, or None."""
    found = re.search(r"\b(" + "|".join(map(re.escape, PLACES)) + r")\b", caption)
    return found[1] if found else None


def question(name: str) -> str:
    """POPE's question."""
    return f"Is there {noun(name)} in the image?"


def pope_questions(scenes: list[Scene], kind: str, seed: int = 0) -> list[tuple[int, str, bool]]:
    """POPE's questions (scene number, object, present): three positives per scene, each followed by a negative.

    The published results on scenes rest on these very questions. `rudder_hf.metrics.pope`, which makes
    questions from COCO files, draws and breaks ties in another way.
    """
    if kind not in ("random", "popular", "adversarial"):
        raise ValueError(f"unknown POPE split {kind!r}; choose random, popular or adversarial")
    random = np.random.RandomState(seed)
    popular = [n for n, _ in Counter(n for s in scenes for n in s.names).most_common()]
    together: dict[str, Counter[str]] = {n: Counter() for n in NAMES}
    for scene in scenes:
        for name in scene.names:
            together[name].update(n for n in scene.names if n != name)
    questions = []
    for number, scene in enumerate(scenes):
        if len(scene.names) < 3:
            continue
        used = set(scene.names)
        for name in scene.names[:3]:
            order = {
                "random": [NAMES[int(i)] for i in random.permutation(len(NAMES))],
                "popular": popular,
                "adversarial": [n for n, _ in together[name].most_common()] + popular,
            }[kind]
            negative = next(n for n in (*order, *NAMES) if n not in used)  # few scenes have few popular objects
            used.add(negative)
            questions += [(number, name, True), (number, negative, False)]
    return questions
