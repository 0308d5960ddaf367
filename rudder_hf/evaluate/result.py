"""The result of an evaluation: typed, versioned, written once and read back as it was."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..runtime.errors import InputError
from ..runtime.store import RESULT_FILE, read_result, to_json

FORMAT = "rudder-result-3"
VANILLA = "vanilla"
"""The method whose captions are cut as a control of the others."""


@dataclass(frozen=True)
class MetricValue:
    """One number."""

    label: str  # Its name in tables
    value: float  # The number, in percent where the unit is "percent"
    direction: str  # "lower" or "higher" is better, or "none" where neither is
    unit: str  # "percent", "points", "words" or "nats"
    low: float  # Lower end of the 95 % bootstrap interval over images
    high: float  # Upper end


@dataclass(frozen=True)
class MetricDifference(MetricValue):
    """One method minus another on the same images; the interval is paired."""

    p_value: float  # Of a permutation test that swaps the two answers of an image


@dataclass(frozen=True)
class ControlResult:
    """Vanilla's captions cut until their recall is a method's (`rudder_hf.metrics.truncation`)."""

    # After how many mentions captions are cut; None if the method recalls as much as vanilla or more
    mentions: int | None
    shorter: float  # Which share of the captions is cut one mention earlier
    metrics: dict[str, MetricValue]  # Of the cut captions, by name
    differences: dict[str, MetricDifference]  # The method minus its control, by metric


@dataclass(frozen=True)
class MethodResult:
    """All numbers of one method."""

    name: str  # As tables call it
    method: str  # Which method it is, where `name` says more than that
    settings: dict[str, Any]  # Its settings
    metrics: dict[str, MetricValue]  # By name, in the order of the tables
    counts: dict[str, int]  # What the metrics were computed from
    # To the first method of the run, by metric; empty for the first one
    differences: dict[str, MetricDifference] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # Counted warnings about its answers
    # Of captions: vanilla's, cut to this method's recall; None for vanilla itself and without vanilla
    control: ControlResult | None = None
    # Throughput and the like against vanilla, where they were measured
    cost: dict[str, float] = field(default_factory=dict)
    # Of a control: the method that it is a control of, minus it; what is left is the image's own
    steered_minus: dict[str, MetricDifference] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """A whole run. Everything but `run` is the same however the work was cut up."""

    task: str  # What was asked: "chair", "pope", "mme", "scenes" or "scenes-pope"
    kind: str  # How it was scored: "chair", "pope" or "mme"
    model: dict[str, Any]  # Name, revision of the base, class, parameters, dtype, generation options of its own
    data: dict[str, Any]  # Where samples come from, with a hash of them
    prompt: str  # The prompt, or its form with {question} in it
    decoding: dict[str, Any]  # Name and options
    scoring: dict[str, Any]  # Lineage or parser, draws of the bootstrap
    seed: int  # Of the choice of images, of sampling and of the bootstrap
    image_ids: list[int | str]  # The images that were evaluated
    samples: int  # How many questions each method answered
    methods: list[MethodResult]  # One result for each method
    notes: list[str]  # Counted warnings about the data
    run: dict[str, Any]  # When, how long, with what command, versions and hardware
    format: str = FORMAT  # Version of this layout

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
    def load(cls, path: str | Path) -> Result:
        """Read a result file, or the one in a results folder.

        Raises:
            InputError: It is no result of this format.
        """
        path = Path(path)
        if path.is_dir():
            path = path / RESULT_FILE
        if not path.is_file():
            raise InputError(f"there is no result {path}: the run has not finished, or this is no results folder")
        return read_result(path, cls, FORMAT, "a result of this version of rudder")
