"""What a calibration with labels says of the rules that need none: the fluency limit and the choice by grounding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..metrics.statistics import Counts
from .scoring import OBJECTIVES, Limits
from .selection import Candidate, Choice
from .store import UNSTEERED

RISES = (0.01, 0.02, 0.03, 0.05, 0.1, 0.2)
ENOUGH = 0.8
"""Share of the gain that the criterion without labels has to keep to be called good enough."""


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's rank correlation, ties by their mean rank; 0 if either does not vary."""
    left, right = _ranks(one), _ranks(other)
    left, right = left - left.mean(), right - right.mean()
    scale = float(np.sqrt((left**2).sum() * (right**2).sum()))
    return float((left * right).sum()) / scale if scale else 0.0


def _ranks(values: Sequence[float]) -> Any:
    array = np.asarray(values, dtype=np.float64)
    below = (array[:, None] > array[None, :]).sum(1)
    equal = (array[:, None] == array[None, :]).sum(1)
    return below + (equal - 1) / 2


def fluency_evidence(counts: Mapping[Candidate, Counts], limits: Limits) -> dict[str, Any] | None:
    """How the limit on the likelihood relates to broken sentences, where those can be counted.

    Args:
        counts: Of vanilla and of all settings, also of those dropped early on the pictures that they got to.
        limits: The limits of the run.

    Returns:
        The rank correlation of the rise of the negative log-likelihood with the share of broken sentences over
        settings, and for several limits how many settings are within and what they break; None without a grammar.
    """
    vanilla = counts[UNSTEERED]
    if "broken_sentences" not in vanilla.columns:
        return None
    rows = []
    for candidate, own in counts.items():
        if candidate == UNSTEERED:
            continue
        sums, before = own.total(), vanilla.ordered(own.ids).total()
        rise = _nll(sums) - _nll(before)
        recall = _share(sums, "found", "truth") / max(_share(before, "found", "truth"), 1e-9)
        rows.append((rise, _share(sums, "broken_sentences", "scene_sentences"), recall >= limits.recall_floor))
    if len(rows) < 3:
        return None
    table = []
    for limit in (*sorted({*RISES, limits.nll_rise}), None):
        broken = [b for rise, b, recall in rows if recall and (limit is None or rise <= limit)]
        if broken:
            found = {"settings": len(broken), "mean_broken": float(np.mean(broken)), "most_broken": max(broken)}
            table.append({"nll_rise": limit, **{k: round(v, 6) for k, v in found.items()}})
    return {
        "settings": len(rows),
        "rank_correlation": round(rank_correlation([r for r, _, _ in rows], [b for _, b, _ in rows]), 4),
        "vanilla_broken": round(_share(vanilla.total(), "broken_sentences", "scene_sentences"), 6),
        "at_recall_floor": table,
    }


def label_free_evidence(
    counts: Mapping[Candidate, Counts], labelled: Choice, free: Choice, limits: Limits
) -> dict[str, Any]:
    """How close the choice without labels comes to the one with labels, on the same pictures.

    Returns:
        The rank correlation of the two objectives over the settings that the rule without labels may choose from; the
        share of the labelled choice's gain that its choice keeps; its recall relative to vanilla's; and whether that
        is good enough: 80 % of the gain, within the recall floor.
    """
    judge = OBJECTIVES[labelled.objective]
    truth = [float(judge(counts[c].total())) for c in free.feasible]
    guess = [float(OBJECTIVES["grounding"](counts[c].total())) for c in free.feasible]
    chosen = counts[free.best or UNSTEERED].total()
    possible, reached = labelled.vanilla - labelled.score, labelled.vanilla - float(judge(chosen))
    kept = reached / possible if possible > 0 else 0.0
    recall = _share(chosen, "found", "truth") / max(_share(counts[UNSTEERED].total(), "found", "truth"), 1e-9)
    return {
        "settings": len(truth),
        "rank_correlation": round(rank_correlation(truth, guess), 4) if len(truth) > 2 else None,
        "share_of_gain": round(kept, 4),
        "recall": round(recall, 4),
        "same_choice": free.best == labelled.best,
        "good_enough": bool(kept >= ENOUGH and recall >= limits.recall_floor),
    }


def _nll(sums: Any) -> float:
    return -float(sums["log_likelihood"]) / max(float(sums["tokens"]), 1.0)


def _share(sums: Any, part: str, whole: str) -> float:
    return float(sums[part]) / max(float(sums[whole]), 1e-9)
