"""The word tables of CHAIR, read from the package's JSON files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_DATA = Path(__file__).parent / "data"


def _read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((_DATA / name).read_text(encoding="utf-8"))
    return content


_OBJECTS = _read("objects.json")

# Abbreviations after which a full stop ends no sentence; the spaced ellipsis is one of them.
ABBREVIATIONS: frozenset[str] = frozenset(_read("abbreviations.json")["abbreviations"]) | {". . "}

# The 80 COCO categories, in COCO's order.
CATEGORIES: tuple[str, ...] = tuple(_OBJECTS["categories"])

# Word or double word -> category, as the published programs can match it.
SYNONYMS: dict[str, str] = {
    word: category for category, words in _OBJECTS["categories"].items() for word in (category, *words)
}

# Entries of the published list that can never match there: word -> category.
OUT_OF_REACH: dict[str, str] = {
    word: category for category, words in _OBJECTS["out_of_reach"].items() for word in words
}

# Two neighbouring words -> the word that replaces them.
DOUBLE_WORDS: dict[str, str] = {
    **{words: words for words in _OBJECTS["double_words_kept"]},
    **_OBJECTS["double_words_mapped"],
    **{f"{age} {animal}": animal for age in ("baby", "adult") for animal in _OBJECTS["young_or_adult"]},
    **{f"passenger {vehicle}": vehicle for vehicle in _OBJECTS["for_passengers"]},
}
