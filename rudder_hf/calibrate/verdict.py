"""What held-out images show of settings, and whether these may be called calibrated.

Settings are calibrated if all of this holds on images that were not used for choosing them:

- hallucination is shown to be lower: the paired 95 % interval of the change against vanilla lies below 0, and the
  paired p-value is at most 0.05, because on few images the interval of a bootstrap is too narrow. The metric is
  CHAIR_I for settings that were chosen by F1, else the CHAIR that they were chosen by;
- and lower than by saying less: so is the change against vanilla's captions cut to the same recall
  (`rudder_hf.metrics.truncation`). Where recall does not fall they are uncut, and this is the first condition again;
- F1 is not shown to be lower: its paired 95 % interval does not lie below 0;
- the estimate of recall is not below the floor.

With 36 settings that do nothing, 100 images to choose with and 100 to check with, this calls few of the choices
calibrated: `benchmarks/null_calibration.py` counts them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ..evaluate.scoring import Scored
from ..evaluate.statements import LEVEL, control_in_words
from ..metrics.statistics import Metric, compare, interval
from ..metrics.truncation import CONTROL_METRICS, cut_to_recall
from ..runtime.report import change_in_points, p_value
from .choice import CHAIR_MEAN, LABELLED, METRICS, OBJECTIVES, Choice
from .settings import VANILLA, Setting

_SAME = 1e-6  # rows have six decimals

HeldOut = Sequence[Mapping[str, Any]]
"""Rows of the held-out images, as JSON values."""


def held_out_rows(
    scored: Mapping[Setting, Scored],
    others: Mapping[str, Mapping[Setting, Scored]],
    best: Setting | None,
    bootstrap: int,
    seed: int,
) -> list[dict[str, Any]]:
    """Scores of settings on the held-out images with intervals, and their paired differences to something else.

    Args:
        scored: Vanilla and the settings that are checked.
        others: By name of the difference, what is subtracted from each setting, such as "minus_vanilla".
        best: The chosen setting.
        bootstrap: Number of draws.
        seed: Of the draws.
    """
    rows = []
    for setting, found in scored.items():
        row: dict[str, Any] = {"settings": None if setting == VANILLA else setting.record(), "chosen": setting == best}
        differences = {
            name: _rounded(_minus(found, other[setting], bootstrap, seed))
            for name, other in others.items()
            if setting in other
        }
        scores = interval(found.counts, _metrics(found), bootstrap, seed)
        rows.append(row | {"scores": _rounded(scores)} | differences)
    return rows


def truncated(vanilla: Scored, steered: Scored) -> Scored:
    """The truncated control of a setting: vanilla's captions cut to its recall."""
    return Scored(cut_to_recall(vanilla.details, steered.counts).counts, CONTROL_METRICS)


def _metrics(scored: Scored) -> tuple[Metric, ...]:
    """What is known of some answers, with the mean of both CHAIRs."""
    return (*scored.metrics, CHAIR_MEAN) if METRICS["chair_s"] in scored.metrics else scored.metrics


def _minus(found: Scored, other: Scored, bootstrap: int, seed: int) -> dict[str, Any]:
    """Paired differences of every metric that both have."""
    metrics = [metric for metric in _metrics(found) if metric in _metrics(other)]
    columns = [column for column in found.counts.columns if column in other.counts.columns]
    return compare(other.counts.only(columns), found.counts.only(columns), metrics, bootstrap, seed)


def _rounded(found: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Estimates or differences by metric, as JSON values."""
    return {name: {key: round(v, 6) for key, v in asdict(value).items()} for name, value in found.items()}


def held_out_row(held_out: HeldOut, setting: Setting | None) -> Mapping[str, Any]:
    """What the held-out images say of a setting; empty if it was not checked."""
    return next((row for row in held_out if setting and row["settings"] == setting.record()), {})


def is_uncut(row: Mapping[str, Any]) -> bool:
    """Whether the truncated control of a row is vanilla uncut: the setting recalls as much or more."""
    recall = row["minus_vanilla"]["recall"]
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


def refusal(choice: Choice[Setting], held_out: HeldOut, limits: Mapping[str, float]) -> str:
    """Why what a choice found is not called calibrated: everything that is missing; empty if nothing is."""
    if choice.best is None:
        return "no setting within the limits is better than vanilla"
    if choice.objective not in LABELLED:
        return "the criterion without labels chose them; it is no measurement of hallucination"
    row = held_out_row(held_out, choice.best)
    if not row:
        return "there were no held-out images to check them on"
    missing = []
    found, metric, floor = row["minus_vanilla"], shown_by(choice.objective), limits["recall_floor"]
    change, less = found[metric.name], row["minus_truncated"][metric.name]
    if why := doubts(change):
        missing.append(f"{metric.label} is not shown to fall ({change_in_points(change)}: {why})")
    if (why := doubts(less)) and not is_uncut(row):
        against = f"{change_in_points(less)} against {control_in_words(uncut=False)}"
        missing.append(f"{metric.label} is not shown to fall by more than by saying less ({against}: {why})")
    if found["f1"]["high"] < 0:
        missing.append(f"F1 falls ({change_in_points(found['f1'])})")
    before, after = found["recall"]["left"], found["recall"]["right"]
    if after < floor * before - _SAME:
        missing.append(f"recall is {after / before:.2%} of vanilla's, below the floor of {floor:.0%}")
    return f"on the held-out images {', and '.join(missing)}" if missing else ""


def shown_in_words(record: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """What lets settings without a refusal be called calibrated, from their record and their held-out row."""
    metric, recall = shown_by(record["metric"]), row["minus_vanilla"]["recall"]
    fall, less = (
        change_in_points(change) + (f", p {p_value(change['p_value'])}" if "p_value" in change else "")
        for change in (row[name][metric.name] for name in ("minus_vanilla", "minus_truncated"))
    )
    also = "" if is_uncut(row) else f", also against {control_in_words(uncut=False)} ({less})"
    return (
        f"on {len(record['held_out_images'])} held-out images {metric.label} falls ({fall}){also}, F1 is not shown to "
        f"fall, and recall keeps the floor ({change_in_points(recall)}); "
        f"look {record['held_out_looks']} of this folder at these images"
    )


def less_in_words(objective: str, row: Mapping[str, Any]) -> str:
    """Whether settings do more on the held-out images than saying less would; empty if that is not known."""
    metric = shown_by(objective)
    if metric.name not in row.get("minus_truncated", {}):
        return ""
    change, uncut = row["minus_truncated"][metric.name], is_uncut(row)
    worse = change["low"] > 0 and change.get("p_value", 0.0) <= LEVEL
    if worse or not doubts(change):
        meaning = ("worse" if worse else "lower") + ("" if uncut else " than by saying less")
    else:
        meaning = "which holds 0" if change["low"] <= 0 <= change["high"] else f"but {doubts(change)}"
        meaning += "" if uncut else ": saying less may be all of it"
    return f"{metric.label} against {control_in_words(uncut)}: {change_in_points(change)}, {meaning}"
