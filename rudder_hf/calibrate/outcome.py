"""What a calibration found: the chosen settings as a config with their record, and how all of it is saved."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from ..core.configuration import RudderConfig
from ..evaluate.scoring import Scored
from ..metrics.errors import InputError
from ..metrics.statistics import Counts, ratio
from ..runtime.figures import figures_available
from ..runtime.store import numbered_path, read_json, to_json, write_new
from .choice import METRICS, OBJECTIVES, Choice, Limits
from .settings import VANILLA, Setting
from .verdict import HeldOut, held_out_row, refusal

NUMBERS, REPORT = "calibration.json", "report.md"
# Share of the gain that the criterion without labels has to keep to be called good enough.
_ENOUGH = 0.8
# What a config's record says of the held-out images.
_RECORDED = (
    "chair_s", "chair_i", "chair_mean", "chair_i_distinct", "recall", "precision", "f1", "repeated_mentions",
    "log_likelihood", "distinct_2", "broken_sentences", "repeated_sentences", "length",
)  # fmt: skip


def choice_record(choice: Choice[Setting], held_out: HeldOut, limits: Mapping[str, float]) -> dict[str, Any]:
    """What `RudderConfig.calibration` says of a choice: metric, baseline, result, intervals, and what is missing.

    Settings with a "refusal" are not calibrated.
    """
    best, row = choice.best, held_out_row(held_out, choice.best)

    def recorded(differences: str) -> dict[str, Any]:
        return {name: value for name, value in row.get(differences, {}).items() if name in _RECORDED}

    return {
        "settings": None if best is None else best.record(),
        "refusal": refusal(choice, held_out, limits) or None,
        "metric": choice.objective,
        "baseline": round(choice.vanilla, 6),
        "result": round(choice.score, 6),
        "won_draws": round(choice.wins.get(best, 0.0), 4),
        "out_of_bag_change": [round(value, 6) for value in choice.out_of_bag],
        "held_out": recorded("minus_vanilla"),
        "held_out_minus_truncated": recorded("minus_truncated"),
        "held_out_own_minus_other_card": recorded("own_minus_other_card"),
    }


def judge_label_free(
    counts: Mapping[Setting, Counts], labelled: Choice[Setting], free: Choice[Setting], limits: Limits
) -> dict[str, Any]:
    """How close a choice without labels comes to the one with labels, on the same images.

    Returns:
        The share of the labelled choice's gain that the other keeps; its recall relative to vanilla's; whether both
        chose the same; and whether that is good enough: 80 % of the gain, within the recall floor.
    """
    chosen, vanilla = counts[free.best or VANILLA].total(), counts[VANILLA].total()
    possible = labelled.score - labelled.vanilla
    reached = float(OBJECTIVES[labelled.objective].compute(chosen)) - labelled.vanilla
    kept = reached / possible if possible else 0.0
    found = float(ratio(METRICS["recall"].compute(chosen), METRICS["recall"].compute(vanilla)))
    return {
        "share_of_gain": round(kept, 4),
        "recall": round(found, 4),
        "same_choice": free.best == labelled.best,
        "good_enough": kept >= _ENOUGH and found >= limits.recall_floor,
    }


@dataclass(frozen=True)
class Outcome:
    """What a calibration found.

    Attributes:
        choice: The choice.
        by_mode: If several modes were searched, the choice among each one's settings.
        scored: Counts of vanilla and of every setting that was tried, on the images that it got to.
        numbers: Everything as JSON values, as `calibration.json` has it; report and figures are made of it alone.
    """

    choice: Choice[Setting]
    by_mode: dict[str, Choice[Setting]]
    scored: dict[Setting, Scored]
    numbers: dict[str, Any]

    def config(self, base_model: str | None, revision: str | None, mode: str | None = None) -> RudderConfig:
        """The chosen settings, with the record of how they were found and of what they lack to be called calibrated.

        Args:
            base_model: Hub id or folder of the model.
            revision: Its commit, if it has one.
            mode: The best settings of this mode instead, one of `by_mode`.

        Raises:
            ValueError: Nothing was chosen.
        """
        choice = self.choice if mode is None else self.by_mode[mode]
        record = self.numbers["record"]
        record = record | choice_record(choice, self.numbers["held_out"], record["limits"])
        if choice.best is None:
            raise ValueError(f"there are no settings to write: {record['refusal']}")
        # A record stands for the model that it names, so it names it as the config does.
        record["model"] = record["model"] | ({"name": base_model} if base_model else {})
        return RudderConfig(
            base_model_name_or_path=base_model,
            base_model_revision=revision,
            **choice.best.record(),
            calibration=record,
        )


def save_outcome(outcome: Outcome, out: Path, base_model: str | None, revision: str | None) -> Path:
    """Write everything into a new numbered folder below `out`, or return the one that says the same already.

    Args:
        outcome: What was found.
        out: The calibration's folder.
        base_model: Hub id or folder of the model, for the config.
        revision: Its commit, if it has one.
    """
    from .report import report

    numbers = json.loads(to_json(outcome.numbers))
    for path in sorted(out.glob(f"result-*/{NUMBERS}")):
        if _lasting(read_result(path)) == _lasting(numbers):
            return path.parent
    folder = numbered_path(out, "result")
    folder.mkdir(parents=True)
    if outcome.choice.best is not None:
        outcome.config(base_model, revision).save_pretrained(folder)
    for mode, choice in outcome.by_mode.items():
        if choice.best is not None:
            outcome.config(base_model, revision, mode).save_pretrained(folder / mode)
    write_new(folder / REPORT, report(numbers))
    if figures_available():
        from .figures import save_figures

        save_figures(numbers, folder)
    # Last: a folder with this file is complete.
    write_new(folder / NUMBERS, to_json(numbers))
    return folder


class _Scored(TypedDict):
    scores: dict[str, Any]


class _Numbers(TypedDict):
    model: dict[str, Any]
    record: dict[str, Any]
    layers: list[dict[str, Any]]
    probes: list[_Scored]
    settings: list[_Scored]
    pope: list[dict[str, Any]]


def read_result(path: Path) -> dict[str, Any]:
    """The numbers of a result, from its file, its folder, or the folder of a calibration, whose newest it is.

    Raises:
        InputError: There is none, or it is damaged or of version 0.1.
    """
    if path.is_dir():
        found = [*sorted(path.glob(f"result-*/{NUMBERS}")), *path.glob(NUMBERS)]
        if not found:
            raise InputError(f"{path} has no {NUMBERS}: give the folder of a finished `rudder calibrate`")
        path = found[-1]
    settings = read_json(path, dict[str, Any]).get("settings", [{}])
    if isinstance(settings, list) and not all("images" in row for row in settings if isinstance(row, dict)):
        raise InputError(f"{path} is no result of `rudder calibrate`, or one of version 0.1: calibrate again")
    numbers: dict[str, Any] = read_json(path, _Numbers)
    return numbers


def _lasting(numbers: dict[str, Any]) -> dict[str, Any]:
    """Numbers without what differs between two runs of the same command."""
    kept = {name: value for name, value in numbers.items() if name not in ("seconds", "environment")}
    passing = ("date", "versions", "held_out_looks")
    kept["record"] = {name: value for name, value in numbers["record"].items() if name not in passing}
    return kept
