"""AUC from ranks, and its bootstrap over pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
_BLOCK_ENTRIES = 4_000_000  # entries of one block of drawn weights, so that memory does not grow with the draws


@dataclass(frozen=True)
class Ordered:
    """Scores in ascending order, equal ones as one step: what every AUC of them is made from.

    Attributes:
        order: Places of the scores in ascending order.
        positive: Labels in that order.
        starts: Where each run of equal scores starts, in that order.
    """

    order: NDArray[np.int64]
    positive: Bools
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, scores: Floats, positive: Bools) -> Ordered:
        """Sort."""
        order = np.argsort(scores, kind="stable")
        ascending = scores[order]
        starts = np.flatnonzero(np.r_[True, ascending[1:] != ascending[:-1]])
        return cls(order, positive[order], starts)

    def auc(self, weights: Floats) -> Floats:
        """AUC of each row of weights, (draws, scores); NaN where a class has no weight.

        A pair of a positive and a negative counts 1 if the positive's score is larger and 1/2 if they are equal.
        """
        ascending = weights[:, self.order]
        positive = np.add.reduceat(ascending * self.positive, self.starts, axis=1)
        negative = np.add.reduceat(ascending * ~self.positive, self.starts, axis=1)
        below = np.cumsum(negative, axis=1) - negative
        won = (positive * (below + negative / 2)).sum(1)
        pairs = positive.sum(1) * negative.sum(1)
        found: Floats = np.divide(won, pairs, out=np.full(len(won), np.nan), where=pairs > 0)
        return found


def auc(scores: Floats, positive: Bools) -> float:
    """Probability that a positive has a larger score than a negative, ties as half; NaN without both classes."""
    return float(Ordered.of(scores, positive).auc(np.ones((1, len(scores))))[0])


def roc(scores: Floats, positive: Bools) -> tuple[Floats, Floats]:
    """The ROC curve from (0, 0) to (1, 1): false and true positive rates, one step for each different score."""
    ordered = Ordered.of(scores, positive)
    hits = np.add.reduceat(ordered.positive.astype(float), ordered.starts)[::-1]
    misses = np.add.reduceat((~ordered.positive).astype(float), ordered.starts)[::-1]
    return np.r_[0, np.cumsum(misses)] / misses.sum(), np.r_[0, np.cumsum(hits)] / hits.sum()


def clustered_draws(clusters: Sequence[Any], draws: int, seed: int) -> Floats:
    """How often each entry counts in each bootstrap draw of whole clusters, (draws, entries).

    Mentions of one caption hang together, so that pictures are what is drawn.
    """
    _, which = np.unique(np.asarray(clusters), return_inverse=True)
    size = int(which.max()) + 1
    source = np.random.default_rng(seed)
    drawn = source.multinomial(size, np.full(size, 1 / size), size=draws)
    counted: Floats = drawn[:, which].astype(np.float64)
    return counted


def bootstrap_auc(
    columns: dict[str, Floats], positive: Bools, clusters: Sequence[Any], draws: int = 2000, seed: int = 0
) -> dict[str, Floats]:
    """AUC of each column of scores in the same bootstrap draws over clusters."""
    ordered = {name: Ordered.of(scores, positive) for name, scores in columns.items()}
    found: dict[str, list[Floats]] = {name: [] for name in columns}
    block = max(1, _BLOCK_ENTRIES // max(len(positive), 1))
    for start in range(0, draws, block):
        weights = clustered_draws(clusters, min(block, draws - start), seed + start)
        for name, order in ordered.items():
            found[name].append(order.auc(weights))
    return {name: np.concatenate(parts) for name, parts in found.items()}


def interval(drawn: Floats, level: float = 0.95) -> list[float]:
    """Percentile interval of draws, those without both classes left out."""
    usable = drawn[np.isfinite(drawn)]
    if not len(usable):
        return [float("nan"), float("nan")]
    low, high = np.quantile(usable, ((1 - level) / 2, (1 + level) / 2))
    return [float(low), float(high)]
