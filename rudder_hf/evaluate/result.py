"""The result of an evaluation: typed, versioned, written once and read back as it was."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..runtime.journal import write_new

FORMAT = "rudder-evaluation-1"
RESULT_FILE = "result.json"


@dataclass(frozen=True)
class MetricValue:
    """One number.

    Attributes:
        label: Its name in tables.
        value: The number, in percent where the unit is "percent".
        direction: "lower" or "higher" is better, or "none" where neither is.
        unit: "percent", "points", "words" or "nats".
        low: Lower end of the 95 % bootstrap interval over pictures.
        high: Upper end.
    """

    label: str
    value: float
    direction: str
    unit: str
    low: float
    high: float


@dataclass(frozen=True)
class MetricDifference:
    """One method minus another on the same pictures.

    Attributes:
        label: The metric's name in tables.
        value: The difference of the metric, in its unit.
        direction: Which sign is better: "lower" or "higher", or "none".
        unit: Of the metric.
        low: Lower end of the paired 95 % bootstrap interval.
        high: Upper end.
        p_value: Of a permutation test that swaps the two answers of a picture.
    """

    label: str
    value: float
    direction: str
    unit: str
    low: float
    high: float
    p_value: float


@dataclass(frozen=True)
class MethodResult:
    """What one method reached.

    Attributes:
        name: The method.
        settings: Its settings.
        metrics: By name, in the order of the tables.
        counts: What the metrics were computed from.
        differences: To the first method of the run, by metric; empty for the first one.
        notes: Counted warnings about its answers.
    """

    name: str
    settings: dict[str, Any]
    metrics: dict[str, MetricValue]
    counts: dict[str, int]
    differences: dict[str, MetricDifference] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> MethodResult:
        """Read what `asdict` wrote."""
        metrics = {name: MetricValue(**value) for name, value in record["metrics"].items()}
        differences = {name: MetricDifference(**value) for name, value in record["differences"].items()}
        return cls(**{**record, "metrics": metrics, "differences": differences})


@dataclass(frozen=True)
class EvaluationResult:
    """A whole run. Everything but `run` is the same however the work was cut up.

    Attributes:
        task: What was asked: "chair", "pope", "mme", "scenes" or "scenes-pope".
        kind: How it was scored: "chair", "pope" or "mme".
        model: Name, revision of the base, class, parameters, dtype, generation options of its own.
        data: Where samples come from, with a hash of them.
        prompt: The prompt, or its form with {question} in it.
        decoding: Name and options.
        scoring: Lineage or parser, samples of the bootstrap.
        seed: Of the choice of pictures, of sampling and of the bootstrap.
        image_ids: The pictures that were evaluated.
        samples: How many questions each method answered.
        methods: One result for each method.
        notes: Counted warnings about the data.
        run: When, how long, with what command, versions and hardware.
        format: Version of this layout.
    """

    task: str
    kind: str
    model: dict[str, Any]
    data: dict[str, Any]
    prompt: str
    decoding: dict[str, Any]
    scoring: dict[str, Any]
    seed: int
    image_ids: list[int | str]
    samples: int
    methods: list[MethodResult]
    notes: list[str]
    run: dict[str, Any]
    format: str = FORMAT

    def method(self, name: str) -> MethodResult:
        """The result of one method.

        Raises:
            ValueError: It is not part of the run.
        """
        for method in self.methods:
            if method.name == name:
                return method
        raise ValueError(
            f"There is no method {name!r} in this run. Methods: {', '.join(m.name for m in self.methods)}."
        )

    def to_json(self) -> str:
        """The text of the result file."""
        return json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n"

    def save(self, path: str | Path) -> Path:
        """Write the result.

        Raises:
            FileExistsError: The file exists; results are never overwritten.
        """
        if not write_new(Path(path), self.to_json()):
            raise FileExistsError(f"{path} exists and results are never overwritten: choose another name.")
        return Path(path)

    @classmethod
    def load(cls, path: str | Path) -> EvaluationResult:
        """Read a result file, or the one in a results folder.

        Raises:
            ValueError: It is no result of this format.
        """
        path = Path(path)
        if path.is_dir():
            path = path / RESULT_FILE
        if not path.is_file():
            raise ValueError(f"There is no result {path}: the run has not finished, or this is no results folder.")
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path} is not JSON: {error}.") from error
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            raise ValueError(f"{path} is not a result of rudder evaluate ({FORMAT}).")
        missing = sorted({entry.name for entry in dataclasses.fields(cls)} - set(record))
        if missing:
            raise ValueError(f"{path} lacks {', '.join(missing)}.")
        return cls(**{**record, "methods": [MethodResult.from_dict(entry) for entry in record["methods"]]})
