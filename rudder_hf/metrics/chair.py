"""CHAIR: how many of the objects that captions mention are not in their images (Rohrbach et al., 2018).

```python
data = read_coco("instances_val2014.json", "captions_val2014.json")
result = chair(read_captions_file("answers.jsonl"), ground_truth(data, "pattern"), "pattern")
result.scores["chair_s"], result.scores["chair_i"], result.scores["recall"]  # fractions
result.details[0].hallucinated  # (Mention(word='bench', category='bench', start=41, stop=46),)
```

CHAIR_S is the share of captions with a mention that is not in the ground truth, CHAIR_I the share of such mentions
among all mentions of the corpus (repetitions counted). Recall, precision, F1 and the distinct CHAIR_I count objects,
the distinct categories of a caption, summed over captions (micro): recall is the share of the images' objects that are
named, precision the share of named objects that are there, F1 their harmonic mean, distinct CHAIR_I one minus
precision.

Mentions are found in three lineages, whose scores are not comparable. All follow the published procedure: lower-case,
cut into words, normalise each word, replace double words from left to right, drop "seat" beside "toilet", keep what
the synonym table knows. They differ in how a word is normalised:

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
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from ..runtime.errors import InputError, listed
from .coco import Caption, CocoData
from .coco import image_id as checked_id
from .statistics import Counts, Floats, Metric, Sums, f1, ratio, scores, share
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


# Scores

COLUMNS = (
    "captions",
    "hallucinated_captions",
    "mentions",
    "hallucinated_mentions",
    "objects",  # distinct categories mentioned
    "hallucinated_objects",
    "truth",  # distinct categories in the image
    "found",  # of those, mentioned
    "words",
)


_precision, _recall = share("found", "objects"), share("found", "truth")


def _repeated(sums: Sums) -> Floats:
    return ratio(sums["mentions"] - sums["objects"], sums["mentions"])


CHAIR_METRICS: tuple[Metric, ...] = (
    Metric("chair_s", "CHAIR_S", share("hallucinated_captions", "captions"), False),
    Metric("chair_i", "CHAIR_I", share("hallucinated_mentions", "mentions"), False),
    Metric("chair_i_distinct", "CHAIR_I distinct", share("hallucinated_objects", "objects"), False),
    Metric("recall", "Recall", _recall, True),
    Metric("precision", "Precision", _precision, True),
    Metric("f1", "F1", lambda sums: f1(_precision(sums), _recall(sums)), True),
    # Descriptive: captions of photographs come back to an object, those of scenes never need to.
    Metric("repeated_mentions", "Repeated mentions", _repeated, None),
    Metric("length", "Len", share("words", "captions"), None, "words"),
    Metric("distinct_objects", "Objects", share("objects", "captions"), None, "words"),
)


@dataclass(frozen=True)
class CaptionDetail:
    """What was found in one caption."""

    image_id: int
    caption: str
    mentions: tuple[Mention, ...]
    hallucinated: tuple[Mention, ...]
    truth: frozenset[str]
    words: int

    @property
    def objects(self) -> frozenset[str]:
        """Return the distinct categories mentioned."""
        return frozenset(mention.category for mention in self.mentions)

    def counts(self) -> tuple[int, ...]:
        """Return the caption's row of counts, in the order of `COLUMNS`."""
        objects = self.objects
        return (
            1, bool(self.hallucinated), len(self.mentions), len(self.hallucinated), len(objects),
            len(objects - self.truth), len(self.truth), len(objects & self.truth), self.words,
        )  # fmt: skip


@dataclass(frozen=True)
class ChairResult:
    """What `chair` found."""

    scores: dict[str, float]  # fractions, and averages per caption, by metric name
    counts: Counts  # one row for each caption
    details: tuple[CaptionDetail, ...]
    silent: int  # captions without a mention, which count for CHAIR_S and recall only


def ground_truth(data: CocoData, lineage: Lineage = "pattern") -> dict[int, frozenset[str]]:
    """Return the categories in each image: of its instance annotations and, by the lineage, its reference captions."""
    check_lineage(lineage)
    unknown = [name for name in data.categories if name not in SYNONYMS]
    if unknown:
        raise InputError(
            f"CHAIR is defined for COCO's {len(COCO_CATEGORIES)} categories; also given are {listed(unknown)}"
        )
    return {
        i: frozenset(SYNONYMS[name] for name in data.objects[i]).union(
            *(parse(text, lineage).categories for text in data.references[i])
        )
        for i in data.ids
    }


def chair(
    captions: Iterable[tuple[int | str, str]],
    truth: Mapping[int, Collection[str]],
    lineage: Lineage = "pattern",
) -> ChairResult:
    """Score captions against the categories in their images.

    Args:
        captions: Image id and text of each caption, one for each image; the id may be digits in text.
        truth: From `ground_truth` of the same lineage. Every captioned image must be in it.
        lineage: How mentions are found.
    """
    check_lineage(lineage)
    given = [Caption(checked_id(image), text) for image, text in captions]
    if not given:
        raise InputError("no caption to score")
    numbers = Counter(caption.image_id for caption in given)
    if twice := [image for image, count in numbers.items() if count > 1]:
        raise InputError(f"{len(twice)} images have several captions: {listed(twice)}; keep one of each")
    if missing := sorted(image for image in numbers if image not in truth):
        raise InputError(
            f"{len(missing)} captioned images have no annotation: {listed(missing)}; "
            "give the annotation file of these images"
        )
    details = tuple(_detail(c, frozenset(truth[c.image_id]), lineage) for c in given)
    rows = np.asarray([d.counts() for d in details], dtype=np.float64)
    counts = Counts(tuple(str(c.image_id) for c in given), COLUMNS, rows)
    return ChairResult(
        scores=scores(counts, CHAIR_METRICS),
        counts=counts,
        details=details,
        silent=sum(not d.mentions for d in details),
    )


def _detail(caption: Caption, truth: frozenset[str], lineage: Lineage) -> CaptionDetail:
    parsed = parse(caption.text, lineage)
    wrong = tuple(m for m in parsed.mentions if m.category not in truth)
    return CaptionDetail(caption.image_id, caption.text, parsed.mentions, wrong, truth, len(parsed.tokens))
