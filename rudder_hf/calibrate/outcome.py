"""`Outcome`: everything that a calibration found, as tables, as JSON, and as a config that can be pushed."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from ..core.configuration import RudderConfig
from ..metrics.statistics import (
    Counts,
    Difference,
    Metric,
    compare,
    interval,
    scores,
)
from .evidence import fluency_evidence, label_free_evidence
from .heldout import HeldOut
from .layers import LayerStatistics
from .scoring import LABELLED, OBJECTIVES, Limits
from .selection import Candidate, Choice
from .store import UNSTEERED

# A change on the held-out pictures from here on is no gain.
_NOTHING = 0.0
# Recall on the held-out pictures may miss the floor by so much before the settings are refused: by chance it does.
_SLACK = 0.02
# What a config's record says of the held-out pictures.
RECORDED = (
    "chair_s", "chair_i", "chair_i_distinct", "recall", "log_likelihood", "distinct_2", "broken_sentences",
    "repeated_sentences", "length",
)  # fmt: skip


@dataclass
class Outcome:
    """What a calibration found; see `CalibrationOptions` for the fields that repeat them.

    Attributes:
        probes: Counts of the settings that layers were compared by, on the first pictures, vanilla among them.
        counts: Counts of vanilla and of every candidate that was decoded on all pictures.
        dropped: Candidates that were stopped early, and why.
        partial: Their counts, on the pictures that they got to.
        choice: The choice.
        by_mode: If several modes were searched, the choice among each one's settings.
        held_out: Counts of vanilla, the choice and its rivals on the held-out pictures.
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
    by_mode: dict[str, Choice]
    held_out: HeldOut
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
    def changes(self) -> dict[Candidate, dict[str, Difference]]:
        """Each finalist minus vanilla, on the held-out pictures."""
        own = self.held_out.own
        return {
            c: compare(own[UNSTEERED], counts, self.metrics, self.draws, self.seed)
            for c, counts in own.items()
            if c != UNSTEERED
        }

    @cached_property
    def specific(self) -> dict[Candidate, dict[str, Difference]]:
        """Each finalist steered by its own CARD minus steered by another picture's, on the held-out pictures."""
        return {
            c: compare(counts, self.held_out.own[c], self.metrics, self.draws, self.seed)
            for c, counts in self.held_out.other.items()
        }

    @property
    def differences(self) -> dict[str, Difference]:
        """The choice minus vanilla on the held-out pictures."""
        return {} if self.choice.best is None else self.changes.get(self.choice.best, {})

    @property
    def calibrated(self) -> bool:
        """Whether the settings deserve the name: chosen with labels, better than vanilla on held-out pictures."""
        return not self.refusal

    @property
    def refusal(self) -> str:
        """Why the chosen settings are not called calibrated; empty if they are."""
        return self.refusal_of(self.choice)

    def refusal_of(self, choice: Choice) -> str:
        """Why what a choice found is not called calibrated; empty if it is."""
        if choice.best is None:
            return "no setting within the limits is better than vanilla"
        if choice.objective not in LABELLED:
            return "the criterion without labels chose them; it is no measurement of hallucination"
        found = self.changes.get(choice.best)
        if not found:
            return "there were no held-out pictures to check them on"
        if all(found[name].value >= _NOTHING for name in ("chair_s", "chair_i")):
            return "on the held-out pictures neither CHAIR_S nor CHAIR_I is better than vanilla"
        recall = found["recall"]
        if recall.right < self.limits.recall_floor * recall.left - _SLACK:
            return "on the held-out pictures recall is below the floor"
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
            raise ValueError(f"there are no settings to write: {self.refusal_of(choice)}")
        layer, setting = choice.best
        return RudderConfig(
            base_model_name_or_path=base_model,
            base_model_revision=revision,
            layer=layer,
            **setting.record(),
            calibration=None if self.refusal_of(choice) else self.calibration_record(choice),
        )

    def calibration_record(self, choice: Choice | None = None) -> dict[str, Any]:
        """What `RudderConfig.calibration` says: data, ids, metric, baseline, result, interval, versions."""
        choice = choice or self.choice
        best = choice.best
        record: dict[str, Any] = {
            "settings": None if best is None else {"layer": best[0], **best[1].record()},
            "data": self.data,
            "pictures": self.choosing,
            "held_out_pictures": self.checking,
            "prompt": self.prompt,
            "max_new_tokens": self.max_new_tokens,
            "decoding": "greedy",
            "metric": choice.objective,
            "lineage": self.lineage,
            "limits": self.limits.record(self.labelled) | {"confidence": self.confidence},
            "grid": self.grid,
            "layers": self.layers,
            "baseline": round(choice.vanilla, 6),
            "result": round(choice.score, 6),
            "won_draws": round(choice.wins.get(best, 0.0), 4),
            "out_of_bag_change": [round(value, 6) for value in choice.out_of_bag],
            "held_out": self._differences(self.changes, best),
            "held_out_own_minus_other_card": self._differences(self.specific, best),
            "model": {name: self.subject[name] for name in ("name", "revision", "dtype")},
            "versions": {name: version for name, version in self.environment["versions"].items() if version},
            "date": self.finished,
        }
        return record

    @staticmethod
    def _differences(table: dict[Candidate, dict[str, Difference]], best: Candidate | None) -> dict[str, Any]:
        """The scores that a config's record has."""
        found = {} if best is None else table.get(best, {})
        return {name: _rounded(asdict(found[name])) for name in RECORDED if name in found}

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

    @property
    def fluency(self) -> dict[str, Any] | None:
        """How the limit on the likelihood relates to broken sentences, where those can be counted."""
        return fluency_evidence({**self.counts, **self.partial}, self.limits) if self.labelled else None

    @property
    def label_free(self) -> dict[str, Any] | None:
        """How close the choice without labels comes to the one with labels; None if only one of them was made."""
        free = self.without_labels
        return None if free is None else label_free_evidence(self.counts, self.choice, free, self.limits)

    def _label_free_record(self) -> dict[str, Any] | None:
        choice = self.without_labels
        if choice is None:
            return None
        counts = self.counts[choice.best or UNSTEERED]
        scored = _rounded(scores(counts, self.metrics))
        return {"chosen": _plain(choice.best), "scores": scored, "agreement": self.label_free}

    def _held_out_record(self) -> list[dict[str, Any]]:
        """Vanilla and the finalists on the held-out pictures, with intervals."""
        found = []
        for candidate, counts in self.held_out.own.items():
            estimates = interval(counts, self.metrics, self.draws, self.seed)
            entry: dict[str, Any] = {"settings": _plain(candidate), "chosen": candidate == self.choice.best}
            entry["scores"] = {name: _rounded(asdict(value)) for name, value in estimates.items()}
            for name, table in (("minus_vanilla", self.changes), ("own_minus_other_card", self.specific)):
                if candidate in table:
                    entry[name] = {key: _rounded(asdict(value)) for key, value in table[candidate].items()}
            found.append(entry)
        return found

    def to_dict(self) -> dict[str, Any]:
        """All numbers as JSON values."""
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
            "by_mode": {mode: _plain(choice.best) for mode, choice in self.by_mode.items()},
            "held_out": self._held_out_record(),
            "without_labels": self._label_free_record(),
            "fluency": self.fluency,
            "pope": self.pope,
            "seconds": self.seconds,
            "environment": self.environment,
        }


def _plain(candidate: Candidate | None) -> dict[str, Any] | None:
    """A candidate as JSON values; None is vanilla."""
    return None if candidate is None or candidate == UNSTEERED else {"layer": candidate[0], **candidate[1].record()}


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 6) for name, value in values.items()}
