"""Could the trace be used to find hallucinated objects? AUC of what is known at a mention, against the plain
probability of the words, and against nothing but their place in the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
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


def image_wins(scores: Floats, positive: Bools, images: Ints) -> Floats:
    """How many pairs a positive of one image wins against a negative of another, (images, images), ties as half.

    Args:
        scores: What pairs are compared by.
        positive: Which of them are positives.
        images: The image of each, from 0 on.
    """
    size = int(images.max()) + 1
    wins = np.zeros((size, size))
    for image in range(size):
        losers = np.sort(scores[(images == image) & ~positive])
        below, not_above = (np.searchsorted(losers, scores[positive], side) for side in ("left", "right"))
        wins[:, image] = np.bincount(images[positive], (below + not_above) / 2, size)
    return wins


def auc(scores: Floats, positive: Bools) -> float:
    """Probability that a positive has a larger score than a negative, ties as half; NaN without both classes."""
    pairs = positive.sum() * (~positive).sum()
    return float(image_wins(scores, positive, np.zeros(len(scores), dtype=int)).sum() / pairs) if pairs else np.nan


def bootstrap_auc(
    columns: dict[str, Floats], positive: Bools, images: Ints, draws: int = 2000, seed: int = 0
) -> dict[str, Floats]:
    """AUC of each column of scores in the same bootstrap draws; NaN for draws without both classes.

    Mentions of one caption are correlated, so that images are resampled, not mentions.
    """
    size = int(images.max()) + 1
    weights = np.concatenate(list(bootstrap_weights(size, draws, seed)))
    counts = [weights @ np.bincount(images[kind], minlength=size) for kind in (positive, ~positive)]
    pairs = np.where(counts[0] * counts[1] > 0, counts[0] * counts[1], np.nan)
    wins = {name: image_wins(scores, positive, images) for name, scores in columns.items()}
    return {name: (weights @ table * weights).sum(1) / pairs for name, table in wins.items()}


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
    from sklearn.metrics import roc_curve

    mentions = [(image, answer, mention) for image, answer, named in answers for mention in named]
    names, images = np.unique([image for image, _, _ in mentions], return_inverse=True)
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
            "roc": [axis.round(5).tolist() for axis in roc_curve(positive, scores)[:2]],
        }
    return {
        "images": len(answers),
        "images_with_mentions": len(names),
        "mentions": {kind: int(inside.sum()) for kind, inside in kinds.items()},
        "draws": draws,
        "scores": found,
        "values": {kind: columns["similarity"][inside].tolist() for kind, inside in kinds.items()},
    }
