"""`Outcome`: everything that a calibration found, as JSON and as a config that can be pushed, and how it is saved."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict

from ..core.configuration import RudderConfig
from ..metrics.errors import InputError
from ..metrics.statistics import Counts, Difference, Metric, compare, interval, ratio, scores
from ..runtime.environment import hardware, timestamp, versions
from ..runtime.figures import figures_available
from ..runtime.store import numbered_path, read_json, to_json, write_new
from .choice import Choice
from .data import CalibrationData
from .layers import LayerStatistics
from .options import LABELLED, OBJECTIVES, CalibrationOptions, Limits, recall
from .settings import VANILLA, Setting

NUMBERS, REPORT = "calibration.json", "report.md"
# Recall on the held-out images may miss the floor by so much before the settings are refused: by chance it does.
_SLACK = 0.02
# Share of the gain that the criterion without labels has to keep to be called good enough.
_ENOUGH = 0.8
# What a config's record says of the held-out images.
_RECORDED = (
    "chair_s", "chair_i", "chair_i_distinct", "recall", "log_likelihood", "distinct_2", "broken_sentences",
    "repeated_sentences", "length",
)  # fmt: skip

Differences = dict[Setting, dict[str, Difference]]


@dataclass
class Outcome:
    """What a calibration found.

    Attributes:
        model: Which one was calibrated.
        data: On which images.
        options: How.
        statistics: Of every layer.
        layers: The layers that the grid was tried on.
        reason: Why these.
        probes: Counts of the settings that layers were compared by, on the first images, vanilla first.
        counts: Counts of vanilla and of every setting that was tried, on the images that it got to.
        dropped: Settings that were stopped early, and why.
        metrics: What is reported.
        choice: The choice.
        by_mode: If several modes were searched, the choice among each one's settings.
        without_labels: What the criterion without labels would have chosen on the same images.
        held_out: Counts of vanilla, the choice and its rivals on the held-out images.
        other_card: The same of the choice and its rivals, each image steered by the CARD of another one.
        pope: Results of the check on POPE, by setting.
        seconds: How long this run took.
        finished: When.
    """

    model: dict[str, Any]
    data: CalibrationData
    options: CalibrationOptions
    statistics: list[LayerStatistics]
    layers: list[int]
    reason: str
    probes: dict[Setting, Counts]
    counts: dict[Setting, Counts]
    dropped: dict[Setting, str]
    metrics: tuple[Metric, ...]
    choice: Choice[Setting]
    by_mode: dict[str, Choice[Setting]]
    without_labels: Choice[Setting] | None
    held_out: dict[Setting, Counts]
    other_card: dict[Setting, Counts]
    pope: list[dict[str, Any]]
    seconds: float
    finished: str = field(default_factory=timestamp)

    def compare(self, left: Counts, right: Counts) -> dict[str, Difference]:
        """Right minus left for every metric, paired by image."""
        return compare(left, right, self.metrics, self.options.bootstrap, self.options.seed)

    @cached_property
    def changes(self) -> Differences:
        """Each finalist minus vanilla, on the held-out images."""
        own = self.held_out
        return {s: self.compare(own[VANILLA], counts) for s, counts in own.items() if s != VANILLA}

    @cached_property
    def specific(self) -> Differences:
        """Each finalist steered by an image's own CARD minus steered by another image's, on the held-out images."""
        return {s: self.compare(counts, self.held_out[s]) for s, counts in self.other_card.items()}

    @property
    def differences(self) -> dict[str, Difference]:
        """The choice minus vanilla on the held-out images."""
        return {} if self.choice.best is None else self.changes.get(self.choice.best, {})

    def refusal(self, choice: Choice[Setting] | None = None) -> str:
        """Why what a choice found is not called calibrated; empty if it is."""
        choice = choice or self.choice
        if choice.best is None:
            return "no setting within the limits is better than vanilla"
        if choice.objective not in LABELLED:
            return "the criterion without labels chose them; it is no measurement of hallucination"
        found = self.changes.get(choice.best)
        if not found:
            return "there were no held-out images to check them on"
        if all(found[name].value >= 0 for name in ("chair_s", "chair_i")):
            return "on the held-out images neither CHAIR_S nor CHAIR_I is better than vanilla"
        recall = found["recall"]
        if recall.right < self.options.limits.recall_floor * recall.left - _SLACK:
            return "on the held-out images recall is below the floor"
        return ""

    def config(self, base_model: str | None, revision: str | None, mode: str | None = None) -> RudderConfig:
        """The chosen settings with the record of how they were found.

        Args:
            base_model: Hub id or folder of the model.
            revision: Its commit, if it has one.
            mode: The best settings of this mode instead, one of `by_mode`.

        Raises:
            ValueError: Nothing was chosen.
        """
        choice = self.choice if mode is None else self.by_mode[mode]
        if choice.best is None:
            raise ValueError(f"there are no settings to write: {self.refusal(choice)}")
        record = None
        if not self.refusal(choice):
            # A record stands for the model that it names, so it names it as the config does.
            record = self.calibration_record(choice)
            record["model"]["name"] = base_model or record["model"]["name"]
        return RudderConfig(
            base_model_name_or_path=base_model,
            base_model_revision=revision,
            **choice.best.record(),
            calibration=record,
        )

    def calibration_record(self, choice: Choice[Setting] | None = None) -> dict[str, Any]:
        """What `RudderConfig.calibration` says: data, ids, metric, baseline, result, interval, versions."""
        choice = choice or self.choice
        data, options, best = self.data, self.options, choice.best

        def recorded(table: Differences) -> dict[str, Any]:
            found = {} if best is None else table.get(best, {})
            return {name: _rounded(asdict(found[name])) for name in _RECORDED if name in found}

        return {
            "settings": None if best is None else best.record(),
            "data": data.record,
            "images": [sample.image_id for sample in data.choosing],
            "held_out_images": [sample.image_id for sample in data.checking],
            "prompt": data.choosing[0].prompt,
            "max_new_tokens": options.max_new_tokens or data.task.max_new_tokens,
            "decoding": "greedy",
            "metric": choice.objective,
            "lineage": options.lineage,
            "limits": options.limits.record(data.labelled) | {"confidence": options.confidence},
            "grid": asdict(options.grid),
            "layers": self.layers,
            "baseline": round(choice.vanilla, 6),
            "result": round(choice.score, 6),
            "won_draws": round(choice.wins.get(best, 0.0), 4),
            "out_of_bag_change": [round(value, 6) for value in choice.out_of_bag],
            "held_out": recorded(self.changes),
            "held_out_own_minus_other_card": recorded(self.specific),
            "model": {name: self.model[name] for name in ("name", "revision", "dtype")},
            "versions": {name: version for name, version in versions().items() if version},
            "date": self.finished,
        }

    @property
    def label_free(self) -> dict[str, Any] | None:
        """How close the choice without labels comes to the one with labels; None if only one of them was made."""
        free = self.without_labels
        return None if free is None else judge_label_free(self.counts, self.choice, free, self.options.limits)

    def _entry(self, setting: Setting, counts: Counts) -> dict[str, Any]:
        """A setting and its scores, as JSON values."""
        about = {"vanilla": True} if setting == VANILLA else setting.record()
        return about | {"images": len(counts.ids), "scores": _rounded(scores(counts, self.metrics))}

    def tried(self) -> list[dict[str, Any]]:
        """Every setting that was tried, its scores, and what became of it, as JSON values; vanilla first."""
        return [self._tried(*tried) for tried in self.counts.items()]

    def _tried(self, setting: Setting, counts: Counts) -> dict[str, Any]:
        choice, entry = self.choice, self._entry(setting, counts)
        if setting != VANILLA:
            norm = next(s.hidden_norm for s in self.statistics if s.layer == setting.layer)
            entry["relative_strength"] = round(setting.alpha_max / norm, 4)
        entry["objective"] = round(float(OBJECTIVES[choice.objective](counts.total())), 6)
        if setting in self.dropped:
            entry["dropped"] = self.dropped[setting]
        if setting in choice.broken:
            entry["breaks"] = choice.broken[setting]
        if setting in choice.unsafe:
            entry["limits_held_in_draws"] = round(choice.unsafe[setting], 4)
        entry["won_draws"] = round(choice.wins.get(None if setting == VANILLA else setting, 0.0), 4)
        return entry | {"plateau": setting in choice.plateau, "chosen": setting == choice.best}

    def _checked(self, setting: Setting, counts: Counts) -> dict[str, Any]:
        """A setting on the held-out images, with intervals."""
        estimates = interval(counts, self.metrics, self.options.bootstrap, self.options.seed)
        entry: dict[str, Any] = {"settings": _record(setting), "chosen": setting == self.choice.best}
        entry["scores"] = {name: _rounded(asdict(value)) for name, value in estimates.items()}
        for name, table in (("minus_vanilla", self.changes), ("own_minus_other_card", self.specific)):
            if setting in table:
                entry[name] = {key: _rounded(asdict(value)) for key, value in table[setting].items()}
        return entry

    def to_dict(self) -> dict[str, Any]:
        """All numbers as JSON values."""
        free = self.without_labels
        return {
            "model": self.model,
            "calibrated": not self.refusal(),
            "refusal": self.refusal(),
            "record": self.calibration_record(),
            "layers": [s.record() for s in self.statistics],
            "shortlist": {"layers": self.layers, "reason": self.reason},
            "probes": [self._entry(*probe) for probe in self.probes.items()],
            "settings": self.tried(),
            "by_mode": {mode: _record(choice.best) for mode, choice in self.by_mode.items()},
            "held_out": [self._checked(*checked) for checked in self.held_out.items()],
            "without_labels": free and {"chosen": _record(free.best), "agreement": self.label_free},
            "pope": self.pope,
            "seconds": self.seconds,
            "environment": {"versions": versions(), "hardware": hardware()},
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
    possible = labelled.vanilla - labelled.score
    reached = labelled.vanilla - float(OBJECTIVES[labelled.objective](chosen))
    kept = reached / possible if possible > 0 else 0.0
    found = float(ratio(recall(chosen), recall(vanilla)))
    return {
        "share_of_gain": round(kept, 4),
        "recall": round(found, 4),
        "same_choice": free.best == labelled.best,
        "good_enough": kept >= _ENOUGH and found >= limits.recall_floor,
    }


def _record(setting: Setting | None) -> dict[str, Any] | None:
    """A setting as JSON values; None is vanilla."""
    return None if setting is None or setting == VANILLA else setting.record()


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 6) for name, value in values.items()}


def save_outcome(outcome: Outcome, out: Path, base_model: str | None, revision: str | None) -> Path:
    """Write everything into a new numbered folder below `out`, or return the one that says the same already.

    Args:
        outcome: What was found.
        out: The calibration's folder.
        base_model: Hub id or folder of the model, for the config.
        revision: Its commit, if it has one.
    """
    from .report import report

    numbers = json.loads(to_json(outcome.to_dict()))
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
    write_new(folder / REPORT, report(outcome))
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
    kept["record"] = {name: value for name, value in numbers["record"].items() if name not in ("date", "versions")}
    return kept
