"""Mark the objects of a caption that are not in the image."""

from __future__ import annotations

from collections.abc import Collection

from .chair_parsers import Lineage, Mention, parse

MARK = "(!)"


def mentions(text: str, lineage: Lineage = "pattern") -> list[Mention]:
    """Return the COCO objects that a text names, with their places in it."""
    return list(parse(text, lineage).mentions)


def absent(text: str, present: Collection[str], lineage: Lineage = "pattern") -> list[Mention]:
    """Return the mentions of objects that are not in the image."""
    return [mention for mention in mentions(text, lineage) if mention.category not in present]


def marked(text: str, present: frozenset[str] | None) -> str:
    """Put a mark behind each object that is not in the image; if that is not known, return the text unchanged."""
    for mention in reversed(absent(text, present) if present is not None else []):
        text = text[: mention.stop] + MARK + text[mention.stop :]
    return text
