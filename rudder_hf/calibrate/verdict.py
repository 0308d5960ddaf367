"""What held-out images show of settings, and whether these may be called calibrated.

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
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import NormalDist
from typing import Any

from ..evaluate.result import Scored
from ..evaluate.statements import LEVEL, control_in_words
from ..metrics.statistics import Metric
from ..metrics.truncation import CONTROL_METRICS, cut_to_recall
from ..runtime.report import change_in_points, p_value
from .choice import CHAIR_MEAN, METRICS, OBJECTIVES

_SAME = 1e-6  # records have six decimals
_NOISE = 0.2  # quantile below which a number of images says nothing


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
    if after < floor * before - _SAME:
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
