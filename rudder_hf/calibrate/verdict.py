"""What held-out images show of settings, and whether these may be called calibrated.

Settings are calibrated if all of this holds on images that were not used for choosing them:

- hallucination is shown to be lower: the paired 95 % interval of the change against vanilla lies below 0. The metric
  is CHAIR_I for settings that were chosen by F1, else the CHAIR that they were chosen by;
- F1 is not shown to be lower: its paired 95 % interval does not lie below 0, so that saying less is not enough;
- the estimate of recall is not below the floor.

With 36 settings that do nothing, 100 images to choose with and 100 to check with, this calls few of the choices
calibrated: `benchmarks/null_calibration.py` counts them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ..evaluate.scoring import Scored
from ..metrics.statistics import Counts, Metric, compare, interval
from ..runtime.report import with_interval
from .choice import CHAIR_MEAN, LABELLED, METRICS, OBJECTIVES, Choice
from .settings import VANILLA, Setting

_SAME = 1e-6  # rows have six decimals

HeldOut = Sequence[Mapping[str, Any]]
"""Rows of the held-out images, as JSON values."""


def held_out_rows(
    scored: Mapping[Setting, Scored],
    others: Mapping[str, Mapping[Setting, Counts]],
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
        metrics = (*found.metrics, CHAIR_MEAN) if METRICS["chair_s"] in found.metrics else found.metrics
        row: dict[str, Any] = {"settings": None if setting == VANILLA else setting.record(), "chosen": setting == best}
        differences = {
            name: _rounded(compare(counts[setting], found.counts, metrics, bootstrap, seed))
            for name, counts in others.items()
            if setting in counts
        }
        rows.append(row | {"scores": _rounded(interval(found.counts, metrics, bootstrap, seed))} | differences)
    return rows


def _rounded(found: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Estimates or differences by metric, as JSON values."""
    return {name: {key: round(v, 6) for key, v in asdict(value).items()} for name, value in found.items()}


def held_out_row(held_out: HeldOut, setting: Setting | None) -> Mapping[str, Any]:
    """What the held-out images say of a setting; empty if it was not checked."""
    return next((row for row in held_out if setting and row["settings"] == setting.record()), {})


def shown_by(objective: str) -> Metric:
    """The metric whose change on held-out images has to be shown, of settings that were chosen by an objective."""
    return METRICS["chair_i"] if objective == "f1" else OBJECTIVES[objective]


def refusal(choice: Choice[Setting], held_out: HeldOut, limits: Mapping[str, float]) -> str:
    """Why what a choice found is not called calibrated: everything that is missing; empty if nothing is."""
    if choice.best is None:
        return "no setting within the limits is better than vanilla"
    if choice.objective not in LABELLED:
        return "the criterion without labels chose them; it is no measurement of hallucination"
    found = held_out_row(held_out, choice.best).get("minus_vanilla")
    if not found:
        return "there were no held-out images to check them on"
    missing = []
    metric, floor = shown_by(choice.objective), limits["recall_floor"]
    if found[metric.name]["high"] >= 0:
        missing.append(f"{metric.label} is not shown to fall ({_change(found[metric.name])})")
    if found["f1"]["high"] < 0:
        missing.append(f"F1 falls ({_change(found['f1'])})")
    before, after = found["recall"]["left"], found["recall"]["right"]
    if after < floor * before - _SAME:
        missing.append(f"recall is {after / before:.2%} of vanilla's, below the floor of {floor:.0%}")
    return f"on the held-out images {', and '.join(missing)}" if missing else ""


def _change(difference: Mapping[str, float]) -> str:
    value, low, high = (100 * difference[end] for end in ("value", "low", "high"))
    return with_interval(value, low, high, "percent", sign=True)
