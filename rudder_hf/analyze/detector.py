"""Could the trace be used to find hallucinated objects? AUC of what is known at a mention, against the plain
probability of the words, and against nothing but their place in the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..metrics.statistics import Floats, bootstrap_weights, percentile_interval
from .geometry import Bools, Ints
from .tokens import Mention, TracedAnswer

SCORES = {
    "similarity": "CARD similarity",
    "gate": "gate",
    "probability": "token probability",
    "earliness": "place in the answer",
}
"""What could detect hallucinated objects, and what the reader calls it."""
_CURVE_POINTS = 200


@dataclass(frozen=True)
class Ordered:
    """Scores in ascending order, equal ones as one step: what every AUC of them is made from.

    Attributes:
        order: Places of the scores in ascending order.
        positive: Labels in that order.
        starts: Where each run of equal scores starts, in that order.
    """

    order: Ints
    positive: Bools
    starts: Ints

    @classmethod
    def of(cls, scores: Floats, positive: Bools) -> Ordered:
        """Sort."""
        order = np.argsort(scores, kind="stable")
        ascending = scores[order]
        starts = np.flatnonzero(np.r_[True, ascending[1:] != ascending[:-1]])
        return cls(order, positive[order], starts)

    def steps(self, weights: Floats) -> tuple[Floats, Floats]:
        """Weight of the positives and of the negatives with each different score, each (draws, scores)."""
        ascending = weights[:, self.order]
        return (
            np.add.reduceat(ascending * self.positive, self.starts, axis=1),
            np.add.reduceat(ascending * ~self.positive, self.starts, axis=1),
        )

    def auc(self, weights: Floats) -> Floats:
        """AUC of each row of weights, (draws, scores); NaN where a class has no weight.

        A pair of a positive and a negative counts 1 if the positive's score is larger and 1/2 if they are equal.
        """
        positive, negative = self.steps(weights)
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
    steps = Ordered.of(scores, positive).steps(np.ones((1, len(scores))))
    hits, misses = (np.r_[0, np.cumsum(step[0, ::-1])] for step in steps)
    return misses / misses[-1], hits / hits[-1]


def bootstrap_auc(
    columns: dict[str, Floats], positive: Bools, images: Sequence[str], draws: int = 2000, seed: int = 0
) -> dict[str, Floats]:
    """AUC of each column of scores in the same bootstrap draws.

    Mentions of one caption hang together, so that images are what is drawn.
    """
    names, which = np.unique(np.asarray(images), return_inverse=True)
    ordered = {name: Ordered.of(scores, positive) for name, scores in columns.items()}
    found: dict[str, list[Floats]] = {name: [] for name in columns}
    for weights in bootstrap_weights(len(names), draws, seed):
        for name, order in ordered.items():
            found[name].append(order.auc(weights[:, which]))
    return {name: np.concatenate(parts) for name, parts in found.items()}


def _interval(drawn: Floats) -> list[float]:
    """95 % percentile interval of draws, those without both classes left out."""
    usable = drawn[np.isfinite(drawn)]
    return list(percentile_interval(usable)) if len(usable) else [0.0, 1.0]


def mention_scores(answer: TracedAnswer, mention: Mention) -> dict[str, float]:
    """What is known at a mention: means over its tokens (of the probability, the geometric one).

    Larger is meant to say "grounded" for each; `earliness` is minus the place of the first token.
    """
    at = {name: np.asarray(values)[mention.tokens] for name, values in answer.trace.items()}
    return {
        "similarity": float(at["similarity"].mean()),
        "gate": float(at["gate"].mean()),
        "probability": float(np.exp(np.log(np.maximum(at["probability"], 1e-300)).mean())),
        "earliness": -float(mention.tokens[0]),
    }


def detector_numbers(
    answers: Sequence[tuple[str, TracedAnswer, Sequence[Mention]]], draws: int = 2000, seed: int = 0
) -> dict[str, Any]:
    """How well each score tells grounded from hallucinated mentions.

    Args:
        answers: For each image its id, the answer, and what it names.
        draws: Of the bootstrap over images.
        seed: Of the bootstrap.

    Raises:
        ValueError: There are no mentions of one of the two kinds.
    """
    mentions = [(image, answer, mention) for image, answer, named in answers for mention in named]
    images = [image for image, _, _ in mentions]
    positive = np.asarray([not mention.absent for _, _, mention in mentions], dtype=bool)
    if positive.all() or not positive.any():
        kind = "hallucinated" if positive.all() else "grounded"
        raise ValueError(f"the answers have no {kind} mention")
    rows = [mention_scores(answer, mention) for _, answer, mention in mentions]
    columns = {name: np.asarray([row[name] for row in rows]) for name in SCORES}
    drawn = bootstrap_auc(columns, positive, images, draws, seed)
    kinds = {"grounded": positive, "hallucinated": ~positive}
    found: dict[str, Any] = {}
    for name, scores in columns.items():
        found[name] = {
            "auc": auc(scores, positive),
            "interval": _interval(drawn[name]),
            "minus_probability": {
                "value": auc(scores, positive) - auc(columns["probability"], positive),
                "interval": _interval(drawn[name] - drawn["probability"]),
            },
            "mean": {kind: float(scores[inside].mean()) for kind, inside in kinds.items()},
            "roc": _thinned_curve(*roc(scores, positive)),
        }
    return {
        "images": len(answers),
        "images_with_mentions": len(set(images)),
        "mentions": {kind: int(inside.sum()) for kind, inside in kinds.items()},
        "draws": draws,
        "scores": found,
        "values": {kind: columns["similarity"][inside].tolist() for kind, inside in kinds.items()},
    }


def _thinned_curve(wrong: Floats, right: Floats) -> list[list[float]]:
    """A curve with so few points that a figure still looks the same."""
    kept = np.unique(np.linspace(0, len(wrong) - 1, _CURVE_POINTS).round().astype(int))
    return [wrong[kept].round(5).tolist(), right[kept].round(5).tolist()]
