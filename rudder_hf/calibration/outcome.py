"""`Outcome`: everything that a calibration found, as tables, as JSON, and as a config that can be pushed."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from ..configuration_rudder import RudderConfig
from ..evaluation.statistics import Counts, Difference, Metric, compare, interval, scores
from .layers import LayerStatistics
from .scoring import LABELLED, OBJECTIVES, Limits
from .selection import Candidate, Choice
from .store import UNSTEERED

# Less gain than this on the held-out pictures, at 95 % confidence, is no gain.
_NOTHING = 0.0


@dataclass
class Outcome:
    """What a calibration found; see `CalibrationOptions` for the fields that repeat them.

    Attributes:
        probes: Counts of the settings that layers were compared by, on the first pictures, vanilla among them.
        counts: Counts of vanilla and of every candidate that was decoded on all pictures.
        dropped: Candidates that were stopped early, and why.
        partial: Their counts, on the pictures that they got to.
        choice: The choice.
        checked: Counts of vanilla and of the choice on the held-out pictures.
        metrics: What is reported.
        without_labels: What the criterion without labels would have chosen on the same pictures.
        pope: Results of the check on POPE, by setting.
    """

    subject: dict[str, Any]
    data: dict[str, Any]
    choosing: list[int | str]
    checking: list[int | str]
    labelled: bool
    prompt: str
    max_new_tokens: int
    objective: str
    limits: Limits
    lineage: str
    statistics: list[LayerStatistics]
    layers: list[int]
    reason: str
    grid: dict[str, Any]
    probes: dict[Candidate, Counts]
    counts: dict[Candidate, Counts]
    dropped: dict[Candidate, str]
    partial: dict[Candidate, Counts]
    choice: Choice
    checked: tuple[Counts, Counts] | None
    metrics: tuple[Metric, ...]
    seconds: float
    draws: int
    confidence: float
    seed: int
    environment: dict[str, Any]
    finished: str
    without_labels: Choice | None = None
    pope: list[dict[str, Any]] = field(default_factory=list)

    @cached_property
    def differences(self) -> dict[str, Difference]:
        """The choice minus vanilla on the held-out pictures."""
        if self.checked is None:
            return {}
        return compare(*self.checked, self.metrics, self.draws, self.seed)

    @property
    def calibrated(self) -> bool:
        """Whether the settings deserve the name: chosen with labels, better than vanilla on held-out pictures."""
        return not self.refusal

    @property
    def refusal(self) -> str:
        """Why the settings are not called calibrated; empty if they are."""
        if self.choice.best is None:
            return "no setting within the limits is better than vanilla"
        if self.objective not in LABELLED:
            return "the criterion without labels chose them; it is no measurement of hallucination"
        if not self.differences:
            return "there were no held-out pictures to check them on"
        improved = [self.differences[name] for name in ("chair_s", "chair_i")]
        if all(difference.value >= _NOTHING for difference in improved):
            return "on the held-out pictures neither CHAIR_S nor CHAIR_I is better than vanilla"
        recall = self.differences["recall"]
        if recall.right < self.limits.recall_floor * recall.left - 0.02:
            return "on the held-out pictures recall is below the floor"
        return ""

    def config(self, base_model: str | None, revision: str | None) -> RudderConfig:
        """The chosen settings with the record of how they were found.

        Raises:
            ValueError: Nothing was chosen.
        """
        if self.choice.best is None:
            raise ValueError(f"there are no settings to write: {self.refusal}")
        layer, setting = self.choice.best
        return RudderConfig(
            base_model_name_or_path=base_model,
            base_model_revision=revision,
            layer=layer,
            **setting.record(),
            calibration=self.calibration_record() if self.calibrated else None,
        )

    def calibration_record(self) -> dict[str, Any]:
        """What `RudderConfig.calibration` says: data, ids, metric, baseline, result, interval, versions."""
        record: dict[str, Any] = {
            "data": self.data,
            "pictures": self.choosing,
            "held_out_pictures": self.checking,
            "prompt": self.prompt,
            "max_new_tokens": self.max_new_tokens,
            "decoding": "greedy",
            "metric": self.objective,
            "lineage": self.lineage,
            "limits": self.limits.record(self.labelled) | {"confidence": self.confidence},
            "grid": self.grid,
            "layers": self.layers,
            "baseline": round(self.choice.vanilla, 6),
            "result": round(self.choice.score, 6),
            "won_draws": round(self.choice.wins.get(self.choice.best, 0.0), 4),
            "out_of_bag_change": [round(value, 6) for value in self.choice.out_of_bag],
            "held_out": {
                name: {key: round(value, 6) for key, value in asdict(difference).items()}
                for name, difference in self.differences.items()
                if name in ("chair_s", "chair_i", "recall", "chair_i_distinct", "log_likelihood", "distinct_2")
            },
            "model": {name: self.subject[name] for name in ("name", "revision", "dtype")},
            "versions": {name: version for name, version in self.environment["versions"].items() if version},
            "date": self.finished,
        }
        return record

    def rows(self) -> list[dict[str, Any]]:
        """Every candidate with its scores, as JSON values, vanilla first."""
        norms = {s.layer: s.hidden_norm for s in self.statistics}
        found = []
        for candidate, counts in {**self.counts, **self.partial}.items():
            layer, setting = candidate
            entry: dict[str, Any] = {"vanilla": True} if candidate == UNSTEERED else {"layer": layer}
            if candidate != UNSTEERED:
                entry |= setting.record() | {"relative_strength": round(setting.alpha_max / norms[layer], 4)}
            entry |= {"pictures": len(counts.ids), "scores": _rounded(scores(counts, self.metrics))}
            entry["objective"] = round(float(OBJECTIVES[self.objective](counts.total())), 6)
            if candidate in self.dropped:
                entry["dropped"] = self.dropped[candidate]
            if candidate in self.choice.broken:
                entry["breaks"] = self.choice.broken[candidate]
            if candidate in self.choice.unsafe:
                entry["limits_held_in_draws"] = round(self.choice.unsafe[candidate], 4)
            won = self.choice.wins.get(None if candidate == UNSTEERED else candidate, 0.0)
            entry |= {"won_draws": round(won, 4), "plateau": candidate in self.choice.plateau}
            entry["chosen"] = candidate == self.choice.best
            found.append(entry)
        return found

    def _label_free_record(self) -> dict[str, Any] | None:
        choice = self.without_labels
        if choice is None:
            return None
        best = None if choice.best is None else {"layer": choice.best[0], **choice.best[1].record()}
        counts = self.counts[choice.best or UNSTEERED]
        return {"chosen": best, "scores": _rounded(scores(counts, self.metrics))}

    def to_dict(self) -> dict[str, Any]:
        """All numbers as JSON values."""
        held_out = None
        if self.checked is not None:
            one, two = (interval(c, self.metrics, self.draws, self.seed) for c in self.checked)
            held_out = {
                name: {"vanilla": asdict(one[name]), "chosen": asdict(two[name]), "difference": asdict(difference)}
                for name, difference in self.differences.items()
            }
        return {
            "model": self.subject,
            "calibrated": self.calibrated,
            "refusal": self.refusal,
            "record": self.calibration_record(),
            "layers": [s.record() for s in self.statistics],
            "shortlist": {"layers": self.layers, "reason": self.reason},
            "probes": [
                {
                    **({"vanilla": True} if c == UNSTEERED else {"layer": c[0], **c[1].record()}),
                    "pictures": len(counts.ids),
                    "scores": _rounded(scores(counts, self.metrics)),
                }
                for c, counts in self.probes.items()
            ],
            "settings": self.rows(),
            "held_out": held_out,
            "without_labels": self._label_free_record(),
            "pope": self.pope,
            "seconds": self.seconds,
            "environment": self.environment,
        }


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 6) for name, value in values.items()}
