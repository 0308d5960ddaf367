"""Object mentions in a caption, in the three lineages of CHAIR.

All follow the published procedure: lower-case, cut into words, normalise each word, replace double words from left to
right, drop "seat" beside "toilet", keep what the synonym table knows. They differ in how a word is normalised:

- `pattern`: singular by rule, as in the original program (Rohrbach et al., 2018, with CLiPS pattern).
- `wordnet`: part of speech of every word of the caption, then its WordNet lemma as adjective, verb, adverb or else
  noun (OPERA, VISTA, lmms-eval). Needs nltk and its data on disk; nothing is downloaded.
- `strict`: `pattern` without its known accidents: "bus", "ties" and "tennis racket" are found, hyphens and dashes
  separate words, and the entries of the table that a typing error hid are matched. Its scores are not comparable
  with published ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ..runtime.errors import InputError, listed
from .words import singular, words

_TABLES = json.loads((Path(__file__).parent / "data" / "objects.json").read_text(encoding="utf-8"))

COCO_CATEGORIES: tuple[str, ...] = tuple(_TABLES["categories"])
"""The 80 COCO categories, in COCO's order."""

SYNONYMS: dict[str, str] = {
    word: category for category, others in _TABLES["categories"].items() for word in (category, *others)
}
"""Word or double word -> category, as the published programs can match it."""

# Entries of the published list that can never match there.
_OUT_OF_REACH = {word: category for category, others in _TABLES["out_of_reach"].items() for word in others}

# Two neighbouring words -> the word that replaces them.
_DOUBLE_WORDS: dict[str, str] = {
    **{pair: pair for pair in _TABLES["double_words_kept"]},
    **_TABLES["double_words_mapped"],
    **{f"{age} {animal}": animal for age in ("baby", "adult") for animal in _TABLES["young_or_adult"]},
    **{f"passenger {vehicle}": vehicle for vehicle in _TABLES["for_passengers"]},
}

Lineage = Literal["pattern", "wordnet", "strict"]
LINEAGES: tuple[Lineage, ...] = ("pattern", "wordnet", "strict")
MARK = "(!)"
"""Stands behind the objects of a text that are not in the image."""
NLTK_DATA = ("averaged_perceptron_tagger_eng", "wordnet")


class Mention(NamedTuple):
    """One mention: the word as matched, its COCO category, and its characters `start` to `stop` in the caption."""

    word: str
    category: str
    start: int
    stop: int


@dataclass(frozen=True)
class Parsed:
    """The normalised words of a caption with double words joined, and its object mentions in order."""

    tokens: tuple[str, ...]
    mentions: tuple[Mention, ...]

    @property
    def categories(self) -> tuple[str, ...]:
        """Return the categories mentioned, in order, with repetitions."""
        return tuple(mention.category for mention in self.mentions)


def check_lineage(lineage: str) -> Lineage:
    """Return the lineage, or raise an error that names the allowed ones."""
    if lineage not in LINEAGES:
        raise InputError(f"unknown CHAIR lineage {lineage!r}; choose {listed(LINEAGES)}")
    return lineage  # type: ignore[return-value]


def parse(caption: str, lineage: Lineage = "pattern") -> Parsed:
    """Words and object mentions of a caption."""
    check_lineage(lineage)
    text, synonyms = caption.lower(), SYNONYMS
    if lineage == "strict":
        text, synonyms = _DASHES.sub(" ", text), _STRICT_SYNONYMS
    found = words(text)
    if lineage == "wordnet":
        normalised = _wordnet_lemmas(found)
    else:
        normalised = [_strict_singular(word) if lineage == "strict" else singular(word) for word in found]
    places = _word_places(text, found)
    tokens: list[tuple[str, int, int]] = []  # with the characters where they stand
    position = 0
    while position < len(normalised):
        joined = _DOUBLE_WORDS.get(" ".join(normalised[position : position + 2]))
        token, width = (normalised[position], 1) if joined is None else (joined, 2)
        tokens.append((token, places[position][0], places[position + width - 1][1]))
        position += width
    joined_words = tuple(token for token, _, _ in tokens)
    # "The seat of the toilet" is no chair.
    hidden = "seat" if "toilet" in joined_words else None
    mentions = (Mention(t, synonyms[t], *where) for t, *where in tokens if t in synonyms and t != hidden)
    return Parsed(joined_words, tuple(mentions))


def absent(text: str, present: Collection[str]) -> list[Mention]:
    """Return the mentions of objects that are not in the image."""
    return [mention for mention in parse(text).mentions if mention.category not in present]


def marked(text: str, present: frozenset[str] | None) -> str:
    """Put a mark behind each object that is not in the image; if that is not known, return the text unchanged."""
    for mention in reversed(absent(text, present) if present is not None else []):
        text = text[: mention.stop] + MARK + text[mention.stop :]
    return text


def _word_places(text: str, found: list[str]) -> list[tuple[int, int]]:
    """Return where each word stands in the text; rewritten words ("``" for quotes) have no place of their own."""
    places, position = [], 0
    for word in found:
        start = text.find(word, position)
        start, position = (position, position) if start < 0 else (start, start + len(word))
        places.append((start, position))
    return places


_DASHES = re.compile(r"[-/\u2010-\u2015]")
_STRICT_SYNONYMS = {**SYNONYMS, **_OUT_OF_REACH}
_WHOLE = {part for word in (*_STRICT_SYNONYMS, *_DOUBLE_WORDS) for part in (word, *word.split())}
_STRICT_PLURALS = {"ties": "tie", "collies": "collie", "doggies": "doggie", "thieves": "thief", "canoes": "canoe"}


def _strict_singular(word: str) -> str:
    return word if word in _WHOLE else _STRICT_PLURALS.get(word) or singular(word)


@lru_cache(maxsize=1)
def _wordnet_tools() -> tuple[Callable[[list[str]], list[tuple[str, str]]], Callable[[str, str], str]]:
    command = f"pip install nltk && python -m nltk.downloader {' '.join(NLTK_DATA)}"
    try:
        import nltk  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError as error:
        raise InputError(f"CHAIR's wordnet lineage needs nltk; run: {command}") from error
    tools: Any = nltk
    try:
        tools.pos_tag(["dog"])
        lemmatize = lru_cache(maxsize=50_000)(tools.stem.WordNetLemmatizer().lemmatize)
        lemmatize("dogs", "n")
    except LookupError as error:
        raise InputError(f"CHAIR's wordnet lineage needs nltk's data on disk; run: {command}") from error
    return tools.pos_tag, lemmatize


def _wordnet_lemmas(tokens: list[str]) -> list[str]:
    tag, lemmatize = _wordnet_tools()
    kinds = {"J": "a", "V": "v", "N": "n", "R": "r"}
    return [lemmatize(word, kinds.get(label[:1], "n")) for word, label in tag(tokens)]
