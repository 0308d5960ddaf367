"""The rule by which settings are chosen, the same for every method, and what held-out images have to show of them.

Settings are calibrated if all of this holds on images that were not used for choosing them:

- hallucination is shown to be lower: the paired 95 % interval of the change against vanilla lies below 0, and the
  paired p-value is at most 0.05, because on few images the interval of a bootstrap is too narrow. The metric is
  CHAIR_I for settings that were chosen by F1, else the mean of both CHAIRs that they were chosen by;
- and lower than by saying less: so is the change against vanilla's captions cut to the same recall
  (`rudder_hf.metrics.truncation`). Where recall does not fall they are uncut, and this is the first condition again;
- F1 is not shown to be lower: its paired 95 % interval does not lie below 0;
- the estimate of recall is not below the floor.

With candidates that do nothing, 100 images to choose with and 100 to check with, this calls few of the choices
calibrated: `benchmarks/null_calibration.py` counts them.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any, Generic, TypeVar

import numpy as np

from ..evaluate.result import LIKELIHOOD_METRICS, Scored
from ..evaluate.statements import LEVEL, control_in_words
from ..metrics.chair import CHAIR_METRICS
from ..metrics.statistics import Counts, Floats, Metric, Sums, bootstrap_weights, share
from ..metrics.truncation import CONTROL_METRICS, cut_to_recall
from ..metrics.words import BROKEN_METRICS, FLUENCY_METRICS
from ..runtime.errors import InputError
from ..runtime.report import change_in_points, p_value

C = TypeVar("C", bound=Hashable)
"""A candidate: whatever names what was run."""

METRICS = {metric.name: metric for metric in (*CHAIR_METRICS, *FLUENCY_METRICS, *BROKEN_METRICS, *LIKELIHOOD_METRICS)}
"""Whatever is said about captions of a candidate, by name."""

_chair_s_of, _chair_i_of, _recall_of, _f1_of, _distinct_of, _repeated_of = (
    METRICS[name].compute for name in ("chair_s", "chair_i", "recall", "f1", "distinct_2", "repeated_mentions")
)
_length_of = share("words", "answers")

# The paper does not say which CHAIR it minimises.
CHAIR_MEAN = Metric(
    "chair_mean", "mean of CHAIR_S and CHAIR_I", lambda sums: (_chair_s_of(sums) + _chair_i_of(sums)) / 2, False
)
OBJECTIVES = {"paper": CHAIR_MEAN, "f1": METRICS["f1"], "grounding": METRICS["grounding"]}
"""What candidates are chosen by: the least CHAIR, which is the paper's rule, or the most F1 or grounding."""

