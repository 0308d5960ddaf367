"""Early stopping: settings that have no chance to meet a limit are decoded no further.

The rule. The choice is made on N pictures; after m of them a setting is dropped if, with high confidence, it will
break a limit on all N. Each limit is a margin that has to stay above 0 (`Limits.margins`), a function of sums over
pictures. Its standard error after m of N pictures, drawn in random order without replacement, is the jackknife's,
times sqrt(1 - m / N), because pictures already seen are part of the N. With t the quantile of Student's distribution
with m - 1 degrees of freedom at 1 - delta / looks, the setting is dropped if

    margin + t * error < 0.

`looks` is the number of times that the rule is applied, so that a setting which would meet its limit on all pictures
is wrongly dropped with a chance of about `delta` (Bonferroni over the looks, for each limit). The pictures are in
random order by construction (`find_data` shuffles with the seed).
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from ..metrics.statistics import Counts, Floats
from .scoring import Limits

DELTA = 0.01
LOOKS = (0.25, 0.5, 0.75)
LEAST = 20  # pictures before the first look


def looks(total: int) -> list[int]:
    """After how many of `total` pictures the rule is applied."""
    return sorted({round(share * total) for share in LOOKS if LEAST <= round(share * total) < total})


def student_quantile(probability: float, freedom: int) -> float:
    """Quantile of Student's t by its expansion around the normal one; within 1 % from 19 degrees of freedom on."""
    z = NormalDist().inv_cdf(probability)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def hopeless(
    counts: Counts, vanilla: Counts, limits: Limits, labelled: bool, total: int, times: int, delta: float = DELTA
) -> str | None:
    """The name of a limit that a setting will break on all `total` pictures, judged by those counted so far.

    Args:
        counts: The setting's counts on the first pictures.
        vanilla: The unsteered model's, on the same.
        limits: The limits.
        labelled: Whether recall is known.
        total: Number of pictures that the choice is made on.
        times: How often the rule is applied.
        delta: Chance of dropping a setting wrongly.

    Returns:
        The limit, or None if the setting still has a chance.
    """
    seen = len(counts.ids)
    if seen < 2 or seen >= total:
        return None
    margins = limits.margins(_sums(counts), _sums(vanilla.ordered(counts.ids)), labelled)
    without = limits.margins(_left_out(counts), _left_out(vanilla.ordered(counts.ids)), labelled)
    t = student_quantile(1 - delta / times, seen - 1)
    for name, margin in margins.items():
        spread = float(np.square(without[name] - without[name].mean()).sum())
        error = math.sqrt((seen - 1) / seen * spread * (1 - seen / total))
        if float(margin) + t * error < 0:
            return name
    return None


def _sums(counts: Counts) -> dict[str, Floats]:
    return counts.total()


def _left_out(counts: Counts) -> dict[str, Floats]:
    """The sums without each picture in turn."""
    rest = counts.values.sum(0) - counts.values
    return {column: rest[:, place] for place, column in enumerate(counts.columns)}
