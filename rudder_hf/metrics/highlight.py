"""Objects in a caption: where it mentions them, to the character, and which of them are not in the image."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from .chair_parsers import DASHES, Lineage, parse
from .words import words

MARK = "(!)"


@dataclass(frozen=True)
class Span:
    """A mention in a text: characters `start` to `stop`, and the COCO category it means."""

    start: int
    stop: int
    category: str


def mentions(text: str, lineage: Lineage = "pattern") -> list[Span]:
    """The COCO objects that a text names, with their places in it."""
    lowered = text.lower()
    if lineage == "strict":
        lowered = DASHES.sub(" ", lowered)  # as its parser does; places stay where they are
    places = _word_places(lowered)
    return [
        Span(places[mention.place][0], places[mention.place + mention.words - 1][1], mention.category)
        for mention in parse(text, lineage).mentions
    ]


def absent(text: str, present: Collection[str], lineage: Lineage = "pattern") -> list[Span]:
    """The mentions of objects that are not in the image."""
    return [span for span in mentions(text, lineage) if span.category not in present]


def _word_places(lowered: str) -> list[tuple[int, int]]:
    """Where each word of CHAIR's tokenisation stands in the text."""
    places, position = [], 0
    for word in words(lowered):
        found = lowered.find(word, position)
        start = position if found < 0 else found  # rewritten words ("``" for quotes) have no place of their own
        position = start + (0 if found < 0 else len(word))
        places.append((start, position))
    return places


def marked(text: str, present: frozenset[str] | None) -> str:
    """The text with a mark behind each object that is not in the image; unchanged if that is not known."""
    if present is None:
        return text
    for span in reversed(absent(text, present)):
        text = text[: span.stop] + MARK + text[span.stop :]
    return text