# Scores closer than this are the same score: sums of integers divided by integers differ by more.
_SAME = 1e-9
_RECORD_SAME = 1e-6  # records have six decimals
_NOISE = 0.2  # quantile below which a number of images says nothing


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
        distinct = self.distinct_drop - (_distinct_of(vanilla) - _distinct_of(sums))
        if not self.labelled:
            return {"length": _length_of(sums) - self.length_floor * _length_of(vanilla), "distinct pairs": distinct}
        return {
            "recall": _recall_of(sums) - self.recall_floor * _recall_of(vanilla),
            "distinct pairs": distinct,
            "repeated mentions": self.repeated_rise - (_repeated_of(sums) - _repeated_of(vanilla)),
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
        if rule.objective == "paper" and _f1_of(sums) < _f1_of(own) - _SAME:
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


# What held-out images show


def differences(scored: Sequence[Scored], draws: int, seed: int) -> dict[str, Any]:
    """What a record says of held-out images, by metric: the choice against vanilla, against vanilla's captions cut to
    its recall, and against its control.

    Args:
        scored: Vanilla, the choice, and its control if there is one.
        draws: Of the bootstrap.
        seed: Of the draws.
    """
    vanilla, own, *control = scored
    others = {"held_out": vanilla}
    if vanilla.details:
        others["held_out_minus_truncated"] = Scored(cut_to_recall(vanilla.details, own.counts).counts, CONTROL_METRICS)
    if control:
        others["held_out_own_minus_other_card"] = control[0]
    return {name: _minus(own, other, draws, seed) for name, other in others.items()}


def _minus(found: Scored, other: Scored, draws: int, seed: int) -> dict[str, dict[str, float]]:
    """Paired differences of every metric that both have, as JSON values."""
    mean = [CHAIR_MEAN] if any(metric.name == "chair_s" for metric in other.metrics) else []
    changes = found.changes(other, draws, seed, *mean)
    return {metric.name: {key: round(v, 6) for key, v in asdict(change).items()} for metric, change in changes}


def is_uncut(record: Mapping[str, Any]) -> bool:
    """Whether the truncated control of a record is vanilla uncut: the choice recalls as much or more."""
    recall = record["held_out"]["recall"]
    return bool(recall["right"] >= recall["left"])


def shown_by(objective: str) -> Metric:
    """The metric whose change on held-out images has to be shown, of settings that were chosen by an objective."""
    return METRICS["chair_i"] if objective == "f1" else OBJECTIVES[objective]


def doubts(change: Mapping[str, float]) -> str:
    """Why a recorded change is not shown to be a fall; empty if it is. Old records have no p-value."""
    found = ["its 95 % interval does not lie below 0"] if change["high"] >= 0 else []
    if change.get("p_value", 0.0) > LEVEL:
        found.append(f"its paired p-value is {p_value(change['p_value'])}, above {LEVEL}")
    return " and ".join(found)


def images_needed(change: Mapping[str, float], images: int) -> int | None:
    """How many images would show a fall of this size; None if it is no fall, or nothing but noise.

    Intervals narrow, and quantiles of the test grow, with the root of the number.
    """
    shown = NormalDist().inv_cdf(1 - LEVEL / 2)
    quantile = shown * -2 * change["value"] / max(change["high"] - change["low"], 1e-12)
    if "p_value" in change:
        quantile = min(quantile, NormalDist().inv_cdf(1 - min(max(change["p_value"], 1e-9), 1.0) / 2))
    if quantile < _NOISE:
        return None
    return math.ceil(1.1 * images * (shown / quantile) ** 2)  # a tenth more, for luck


def refusal(record: Mapping[str, Any]) -> str:
    """Why settings are not called calibrated, from their record: everything that is missing; empty if nothing is."""
    if record["settings"] is None:
        return "no setting within the limits is better than vanilla"
    if record["metric"] == "grounding":
        return "the criterion without labels chose them; it is no measurement of hallucination"
    if not record.get("held_out"):
        return "there were no held-out images to check them on"
    found, metric = record["held_out"], shown_by(record["metric"])
    change, less = found[metric.name], record["held_out_minus_truncated"][metric.name]
    missing, images = [], len(record["held_out_images"])
    if why := doubts(change):
        missing.append(f"{metric.label} does not fall significantly ({change_in_points(change)}: {why})")
    if (why := doubts(less)) and not is_uncut(record):
        against = f"{change_in_points(less)} against {control_in_words(uncut=False)}"
        missing.append(f"{metric.label} does not fall significantly more than by saying less ({against}: {why})")
    # The larger number: of the changes that are not shown, all have to be.
    needed = [images_needed(one, images) for one in (change, less) if doubts(one)]
    if needed and all(needed):
        missing[-1] += f"; an effect of this size would show on about {max(n for n in needed if n)} held-out images"
    if found["f1"]["high"] < 0:
        missing.append(f"F1 falls ({change_in_points(found['f1'])})")
    before, after, floor = found["recall"]["left"], found["recall"]["right"], record["limits"]["recall_floor"]
    if after < floor * before - _RECORD_SAME:
        missing.append(f"recall is {after / before:.2%} of vanilla's, below the floor of {floor:.0%}")
    return f"on the held-out images {', and '.join(missing)}" if missing else ""


def shown_in_words(record: Mapping[str, Any]) -> str:
    """What lets settings without a refusal be called calibrated, from their record."""
    metric, recall = shown_by(record["metric"]), record["held_out"]["recall"]
    fall, less = (
        f"{change_in_points(change)}, p {p_value(change['p_value'])}"
        for change in (record[name][metric.name] for name in ("held_out", "held_out_minus_truncated"))
    )
    also = "" if is_uncut(record) else f", also against {control_in_words(uncut=False)} ({less})"
    return (
        f"on {len(record['held_out_images'])} held-out images {metric.label} falls ({fall}){also}, F1 is not shown to "
        f"fall, and recall keeps the floor ({change_in_points(recall)})"
    )
