"""CHAIR: how many of the objects that captions mention are not in their images (Rohrbach et al., 2018).

```python
data = read_coco("instances_val2014.json", "captions_val2014.json")
result = chair(read_captions_file("answers.jsonl"), ground_truth(data, "pattern"), "pattern")
result.scores.chair_s, result.scores.chair_i, result.scores.recall  # fractions
result.details[0].hallucinated  # (Mention('bench', 'bench', 41),)
```

CHAIR_S is the share of captions with a mention that is not in the ground truth, CHAIR_I the share of such mentions
among all mentions of the corpus (repetitions counted). Recall, precision and F1 are by type: distinct categories of
a caption, summed over captions. `rudder_hf.metrics.chair_parsers` says how mentions are found; scores of different
lineages are not comparable, so the result carries its lineage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from .chair_parsers import Lineage, Mention, check_lineage, parse
from .coco import Caption, CocoData
from .coco import image_id as checked_id
from .errors import InputError, listed
from .resources import CATEGORIES, SYNONYMS
from .statistics import (
    Counts,
    Floats,
    Metric,
    Sums,
    f1,
    ratio,
    scores,
    share,
)

Duplicates = Literal["error", "first", "all"]

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


def _precision(sums: Sums) -> Floats:
    return ratio(sums["found"], sums["objects"])


def _recall(sums: Sums) -> Floats:
    return ratio(sums["found"], sums["truth"])


CHAIR_METRICS: tuple[Metric, ...] = (
    Metric("chair_s", "CHAIR_S", share("hallucinated_captions", "captions"), False),
    Metric("chair_i", "CHAIR_I", share("hallucinated_mentions", "mentions"), False),
    Metric("recall", "Recall", _recall, True),
    Metric("precision", "Precision", _precision, True),
    Metric("f1", "F1", lambda sums: f1(_precision(sums), _recall(sums)), True),
    Metric("length", "Len", share("words", "captions"), None, "words"),
    Metric("chair_i_distinct", "CHAIR_I distinct", share("hallucinated_objects", "objects"), False),
    Metric("distinct_objects", "Objects", share("objects", "captions"), None, "words"),
)


@dataclass(frozen=True)
class ChairScores:
    """Scores of a set of captions: fractions, except the two averages per caption at the end."""

    chair_s: float
    chair_i: float
    recall: float
    precision: float
    f1: float
    chair_i_distinct: float
    length: float
    distinct_objects: float


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
        """The distinct categories mentioned."""
        return frozenset(mention.category for mention in self.mentions)

    def counts(self) -> tuple[int, ...]:
        """The caption's row of counts, in the order of `COLUMNS`."""
        objects = self.objects
        return (
            1, bool(self.hallucinated), len(self.mentions), len(self.hallucinated), len(objects),
            len(objects - self.truth), len(self.truth), len(objects & self.truth), self.words,
        )  # fmt: skip


@dataclass(frozen=True)
class ChairResult:
    """Scores, their counts, and the detail of every caption.

    `totals` are the sums of `COLUMNS`; `empty` captions have no text, `silent` ones no mention (they count for CHAIR_S
    and recall only); `duplicates` says how many captions came after the first of their image.
    """

    lineage: Lineage
    scores: ChairScores
    totals: dict[str, int]
    details: tuple[CaptionDetail, ...]
    counts: Counts
    empty: int
    silent: int
    duplicates: int


def ground_truth(
    data: CocoData, lineage: Lineage = "pattern", ids: Collection[int] | None = None
) -> dict[int, frozenset[str]]:
    """The categories in each image: of its instance annotations and, by the lineage, of its reference captions."""
    check_lineage(lineage)
    unknown = [name for name in data.categories if name not in SYNONYMS]
    if unknown:
        raise InputError(
            f"CHAIR is defined for the {len(CATEGORIES)} COCO categories; the annotations also have {listed(unknown)}"
        )
    chosen = data.ids if ids is None else sorted({checked_id(i) for i in ids})
    missing = [i for i in chosen if i not in data.objects]
    if missing:
        raise InputError(f"{len(missing)} image ids have no annotation: {listed(missing)}")
    return {
        i: frozenset(SYNONYMS[name] for name in data.objects[i]).union(
            *(parse(text, lineage).categories for text in data.references[i])
        )
        for i in chosen
    }


def chair(
    captions: Iterable[Caption | tuple[int | str, str]],
    truth: Mapping[int, Collection[str]],
    lineage: Lineage = "pattern",
    duplicates: Duplicates = "error",
) -> ChairResult:
    """Score captions against the categories in their images.

    Args:
        captions: `Caption`s, or pairs of image id and text; an id given as digits in text is accepted.
        truth: from `ground_truth` of the same lineage. Every captioned image has to be in it.
        lineage: how mentions are found.
        duplicates: what to do with a second caption of an image: refuse it, keep the first, or count all.
    """
    check_lineage(lineage)
    given = [c if isinstance(c, Caption) else Caption(checked_id(c[0]), c[1]) for c in captions]
    odd = [c.image_id for c in given if not isinstance(c.text, str)]
    if odd:
        raise InputError(f"the captions of {len(odd)} images are no text: {listed(odd)}")
    chosen = _without_duplicates(given, duplicates)
    missing = sorted({c.image_id for c in chosen if c.image_id not in truth})
    if missing:
        raise InputError(
            f"{len(missing)} captioned images have no annotation: {listed(missing)}; "
            "give the annotation file of these images"
        )
    if not chosen:
        raise InputError("no caption to score")
    details = tuple(_detail(c, frozenset(truth[c.image_id]), lineage) for c in chosen)
    rows = np.asarray([d.counts() for d in details], dtype=np.float64)
    counts = Counts(_sample_ids(chosen), COLUMNS, rows)
    return ChairResult(
        lineage=lineage,
        scores=ChairScores(**scores(counts, CHAIR_METRICS)),
        totals={name: int(value) for name, value in counts.total().items()},
        details=details,
        counts=counts,
        empty=sum(not c.text.strip() for c in chosen),
        silent=sum(not d.mentions for d in details),
        duplicates=len(given) - len({c.image_id for c in given}),
    )


def _detail(caption: Caption, truth: frozenset[str], lineage: Lineage) -> CaptionDetail:
    parsed = parse(caption.text, lineage)
    wrong = tuple(m for m in parsed.mentions if m.category not in truth)
    return CaptionDetail(caption.image_id, caption.text, parsed.mentions, wrong, truth, len(parsed.tokens))


def _without_duplicates(captions: list[Caption], duplicates: Duplicates) -> list[Caption]:
    if duplicates not in ("error", "first", "all"):
        raise InputError(f"unknown way to treat duplicates {duplicates!r}; choose error, first or all")
    number = Counter(c.image_id for c in captions)
    twice = [i for i, n in number.items() if n > 1]
    if twice and duplicates == "error":
        raise InputError(
            f"{len(twice)} images have several captions: {listed(twice)}; "
            "remove them, or choose duplicates='first' (keep the first) or 'all' (count each)"
        )
    if duplicates == "first":
        return list({c.image_id: c for c in reversed(captions)}.values())[::-1]
    return captions


def _sample_ids(captions: list[Caption]) -> tuple[str, ...]:
    seen: Counter[int] = Counter()
    ids = []
    for caption in captions:
        seen[caption.image_id] += 1
        number = seen[caption.image_id]
        ids.append(str(caption.image_id) if number == 1 else f"{caption.image_id}#{number}")
    return tuple(ids)
