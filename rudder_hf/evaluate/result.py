"""The result of an evaluation: typed, versioned, written once and read back as it was."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..metrics.errors import InputError
from ..runtime.store import read_result, to_json

FORMAT = "rudder-evaluation-2"
# The first format had no controls; it is read as a run without them.
_READ = (FORMAT, "rudder-evaluation-1")
RESULT_FILE = "result.json"
VANILLA = "vanilla"
"""The method whose captions are cut as a control of the others."""


@dataclass(frozen=True)
class MetricValue:
    """One number.

    Attributes:
        label: Its name in tables.
        value: The number, in percent where the unit is "percent".
        direction: "lower" or "higher" is better, or "none" where neither is.
        unit: "percent", "points", "words" or "nats".
        low: Lower end of the 95 % bootstrap interval over images.
        high: Upper end.
    """

    label: str
    value: float
    direction: str
    unit: str
    low: float
    high: float


@dataclass(frozen=True)
class MetricDifference(MetricValue):
    """One method minus another on the same images; the interval is paired.

    Attributes:
        p_value: Of a permutation test that swaps the two answers of an image.
    """

    p_value: float


@dataclass(frozen=True)
class ControlResult:
    """Vanilla's captions cut until their recall is a method's (`rudder_hf.metrics.truncation`).

    Attributes:
        mentions: After how many mentions captions are cut; None if the method recalls as much as vanilla or more.
        shorter: Which share of the captions is cut one mention earlier (before 0.2, how many).
        metrics: Of the cut captions, by name.
        differences: The method minus its control, by metric.
    """

    mentions: int | None
    shorter: float
    metrics: dict[str, MetricValue]
    differences: dict[str, MetricDifference]


@dataclass(frozen=True)
class MethodResult:
    """All numbers of one method.

    Attributes:
        name: The method.
        settings: Its settings.
        metrics: By name, in the order of the tables.
        counts: What the metrics were computed from.
        differences: To the first method of the run, by metric; empty for the first one.
        notes: Counted warnings about its answers.
        control: Of captions: vanilla's, cut to this method's recall; None for vanilla itself and without vanilla.
    """

    name: str
    settings: dict[str, Any]
    metrics: dict[str, MetricValue]
    counts: dict[str, int]
    differences: dict[str, MetricDifference] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    control: ControlResult | None = None


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
        scoring: Lineage or parser, draws of the bootstrap, margin of controls.
        seed: Of the choice of images, of sampling and of the bootstrap.
        image_ids: The images that were evaluated.
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
            InputError: It is not part of the run.
        """
        found = {method.name: method for method in self.methods}
        if name not in found:
            raise InputError(f"there is no method {name!r} in this run; methods: {', '.join(found)}")
        return found[name]

    def to_json(self) -> str:
        """The text of the result file."""
        return to_json(asdict(self))

    @classmethod
    def load(cls, path: str | Path) -> EvaluationResult:
        """Read a result file, or the one in a results folder.

        Raises:
            InputError: It is no result of this format.
        """
        path = Path(path)
        if path.is_dir():
            path = path / RESULT_FILE
        if not path.is_file():
            raise InputError(f"there is no result {path}: the run has not finished, or this is no results folder")
        return read_result(path, cls, _READ, "a result of rudder evaluate")
