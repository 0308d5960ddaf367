"""Objects that a caption names although they are not in the picture."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ..evaluation.chair import ground_truth
from ..evaluation.coco import read_coco
from ..evaluation.lineages import parse
from ..evaluation.words import words

MARK = "(!)"


@dataclass(frozen=True)
class Span:
    """A mention in a text: characters `start` to `stop`, and the COCO category it means."""

    start: int
    stop: int
    category: str


def mentions(text: str) -> list[Span]:
    """The COCO objects that a text names, with their places in it."""
    places = _word_places(text)
    found = []
    for mention in parse(text).mentions:
        start, stop = places[mention.place]
        if " " in mention.word and mention.place + 1 < len(places):
            stop = places[mention.place + 1][1]
        found.append(Span(start, stop, mention.category))
    return found


def _word_places(text: str) -> list[tuple[int, int]]:
    """Where each word of CHAIR's tokenisation stands in the text."""
    lowered, places, position = text.lower(), [], 0
    for word in words(lowered):
        found = lowered.find(word, position)
        start = position if found < 0 else found  # rewritten words ("``" for quotes) have no place of their own
        position = start + (0 if found < 0 else len(word))
        places.append((start, position))
    return places


def absent(text: str, present: frozenset[str]) -> list[Span]:
    """The mentions of objects that are not in the picture."""
    return [span for span in mentions(text) if span.category not in present]


def marked(text: str, present: frozenset[str] | None) -> str:
    """The text with a mark behind each object that is not in the picture; unchanged if that is not known."""
    if present is None:
        return text
    for span in reversed(absent(text, present)):
        text = text[: span.stop] + MARK + text[span.stop :]
    return text


def objects_by_file(annotations: Path) -> dict[str, frozenset[str]]:
    """File name -> categories in the picture, from a COCO instances file."""
    data = read_coco(annotations)
    truth = ground_truth(data, "pattern")
    return {name: truth[image] for image, name in data.files.items()}


def annotations_beside(picture: Path) -> Path | None:
    """The COCO annotations that lie beside a picture's folder, as `rudder_hf.scenes.coco` writes them."""
    match = re.fullmatch(r"scenes_(\w+)_\d+\.png", picture.name)
    if match is None:
        return None
    for folder in (picture.parent / "annotations", picture.parent.parent / "annotations"):
        path = folder / f"instances_{match.group(1)}.json"
        if path.is_file():
            return path
    return None
