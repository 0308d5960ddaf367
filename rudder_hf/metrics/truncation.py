"""The truncated control: vanilla's own captions, cut until their recall is that of a method.

CHAIR falls when a model says less: the last mentions of a caption are the least certain ones. So a method has to beat
vanilla's captions cut to the same recall, which costs nothing to make:

```python
control = cut_to_recall(vanilla.details, steered.counts)
compare(control.counts, steered.counts.only(control.counts.columns), CONTROL_METRICS)["chair_s"]
```

All captions are cut after their n-th mention, with the least n whose recall is above the method's; then, in an order
drawn with the seed, one mention earlier, caption by caption, until recall is the method's. A cut costs an object or
none, so that the two become equal. They are matched once, on all images, not in every draw of a bootstrap. A method
that recalls as much as vanilla or more meets vanilla uncut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from .chair import CHAIR_METRICS, COLUMNS, CaptionDetail
from .errors import InputError
from .statistics import Counts, check_same_samples

CONTROL_METRICS = tuple(metric for metric in CHAIR_METRICS if metric.name != "length")
"""What is known of captions of which only the mentions are cut."""

_COLUMNS = tuple(column for column in COLUMNS if column != "words")


@dataclass(frozen=True)
class Truncated:
    """Captions cut to a recall.

    Attributes:
        counts: Of the cut captions, one row for each; without words.
        mentions: After how many mentions captions are cut; None if none is cut.
        shorter: How many of them are cut one mention earlier.
    """

    counts: Counts
    mentions: int | None
    shorter: int


def cut_to_recall(vanilla: Sequence[CaptionDetail], method: Counts, seed: int = 0) -> Truncated:
    """Cut vanilla's captions until their recall is not above a method's, with as few cuts as that takes.

    Args:
        vanilla: Details of vanilla's captions, from `chair`.
        method: Counts of the method's captions of the same images.
        seed: Of the order in which captions are cut.

    Raises:
        InputError: The images or their objects are not the same.
    """
    ids = sorted(method.ids)
    method = method.ordered(ids)
    by_id = {str(detail.image_id): detail for detail in vanilla}
    uncut = _counts(vanilla, [len(detail.mentions) for detail in vanilla])
    check_same_samples(uncut, method)
    details = [by_id[name] for name in ids]
    if any(method.values[:, method.columns.index("truth")] != [len(detail.truth) for detail in details]):
        raise InputError("the two runs do not have the same objects in the images; score them in one lineage")
    wanted = float(method.total()["found"])
    found = [_found(detail) for detail in details]  # objects found by the first 0, 1, 2 ... mentions
    longest = max(len(steps) for steps in found) - 1
    totals = [sum(steps[min(n, len(steps) - 1)] for steps in found) for n in range(longest + 1)]
    kept = max(n for n, total in enumerate(totals) if total <= wanted)
    if kept == longest:
        return Truncated(_counts(details, [longest] * len(details)), None, 0)
    order = [place for place in np.random.default_rng(seed).permutation(len(ids)) if len(found[place]) > kept + 1]
    lost = np.cumsum([0, *(found[place][kept + 1] - found[place][kept] for place in order)])
    shorter = int(np.searchsorted(lost, totals[kept + 1] - wanted))
    lengths = [kept + 1] * len(details)
    for place in order[:shorter]:
        lengths[place] = kept
    return Truncated(_counts(details, lengths), kept + 1, shorter)


def _found(detail: CaptionDetail) -> list[int]:
    """How many of the image's objects the first 0, 1, 2 ... mentions name."""
    named: set[str] = set()
    steps = [0]
    for mention in detail.mentions:
        named |= {mention.category} & detail.truth
        steps.append(len(named))
    return steps


def _counts(details: Sequence[CaptionDetail], lengths: Sequence[int]) -> Counts:
    """Counts of captions of which only so many mentions are left."""
    rows = []
    for detail, length in zip(details, lengths, strict=True):
        mentions = detail.mentions[:length]
        wrong = tuple(mention for mention in mentions if mention.category not in detail.truth)
        rows.append(replace(detail, mentions=mentions, hallucinated=wrong).counts())
    values = np.asarray(rows, dtype=np.float64)
    return Counts(tuple(str(detail.image_id) for detail in details), COLUMNS, values).only(_COLUMNS)
