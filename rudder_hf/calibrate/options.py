"""What is minimised, what a setting must not break, and everything else that a calibration is asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from ..metrics.errors import InputError
from ..metrics.statistics import Floats, Metric, Sums, ratio, share
from .settings import Grid


def _grounding(sums: Sums) -> Floats:
    return ratio(sums["log_likelihood"] - sums["contrast"], sums["tokens"])


def _nll(sums: Sums) -> Floats:
    return -ratio(sums["log_likelihood"], sums["tokens"])


GROUNDING = Metric("grounding", "Grounding", _grounding, True, "nats")
recall = share("found", "truth")
_chair_s, _chair_i = share("hallucinated_captions", "captions"), share("hallucinated_mentions", "mentions")
_distinct, _length = share("distinct_2", "sequences_2"), share("words", "answers")

OBJECTIVES: dict[str, Callable[[Sums], Floats]] = {
    "chair_s": _chair_s,
    "chair_i": _chair_i,
    "mean": lambda sums: (_chair_s(sums) + _chair_i(sums)) / 2,
    # Needs no labels; less is better for all objectives.
    "grounding": lambda sums: -_grounding(sums),
}
LABELLED = ("chair_s", "chair_i", "mean")


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
            if getattr(self, name) < 0:
                raise InputError(f"{name} is {getattr(self, name)}; give 0 or more")

    def margins(self, sums: Sums, vanilla: Sums, labelled: bool) -> dict[str, Floats]:
        """For each limit how far a setting is from it: below 0 means that it is broken."""
        if labelled:
            first = {"recall": recall(sums) - self.recall_floor * recall(vanilla)}
        else:
            first = {"length": _length(sums) - self.length_floor * _length(vanilla)}
        return first | {
            "nll_rise": self.nll_rise - (_nll(sums) - _nll(vanilla)),
            "distinct_drop": self.distinct_drop - (_distinct(vanilla) - _distinct(sums)),
        }

    def record(self, labelled: bool) -> dict[str, float]:
        """The limits that apply, as JSON values."""
        return {k: v for k, v in asdict(self).items() if k != ("length_floor" if labelled else "recall_floor")}


@dataclass(frozen=True)
class CalibrationOptions:
    """How to calibrate.

    Attributes:
        grid: What is tried at each layer.
        layers: Layers to try; None takes a short list.
        shortlist: Length of that list.
        probe: Number of images for the sweep over all layers that the list comes from; 0 uses statistics alone.
        objective: "chair_s", "chair_i", "mean" of both, or "grounding", which needs no labels.
        limits: What a setting must not break.
        lineage: How CHAIR finds objects.
        max_new_tokens: Longest answer; None is the task's own.
        early_stopping: Whether settings without a chance are dropped on the way.
        label_free: Whether to compute the criterion without labels beside the labelled one.
        runners_up: How many settings that come next are checked on the held-out images too.
        batch_size: Largest batch, images times settings.
        bootstrap: Number of draws.
        confidence: In which share of the bootstrap draws a setting has to keep the limits to be chosen.
        seed: Of the bootstrap.
    """

    grid: Grid = field(default_factory=Grid)
    layers: tuple[int, ...] | None = None
    shortlist: int = 3
    probe: int = 40
    objective: str = "mean"
    limits: Limits = field(default_factory=Limits)
    lineage: str = "pattern"
    max_new_tokens: int | None = None
    early_stopping: bool = True
    label_free: bool = False
    runners_up: int = 2
    batch_size: int = 256
    bootstrap: int = 2000
    confidence: float = 0.8
    seed: int = 0

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise InputError(f"there is no objective {self.objective!r}; choose one of {', '.join(OBJECTIVES)}")
        if not 0 <= self.confidence < 1:
            raise InputError(f"confidence is {self.confidence}; give a share from 0 to below 1, such as 0.8")
        for names, least in (("probe", "runners_up"), 0), (("shortlist", "batch_size", "bootstrap"), 1):
            for name in names:
                if getattr(self, name) < least:
                    raise InputError(f"{name} is {getattr(self, name)}; give at least {least}")
