"""The result of a comparison: one row for each method, settings and decoding, and what each method costs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..benchmark.costs import Cost
from ..evaluate.result import MetricDifference, MetricValue
from ..runtime.store import read_json, to_json

FORMAT = "rudder-comparison-1"
Values = dict[str, MetricValue]
Changes = dict[str, MetricDifference]


@dataclass(frozen=True)
class Row:
    """One method with certain settings under one decoding.

    Attributes:
        method: Its name.
        variant: Which settings: "published", "tuned", "calibrated" (RUDDER's own), "control", or nothing to choose.
        decoding: "greedy", "beam" or "nucleus".
        settings: Of the method.
        note: Why there are no numbers, or what has to be known about them.
        metrics: Of captions, by name.
        changes: Against vanilla under the same decoding, paired by image.
        ours: RUDDER minus this method, paired by image; which RUDDER, the comparison says.
        answers: Metrics of yes/no questions.
        answer_changes: Their changes against vanilla.
    """

    method: str
    variant: str
    decoding: str
    settings: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    metrics: Values = field(default_factory=dict)
    changes: Changes = field(default_factory=dict)
    ours: Changes = field(default_factory=dict)
    answers: Values = field(default_factory=dict)
    answer_changes: Changes = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """A whole comparison.

    Attributes:
        title: What was compared on what.
        rows: In the order of the tables.
        costs: One for each method and decoding that was timed.
        reference: The row that `Row.ours` is about, such as "rudder-beta, tuned"; empty if there is none.
        notes: What has to be said below the tables.
        tunings: How settings were chosen, by method.
        record: Model, data, versions, hardware, command.
        format: Version of this layout.
    """

    title: str
    rows: list[Row]
    costs: list[Cost]
    reference: str = ""
    notes: list[str] = field(default_factory=list)
    tunings: dict[str, dict[str, Any]] = field(default_factory=dict)
    record: dict[str, Any] = field(default_factory=dict)
    format: str = FORMAT

    def decodings(self) -> list[str]:
        """Those that there are rows of, in their order."""
        return list(dict.fromkeys(row.decoding for row in self.rows))

    def cost(self, method: str, decoding: str) -> Cost | None:
        """What a method costs; sampling costs what greedy search does."""
        wanted = "beam" if decoding == "beam" else "greedy"
        return next((c for c in self.costs if (c.method, c.decoding) == (method, wanted)), None)

    def to_json(self) -> str:
        """The text of the result file."""
        return to_json(asdict(self))

    @classmethod
    def load(cls, path: str | Path) -> Comparison:
        """Read a result file.

        Raises:
            ValueError: It is not a result of rudder compare.
        """
        record = read_json(Path(path))
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            raise ValueError(f"{path} is not a result of rudder compare ({FORMAT}).")
        comparison: Comparison = read_json(Path(path), cls)
        return comparison
