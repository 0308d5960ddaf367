"""The choice: the best of an objective within the limits, how sure that is, and which candidates have no chance.

Early stopping. The choice is made on N images; after m of them a candidate is dropped if, with high confidence, it
will break a limit on all N. Each limit is a margin that has to stay above 0 (`Limits.margins`), a function of sums
over images. Its standard error after m of N images, drawn in random order without replacement, is the jackknife's,
times sqrt(1 - m / N), because images already seen are part of the N. With t the quantile of Student's distribution
with m - 1 degrees of freedom at 1 - delta / looks, the candidate is dropped if

    margin + t * error < 0.

`looks` is the number of times that the rule is applied, so that a candidate which would meet its limit on all images
is wrongly dropped with a chance of about `delta` (Bonferroni over the looks, for each limit). The images are in random
order by construction (`find_data` shuffles with the seed).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any, Generic, TypeVar

import numpy as np

from ..evaluate.scoring import LIKELIHOOD_METRICS, Scored
from ..metrics.chair import CHAIR_METRICS
from ..metrics.errors import InputError
from ..metrics.fluency import BROKEN_METRICS, FLUENCY_METRICS
from ..metrics.statistics import (
    Counts,
    Floats,
    Metric,
    Sums,
    bootstrap_weights,
    percentile_interval,
    ratio,
    scores,
    share,
)

C = TypeVar("C", bound=Hashable)
"""A candidate: a `Setting`, or whatever else names what was run."""

DELTA = 0.01
# Scores closer than this are the same score: sums of integers divided by integers differ by more.
_SAME = 1e-9
_LOOKS = (0.25, 0.5, 0.75)
_LEAST = 20  # images before the first look
_BLOCK = 200  # draws that are judged at a time, which bounds the memory


# Objectives and limits


def _grounding(sums: Sums) -> Floats:
    return ratio(sums["log_likelihood"] - sums["contrast"], sums["tokens"])


GROUNDING = Metric("grounding", "Grounding", _grounding, True, "nats")
METRICS = {
    metric.name: metric
    for metric in (*CHAIR_METRICS, *FLUENCY_METRICS, *BROKEN_METRICS, *LIKELIHOOD_METRICS, GROUNDING)
}
"""Whatever is said about captions of a setting, by name."""

_chair_s, _chair_i, _recall, _distinct, _log_likelihood = (
    METRICS[name].compute for name in ("chair_s", "chair_i", "recall", "distinct_2", "log_likelihood")
)
_length = share("words", "answers")

CHAIR_MEAN = Metric(
    "chair_mean", "mean of CHAIR_S and CHAIR_I", lambda sums: (_chair_s(sums) + _chair_i(sums)) / 2, False
)
OBJECTIVES = {
    "f1": METRICS["f1"],
    # The paper does not say which CHAIR it minimises.
    "paper": CHAIR_MEAN,
    "mean": CHAIR_MEAN,
    "chair_s": METRICS["chair_s"],
    "chair_i": METRICS["chair_i"],
    "grounding": GROUNDING,
}
"""What settings can be chosen by: the most of F1 or grounding, the least of the others."""
LABELLED = tuple(name for name in OBJECTIVES if name != "grounding")
"""The objectives that need a ground truth."""


def in_words(objective: str) -> str:
    """What is looked for: "most F1", "least CHAIR_S"."""
    metric = OBJECTIVES[objective]
    return f"{'most' if metric.higher_is_better else 'least'} {metric.label}"


def loss(objective: str, sums: Sums) -> Floats:
    """An objective such that less is better."""
    metric = OBJECTIVES[objective]
    return -metric.compute(sums) if metric.higher_is_better else metric.compute(sums)


@dataclass(frozen=True)
class Limits:
    """How much worse than vanilla a setting may be.

    The defaults were set on an embedded model, where broken sentences can be counted, and are no law for others.

    Attributes:
        recall_floor: Least recall as a share of vanilla's; needs labels.
        length_floor: Least number of words as a share of vanilla's; stands in for recall where there are no labels.
        nll_rise: Most that the negative log-likelihood per token under the unsteered model may rise, in nats.
        distinct_drop: Most that the share of distinct word pairs may fall, as a fraction.
    """

    recall_floor: float = 0.95
    length_floor: float = 0.8
    nll_rise: float = 0.05
    distinct_drop: float = 0.05

    def __post_init__(self) -> None:
        for name in ("recall_floor", "length_floor"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name} is {getattr(self, name)}; give a share between 0 and 1, such as 0.95")
        for name in ("nll_rise", "distinct_drop"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InputError(f"{name} is {getattr(self, name)}; give a number from 0 on, such as 0.05")

    def margins(self, sums: Sums, vanilla: Sums, labelled: bool) -> dict[str, Floats]:
        """For each limit how far a setting is from it: below 0 means that it is broken."""
        if labelled:
            first = {"recall": _recall(sums) - self.recall_floor * _recall(vanilla)}
        else:
            first = {"length": _length(sums) - self.length_floor * _length(vanilla)}
        return first | {
            "nll_rise": self.nll_rise - (_log_likelihood(vanilla) - _log_likelihood(sums)),
            "distinct_drop": self.distinct_drop - (_distinct(vanilla) - _distinct(sums)),
        }

    def record(self, labelled: bool) -> dict[str, float]:
        """The limits that apply, as JSON values."""
        return {k: v for k, v in asdict(self).items() if k != ("length_floor" if labelled else "recall_floor")}


# The choice


@dataclass(frozen=True)
class Choice(Generic[C]):
    """What was chosen and how sure that is.

    Attributes:
        best: The chosen candidate; None if no candidate within the limits is better than vanilla.
        objective: What it was chosen by, one of `OBJECTIVES`.
        score: The chosen one's objective, on the images it was chosen on.
        vanilla: The unsteered model's.
        feasible: The candidates that may be chosen, best first: within the limits, and safely so.
        broken: The limits that candidates break on these images.
        unsafe: Candidates within the limits on these images, but not in enough bootstrap draws of them, and in which
            share of the draws they are.
        wins: Share of bootstrap draws in which a candidate would have been chosen; vanilla under None.
        plateau: Feasible candidates that cannot be told from the chosen one (paired 95 % interval holds 0).
        out_of_bag: Change against vanilla of what each draw chose, on the images that were not in the draw: the gain
            without the optimism of choosing and measuring on the same images. Mean and 95 % interval.
    """

    best: C | None
    objective: str
    score: float
    vanilla: float
    feasible: list[C]
    broken: dict[C, list[str]]
    unsafe: dict[C, float]
    wins: dict[C | None, float]
    plateau: list[C]
    out_of_bag: tuple[float, float, float]

    def entry(self, candidate: C | None, scored: Scored, dropped: str | None = None) -> dict[str, Any]:
        """Scores of a candidate, or of vanilla, which is None, and what became of it, as JSON values."""
        entry = scores_entry(scored) | ({"dropped": dropped} if dropped else {})
        entry["objective"] = round(float(OBJECTIVES[self.objective].compute(scored.counts.total())), 6)
        if candidate is not None:
            entry["breaks"] = self.broken.get(candidate, [])
        if candidate in self.unsafe:
            entry["limits_held_in_draws"] = round(self.unsafe[candidate], 4)
        entry["won_draws"] = round(self.wins.get(candidate, 0.0), 4)
        return entry | {"plateau": candidate in self.plateau, "chosen": candidate == self.best}


def choose(
    candidates: Mapping[C, Counts],
    vanilla: Counts,
    objective: str,
    limits: Limits,
    labelled: bool,
    bootstrap: int = 2000,
    seed: int = 0,
    confidence: float = 0.0,
) -> Choice[C]:
    """Choose among candidates that were all run on the same images as vanilla.

    The best candidate tends to lie at the edge of a limit, where luck decides on which side it is found. So it also
    has to be within the limits in a share of `confidence` of the bootstrap draws of the images.

    Args:
        candidates: Their counts, in the order of preference among equals.
        vanilla: The unsteered model's.
        objective: What to choose by, one of `OBJECTIVES`.
        limits: What a candidate must not break.
        labelled: Whether recall is known.
        bootstrap: Number of draws.
        seed: Of the draws.
        confidence: Share of the draws in which the limits have to hold.
    """
    # Vanilla, in place 0, is within every limit and wins ties.
    order: list[C | None] = [None, *candidates]
    ids = vanilla.ids
    values = np.stack([vanilla.values, *(counts.ordered(ids).values for counts in candidates.values())])
    judge = _Judge(values, vanilla.columns, objective, limits, labelled)
    losses, within, margins = judge(np.ones((1, len(ids))))
    drawn, drawn_within, left_out = judge.drawn(bootstrap, seed)
    held = drawn_within.mean(1)
    safe = within[:, 0] & (held >= confidence)
    safe[0] = True
    winner = int(_winners(losses, safe[:, None])[0])
    won = _winners(drawn, drawn_within & safe[:, None])
    counted = np.bincount(won, minlength=len(order))
    sign = -1 if OBJECTIVES[objective].higher_is_better else 1  # from losses back to scores
    change = sign * (left_out[won, np.arange(bootstrap)] - left_out[0])
    worse = np.quantile(drawn - drawn[winner], 0.025, axis=1) > 0
    places = {candidate: place for place, candidate in enumerate(order) if candidate is not None}
    return Choice(
        best=order[winner],
        objective=objective,
        score=sign * float(losses[winner, 0]),
        vanilla=sign * float(losses[0, 0]),
        feasible=sorted((c for c, p in places.items() if safe[p]), key=lambda c: float(losses[places[c], 0])),
        broken={
            c: [name for name, margin in margins.items() if margin[p, 0] < -_SAME]
            for c, p in places.items()
            if not within[p, 0]
        },
        unsafe={c: float(held[p]) for c, p in places.items() if within[p, 0] and not safe[p]},
        wins={order[place]: float(count / bootstrap) for place, count in enumerate(counted) if count},
        plateau=[c for c, p in places.items() if safe[p] and p != winner and not worse[p]],
        out_of_bag=(float(change.mean()), *percentile_interval(change)),
    )


class _Judge:
    """Objective and limits of all candidates, vanilla first, for many weightings of the images at once."""

    def __init__(self, values: Floats, columns: Sequence[str], objective: str, limits: Limits, labelled: bool) -> None:
        self.places, self.size, _ = values.shape
        self.columns = columns
        self._flat = np.ascontiguousarray(values.transpose(1, 0, 2)).reshape(self.size, -1)
        self.objective, self.limits, self.labelled = objective, limits, labelled

    def __call__(self, weights: Floats) -> tuple[Floats, Any, dict[str, Floats]]:
        """Losses, whether within the limits, and margins: (candidates, draws) each."""
        sums = (weights @ self._flat).reshape(len(weights), self.places, len(self.columns)).transpose(2, 1, 0)
        by_column = dict(zip(self.columns, sums, strict=True))
        vanilla = {name: column[:1] for name, column in by_column.items()}
        margins = self.limits.margins(by_column, vanilla, self.labelled)
        within = np.logical_and.reduce([margin >= -_SAME for margin in margins.values()])
        within[0] = True
        return loss(self.objective, by_column), within, margins

    def drawn(self, draws: int, seed: int) -> list[Any]:
        """Of bootstrap draws: losses, whether within the limits, and losses on the images that were left out."""
        blocks = []
        for weights in bootstrap_weights(self.size, draws, seed):
            for start in range(0, len(weights), _BLOCK):
                part = weights[start : start + _BLOCK]
                blocks.append((*self(part)[:2], self((part == 0).astype(np.float64))[0]))
        return [np.concatenate(parts, axis=1) for parts in zip(*blocks, strict=True)]


def _winners(losses: Floats, within: Any) -> Any:
    """The best place within the limits for each draw; the first, which is preferred, among equals."""
    allowed = np.where(within, losses, np.inf)
    return (allowed <= allowed.min(0) + _SAME).argmax(0)


def scores_entry(scored: Scored) -> dict[str, Any]:
    """Every metric and the number of images that it is about, as JSON values."""
    values = {name: round(value, 6) for name, value in scores(scored.counts, scored.metrics).items()}
    return {"images": len(scored.counts.ids), "scores": values}


# Early stopping


def looks(total: int) -> list[int]:
    """After how many of `total` images candidates may be dropped."""
    return sorted({round(share * total) for share in _LOOKS if _LEAST <= round(share * total) < total})


def student_quantile(probability: float, freedom: int) -> float:
    """Quantile of Student's t by its expansion around the normal one; within 1 % from 19 degrees of freedom on."""
    z = NormalDist().inv_cdf(probability)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def hopeless(
    counts: Counts, vanilla: Counts, limits: Limits, labelled: bool, total: int, delta: float = DELTA
) -> str | None:
    """The name of a limit that a candidate will break on all images, judged by those counted so far.

    Args:
        counts: The candidate's counts on the first images.
        vanilla: The unsteered model's, on the same.
        limits: The limits.
        labelled: Whether recall is known.
        total: Number of images that the choice is made on.
        delta: Chance of dropping a candidate wrongly.

    Returns:
        The limit, or None if the candidate still has a chance, or all images are counted.
    """
    seen = len(counts.ids)
    if seen < 2 or seen >= total:
        return None
    vanilla = vanilla.ordered(counts.ids)
    margins = limits.margins(counts.total(), vanilla.total(), labelled)
    without = limits.margins(_left_out(counts), _left_out(vanilla), labelled)
    t = student_quantile(1 - delta / max(1, len(looks(total))), seen - 1)
    for name, margin in margins.items():
        spread = float(np.square(without[name] - without[name].mean()).sum())
        error = math.sqrt((seen - 1) / seen * spread * (1 - seen / total))
        if float(margin) + t * error < 0:
            return name
    return None


def _left_out(counts: Counts) -> dict[str, Floats]:
    """The sums without each image in turn."""
    rest = counts.values.sum(0) - counts.values
    return {column: rest[:, place] for place, column in enumerate(counts.columns)}
