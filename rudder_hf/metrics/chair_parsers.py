"""Object mentions in a caption, in the three lineages of CHAIR.

All follow the published procedure: lower-case, cut into words, normalise each word, replace double words from left to
right, drop "seat" beside "toilet", keep what the synonym table knows. They differ in how a word is normalised:

- `pattern`: singular by rule, as in the original program (Rohrbach et al., 2018, with CLiPS pattern).
- `wordnet`: part of speech of every word of the caption, then its WordNet lemma as adjective, verb, adverb or else
  noun (OPERA, VISTA, lmms-eval). Needs nltk and its data on disk; nothing is downloaded.
- `strict`: `pattern` without its known accidents: "bus", "ties" and "tennis racket" are found, hyphens and dashes
  part words, and the entries of the table that a typing error hid are matched. For one's own use; its scores are not
  comparable with published ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from .errors import InputError, listed
from .resources import DOUBLE_WORDS, OUT_OF_REACH, SYNONYMS
from .words import singular, words

Lineage = Literal["pattern", "wordnet", "strict"]
LINEAGES: tuple[Lineage, ...] = ("pattern", "wordnet", "strict")
NLTK_DATA = ("averaged_perceptron_tagger_eng", "wordnet")


class Mention(NamedTuple):
    """One mention: the word as matched, its COCO category, and its place among the caption's words.

    Places count words before double words are joined. (In captions with "seat" and "toilet" the published programs'
    own places are shifted; no score depends on them.)
    """

    word: str
    category: str
    place: int


@dataclass(frozen=True)
class Parsed:
    """A caption's normalised words with double words joined, and its object mentions in order, repetitions kept."""

    tokens: tuple[str, ...]
    mentions: tuple[Mention, ...]

    @property
    def categories(self) -> tuple[str, ...]:
        """The categories mentioned, in order, repetitions kept."""
        return tuple(mention.category for mention in self.mentions)


def check_lineage(lineage: str) -> Lineage:
    """The lineage, or an error that names the allowed ones."""
    if lineage not in LINEAGES:
        raise InputError(f"unknown CHAIR lineage {lineage!r}; choose {listed(LINEAGES)}")
    return lineage  # type: ignore[return-value]


def parse(caption: str, lineage: Lineage = "pattern") -> Parsed:
    """Words and object mentions of a caption."""
    check_lineage(lineage)
    text = caption.lower()
    if lineage == "wordnet":
        return _mentions(_wordnet_lemmas(words(text)), SYNONYMS)
    if lineage == "strict":
        return _mentions([_strict_singular(word) for word in words(DASHES.sub(" ", text))], _STRICT_SYNONYMS)
    return _mentions([singular(word) for word in words(text)], SYNONYMS)


def _mentions(normalised: list[str], synonyms: dict[str, str]) -> Parsed:
    tokens: list[str] = []
    starts: list[int] = []
    position = 0
    while position < len(normalised):
        starts.append(position)
        pair = " ".join(normalised[position : position + 2])
        joined = DOUBLE_WORDS.get(pair)
        tokens.append(normalised[position] if joined is None else joined)
        position += 1 if joined is None else 2
    # "The seat of the toilet" is no chair.
    hidden = "seat" if "toilet" in tokens else None
    mentions = tuple(
        Mention(token, synonyms[token], start)
        for token, start in zip(tokens, starts, strict=True)
        if token in synonyms and token != hidden
    )
    return Parsed(tuple(tokens), mentions)


DASHES = re.compile(r"[-/\u2010-\u2015]")
_STRICT_SYNONYMS = {**SYNONYMS, **OUT_OF_REACH}
_WHOLE = {part for word in (*_STRICT_SYNONYMS, *DOUBLE_WORDS) for part in (word, *word.split())}
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
