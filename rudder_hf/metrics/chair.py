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
precision. `rudder_hf.metrics.chair_parsers` says how mentions are found; scores of different lineages are not
comparable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from ..runtime.errors import InputError, listed
from .chair_parsers import COCO_CATEGORIES, SYNONYMS, Lineage, Mention, check_lineage, parse
from .coco import Caption, CocoData
from .coco import image_id as checked_id
from .statistics import Counts, Floats, Metric, Sums, f1, ratio, scores, share

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
    check_captions(given, truth)
    details = tuple(_detail(c, frozenset(truth[c.image_id]), lineage) for c in given)
    rows = np.asarray([d.counts() for d in details], dtype=np.float64)
    counts = Counts(tuple(str(c.image_id) for c in given), COLUMNS, rows)
    return ChairResult(
        scores=scores(counts, CHAIR_METRICS),
        counts=counts,
        details=details,
        silent=sum(not d.mentions for d in details),
    )


def check_captions(captions: Iterable[Caption], known: Collection[int]) -> None:
    """Check that there is one caption of each image, and that the images are among those known."""
    numbers = Counter(caption.image_id for caption in captions)
    twice = [image for image, count in numbers.items() if count > 1]
    if twice:
        raise InputError(f"{len(twice)} images have several captions: {listed(twice)}; keep one of each")
    missing = sorted(image for image in numbers if image not in known)
    if missing:
        raise InputError(
            f"{len(missing)} captioned images have no annotation: {listed(missing)}; "
            "give the annotation file of these images"
        )


def _detail(caption: Caption, truth: frozenset[str], lineage: Lineage) -> CaptionDetail:
    parsed = parse(caption.text, lineage)
    wrong = tuple(m for m in parsed.mentions if m.category not in truth)
    return CaptionDetail(caption.image_id, caption.text, parsed.mentions, wrong, truth, len(parsed.tokens))
