"""Could the trace be used to find hallucinated objects? AUC of what is known at a mention, against the plain
probability of the words, and against nothing but their place in the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .geometry import Floats
from .ranks import auc, bootstrap_auc, interval, roc
from .tokens import Mentioned, Written

SCORES = ("similarity", "gate", "probability", "earliness")
_CURVE = 200  # points of a stored curve


def mention_scores(written: Written, mention: Mentioned) -> dict[str, float]:
    """What is known at a mention: means over its tokens (of the probability, the geometric one).

    Larger is meant to say "grounded" for each; `earliness` is minus the place of the first token.
    """

    def mean(values: list[float]) -> float:
        return float(np.mean([values[place] for place in mention.tokens]))

    logs = [float(np.log(max(chance, 1e-300))) for chance in written.probability]
    return {
        "similarity": mean(written.similarity),
        "gate": mean(written.gate),
        "probability": float(np.exp(mean(logs))),
        "earliness": -float(mention.tokens[0]),
    }


def detector(
    answers: Sequence[tuple[str, Written, Sequence[Mentioned]]], draws: int = 2000, seed: int = 0
) -> dict[str, Any]:
    """How well each score tells grounded from hallucinated mentions.

    Args:
        answers: For each picture its id, the answer, and what it names.
        draws: Of the bootstrap over pictures.
        seed: Of the bootstrap.

    Raises:
        ValueError: There are no mentions of one of the two kinds.
    """
    pictures, grounded, rows = [], [], []
    for picture, written, named in answers:
        for mention in named:
            pictures.append(picture)
            grounded.append(not mention.absent)
            rows.append(mention_scores(written, mention))
    positive = np.asarray(grounded, dtype=bool)
    if positive.all() or not positive.any():
        kind = "hallucinated" if positive.all() else "grounded"
        raise ValueError(f"the answers have no {kind} mention")
    columns = {name: np.asarray([row[name] for row in rows]) for name in SCORES}
    drawn = bootstrap_auc(columns, positive, pictures, draws, seed)
    found: dict[str, Any] = {
        "pictures": len(answers),
        "pictures_with_mentions": len(set(pictures)),
        "mentions": {"grounded": int(positive.sum()), "hallucinated": int((~positive).sum())},
        "draws": draws,
        "scores": {},
    }
    for name, scores in columns.items():
        entry: dict[str, Any] = {"auc": auc(scores, positive), "interval": interval(drawn[name])}
        entry["minus_probability"] = {
            "value": entry["auc"] - auc(columns["probability"], positive),
            "interval": interval(drawn[name] - drawn["probability"]),
        }
        entry["mean"] = {
            "grounded": float(scores[positive].mean()),
            "hallucinated": float(scores[~positive].mean()),
        }
        entry["roc"] = _curve(*roc(scores, positive))
        found["scores"][name] = entry
    found["values"] = {
        "grounded": columns["similarity"][positive].tolist(),
        "hallucinated": columns["similarity"][~positive].tolist(),
    }
    return found


def _curve(wrong: Floats, right: Floats) -> list[list[float]]:
    """So few points of a curve that a figure looks the same."""
    if len(wrong) > _CURVE:
        kept = np.unique(np.linspace(0, len(wrong) - 1, _CURVE).round().astype(int))
        wrong, right = wrong[kept], right[kept]
    return [wrong.round(5).tolist(), right.round(5).tolist()]
