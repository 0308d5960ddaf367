"""How reports and the command line call settings and write numbers."""

from __future__ import annotations

from ..metrics.statistics import Difference, Estimate, Metric
from .selection import Candidate
from .store import UNSTEERED

OBJECTIVE_NAMES = {
    "chair_s": "CHAIR_S",
    "chair_i": "CHAIR_I",
    "mean": "mean of CHAIR_S and CHAIR_I",
    "grounding": "negative grounding",
}
GLOSSARY = (
    "CHAIR_S: share of captions that name an object which is not in the picture. CHAIR_I: share of such objects among "
    "all that are named. Recall: share of the objects in the picture that are named. Log-likelihood: how likely the "
    "answers are to the unsteered model, in nats per token; it falls when sentences break. Vanilla: the unsteered "
    "model."
)


def name(candidate: Candidate | None) -> str:
    """A candidate in words."""
    if candidate is None or candidate == UNSTEERED:
        return "vanilla"
    return f"layer {candidate[0]}, {candidate[1].describe()}"


def number(metric: Metric, value: float, sign: bool = False) -> str:
    """A value of a metric, in percent where that is its unit."""
    digits, factor = {"percent": (1, 100), "nats": (3, 1)}.get(metric.unit, (1, 1))
    return f"{factor * value:{'+' if sign else ''}.{digits}f}"


def with_interval(metric: Metric, value: Estimate | Difference, sign: bool = False) -> str:
    """A value with the ends of its interval."""
    middle, low, high = (number(metric, part, sign) for part in (value.value, value.low, value.high))
    return f"{middle} [{low}, {high}]"
