"""The choice: the best candidate by an objective within the limits. Every method is chosen for by the same rule."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from ..evaluate.result import LIKELIHOOD_METRICS
from ..metrics.chair import CHAIR_METRICS
from ..metrics.statistics import Counts, Floats, Metric, Sums, bootstrap_weights, share
from ..metrics.words import BROKEN_METRICS, FLUENCY_METRICS
from ..runtime.errors import InputError

C = TypeVar("C", bound=Hashable)
"""A candidate: whatever names what was run."""

METRICS = {metric.name: metric for metric in (*CHAIR_METRICS, *FLUENCY_METRICS, *BROKEN_METRICS, *LIKELIHOOD_METRICS)}
"""Whatever is said about captions of a candidate, by name."""

_chair_s, _chair_i, _recall, _f1, _distinct, _repeated = (
    METRICS[name].compute for name in ("chair_s", "chair_i", "recall", "f1", "distinct_2", "repeated_mentions")
)
_length = share("words", "answers")

# The paper does not say which CHAIR it minimises.
CHAIR_MEAN = Metric(
    "chair_mean", "mean of CHAIR_S and CHAIR_I", lambda sums: (_chair_s(sums) + _chair_i(sums)) / 2, False
)
OBJECTIVES = {"paper": CHAIR_MEAN, "f1": METRICS["f1"], "grounding": METRICS["grounding"]}
"""What candidates are chosen by: the least CHAIR, which is the paper's rule, or the most F1 or grounding."""

# Scores closer than this are the same score: sums of integers divided by integers differ by more.
_SAME = 1e-9


def in_words(objective: str) -> str:
    """What is looked for: "most F1", "least mean of CHAIR_S and CHAIR_I"."""
    metric = OBJECTIVES[objective]
    return f"{'most' if metric.higher_is_better else 'least'} {metric.label}"


@dataclass(frozen=True)
class Rule:
    """What a candidate is chosen by, and what it must not break.

    There is no limit on likelihood under the unsteered model: an object that is there and was not expected is unlikely
    by nature, so that such a limit forbids the very effect. Broken text shows in the other limits.
    """

    objective: str = "paper"
    recall_floor: float = 0.95  # least recall, as a share of vanilla's
    length_floor: float = 0.8  # least number of words as a share of vanilla's, where recall is not known
    distinct_drop: float = 0.05  # most that the share of distinct word pairs may fall
    repeated_rise: float = 0.03  # most that the share of repeated mentions may rise
    confidence: float = 0.8  # share of bootstrap draws of the images in which these limits have to hold
    bootstrap: int = 2000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise InputError(f"there is no objective {self.objective!r}; choose one of {', '.join(OBJECTIVES)}")
        for name in ("recall_floor", "length_floor", "distinct_drop", "repeated_rise", "confidence"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name} is {getattr(self, name)}; give a share between 0 and 1, such as 0.95")

    @property
    def labelled(self) -> bool:
        """Whether the objective needs a ground truth."""
        return self.objective != "grounding"

    def margins(self, sums: Sums, vanilla: Sums) -> dict[str, Floats]:
        """For each limit how far candidates are from it: below 0 means that it is broken."""
        distinct = self.distinct_drop - (_distinct(vanilla) - _distinct(sums))
        if not self.labelled:
            return {"length": _length(sums) - self.length_floor * _length(vanilla), "distinct pairs": distinct}
        return {
            "recall": _recall(sums) - self.recall_floor * _recall(vanilla),
            "distinct pairs": distinct,
            "repeated mentions": self.repeated_rise - (_repeated(sums) - _repeated(vanilla)),
        }

    def loss(self, sums: Sums) -> Floats:
        """The objective such that less is better."""
        metric = OBJECTIVES[self.objective]
        return -metric.compute(sums) if metric.higher_is_better else metric.compute(sums)

    def record(self) -> dict[str, Any]:
        """The rule as JSON values, without the limit that does not apply."""
        return {k: v for k, v in asdict(self).items() if k != ("length_floor" if self.labelled else "recall_floor")}


@dataclass(frozen=True)
class Choice(Generic[C]):
    """What was chosen."""

    best: C | None  # None if no candidate within the limits is better than vanilla
    score: float  # the chosen one's objective, on the images it was chosen on
    vanilla: float  # the unsteered model's
    broken: dict[C, list[str]]  # why candidates could not be chosen


def choose(candidates: Mapping[C, Counts], vanilla: Counts, rule: Rule) -> Choice[C]:
    """Choose among candidates that were all run on the same images as vanilla.

    The best candidate tends to lie at the edge of a limit, where luck decides on which side it is found. So it also
    has to be within the limits in a share of the bootstrap draws of the images.

    Args:
        candidates: Their counts, in the order of preference among equals.
        vanilla: The unsteered model's.
        rule: What to choose by.
    """
    own = vanilla.total()
    losses = {candidate: float(rule.loss(counts.total())) for candidate, counts in candidates.items()}
    broken: dict[C, list[str]] = {}
    for candidate, counts in candidates.items():
        sums = counts.total()
        reasons = [name for name, margin in rule.margins(sums, own).items() if margin < -_SAME]
        if rule.objective == "paper" and _f1(sums) < _f1(own) - _SAME:
            reasons.append("F1")
        held = 1.0 if reasons else _held(counts, vanilla, rule)
        if held < rule.confidence:
            reasons.append(f"limits in {1 - held:.0%} of bootstrap draws")
        if reasons:
            broken[candidate] = reasons
    # Vanilla is within every limit and wins ties; then the first.
    least = float(rule.loss(own)) - _SAME
    best = None
    for candidate, loss in losses.items():
        if candidate not in broken and loss < least:
            best, least = candidate, loss - _SAME
    sign = -1 if OBJECTIVES[rule.objective].higher_is_better else 1  # from losses back to scores
    score = float(rule.loss(own)) if best is None else losses[best]
    return Choice(best, sign * score, sign * float(rule.loss(own)), broken)


def _held(counts: Counts, vanilla: Counts, rule: Rule) -> float:
    """The share of bootstrap draws of the images in which a candidate keeps the limits."""
    kept = 0
    for weights in bootstrap_weights(len(vanilla.ids), rule.bootstrap, rule.seed):
        drawn, own = (
            dict(zip(c.columns, (weights @ c.values).T, strict=True)) for c in (counts.ordered(vanilla.ids), vanilla)
        )
        margins = rule.margins(drawn, own)
        kept += int(np.logical_and.reduce([margin >= -_SAME for margin in margins.values()]).sum())
    return kept / rule.bootstrap
