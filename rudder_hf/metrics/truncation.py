"""The truncated control: vanilla's own captions, cut until their recall is that of a method.

CHAIR falls when a model says less: the last mentions of a caption are the least certain ones. So a method has to beat
vanilla's captions cut to the same recall, which costs nothing to make:

```python
control = cut_to_recall(vanilla.details, steered.counts)
compare(control.counts, steered.counts.only(control.counts.columns), CONTROL_METRICS)["chair_s"]
```

All captions are cut after their n-th mention, with the least n whose recall is above the method's; then a share of
them is cut one mention earlier, so that recall is the method's. Which captions these are is not drawn: counts are the
average over all choices, so that no verdict hangs on a seed. Recall is matched once, on all images, not in every draw
of a bootstrap. A method that recalls as much as vanilla or more meets vanilla uncut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..runtime.errors import InputError
from .chair import CHAIR_METRICS, COLUMNS, CaptionDetail
from .statistics import Counts, check_same_samples

CONTROL_METRICS = tuple(metric for metric in CHAIR_METRICS if metric.name != "length")
"""What is known of captions of which only the mentions are cut."""

_COLUMNS = tuple(column for column in COLUMNS if column != "words")


@dataclass(frozen=True)
class Truncated:
    """Captions cut to a recall."""

    counts: Counts  # Of the cut captions, one row for each; without words
    mentions: int | None  # After how many mentions captions are cut; None if none is cut
    shorter: float  # Which share of the captions is cut one mention earlier


def cut_to_recall(vanilla: Sequence[CaptionDetail], method: Counts) -> Truncated:
    """Cut vanilla's captions until their recall is not above a method's, with as few cuts as that takes.

    Args:
        vanilla: Details of vanilla's captions, from `chair`.
        method: Counts of the method's captions of the same images.

    Raises:
        InputError: The images or their objects are not the same.
    """
    ids = sorted(method.ids)
    method = method.ordered(ids)
    by_id = {str(detail.image_id): detail for detail in vanilla}
    check_same_samples(_counts(vanilla, 0), method)
    details = [by_id[name] for name in ids]
    if any(method.values[:, method.columns.index("truth")] != [len(detail.truth) for detail in details]):
        raise InputError("the two runs do not have the same objects in the images; score them in one lineage")
    wanted = float(method.total()["found"])
    found = [_found(detail) for detail in details]  # objects found by the first 0, 1, 2 ... mentions
    longest = max(len(steps) for steps in found) - 1
    totals = [sum(steps[min(n, len(steps) - 1)] for steps in found) for n in range(longest + 1)]
    kept = max(n for n, total in enumerate(totals) if total <= wanted)
    if kept == longest:
        return Truncated(_counts(details, longest), None, 0.0)
    longer, shorter = _counts(details, kept + 1), _counts(details, kept)
    share = (totals[kept + 1] - wanted) / (totals[kept + 1] - totals[kept])
    values = (1 - share) * longer.values + share * shorter.values
    return Truncated(replace(longer, values=values), kept + 1, share)


def _found(detail: CaptionDetail) -> list[int]:
    """How many of the image's objects the first 0, 1, 2 ... mentions name."""
    named: set[str] = set()
    steps = [0]
    for mention in detail.mentions:
        named |= {mention.category} & detail.truth
        steps.append(len(named))
    return steps


def _counts(details: Sequence[CaptionDetail], length: int) -> Counts:
    """Counts of captions of which only so many mentions are left."""
    rows = []
    for detail in details:
        mentions = detail.mentions[:length]
        wrong = tuple(mention for mention in mentions if mention.category not in detail.truth)
        rows.append(replace(detail, mentions=mentions, hallucinated=wrong).counts())
    values = np.asarray(rows, dtype=np.float64)
    return Counts(tuple(str(detail.image_id) for detail in details), COLUMNS, values).only(_COLUMNS)
