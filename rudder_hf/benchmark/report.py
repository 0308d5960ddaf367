"""The result of a benchmark: typed, written as one JSON file that is never overwritten, read back as it was."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .memory import ExtraMemory
from .timing import Ratio, Run

FORMAT = "rudder-benchmark-1"
FILE_PREFIX = "rudder-benchmark"


@dataclass(frozen=True)
class VariantResult:
    """Measurements of one variant.

    Attributes:
        variant: "vanilla", "beta" or "add".
        ms_per_token: Median wall time of `generate` per new token and row.
        decode_ms_per_token: The same without the prefill.
        ratio: Throughput of `generate` relative to vanilla (new tokens per wall time); None for vanilla.
        step_ratio: As `ratio`, by the median decoding step: leaves out prefill and interruptions by other processes.
        cpu_ratio: As `ratio`, by CPU time instead of wall time.
        forwards_per_token: Forward passes of the model per new token.
        operators_per_token: Operators per decoded token, without the prefill.
        added_operators: Names of those that vanilla does not have, in order.
        extra_memory: Bytes beyond vanilla's, for each prompt length.
    """

    variant: str
    ms_per_token: float
    decode_ms_per_token: float
    ratio: Ratio | None
    step_ratio: Ratio | None
    cpu_ratio: Ratio | None
    forwards_per_token: float
    operators_per_token: float
    added_operators: list[str]
    extra_memory: list[ExtraMemory]

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> VariantResult:
        """Read what `asdict` wrote."""
        ratios = {name: _ratio(record[name]) for name in ("ratio", "step_ratio", "cpu_ratio")}
        memory = [ExtraMemory(**entry) for entry in record["extra_memory"]]
        return cls(**{**record, **ratios, "extra_memory": memory})


def _ratio(record: dict[str, Any] | None) -> Ratio | None:
    return None if record is None else Ratio(**{**record, "interval": tuple(record["interval"])})


@dataclass(frozen=True)
class Target:
    """One goal of the project and whether it was met.

    Attributes:
        variant: Which variant it is about.
        name: What is wanted, in words.
        measured: The measured value.
        verdict: "met", "missed", or "undecided" where the goal lies within what the noise of the machine allows.
    """

    variant: str
    name: str
    measured: float
    verdict: str


@dataclass(frozen=True)
class CaseResult:
    """Everything measured on one model.

    Attributes:
        name: The shape's name or the model's id.
        model: Description of the model and RUDDER's settings on it.
        prompt_tokens: Length of the timed prompt.
        variants: One result per variant, vanilla first.
        targets: Goals, where the project has set any for this model.
        runs: All timed runs.
    """

    name: str
    model: dict[str, Any]
    prompt_tokens: int
    variants: list[VariantResult]
    targets: list[Target]
    runs: list[Run]

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> CaseResult:
        """Read what `asdict` wrote."""
        parts = {
            "variants": [VariantResult.from_dict(entry) for entry in record["variants"]],
            "targets": [Target(**entry) for entry in record["targets"]],
            "runs": [Run(**entry) for entry in record["runs"]],
        }
        return cls(**{**record, **parts})


@dataclass(frozen=True)
class BenchmarkReport:
    """A whole benchmark.

    Attributes:
        created: When, in UTC.
        versions: Of Python and packages.
        hardware: The machine.
        settings: What was asked for.
        cases: One result per model.
        format: Version of this layout.
    """

    created: str
    versions: dict[str, str | None]
    hardware: dict[str, Any]
    settings: dict[str, Any]
    cases: list[CaseResult]
    format: str = FORMAT

    def save(self, path: str | Path) -> Path:
        """Write the report.

        Raises:
            FileExistsError: The file exists; results are never overwritten.
        """
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(asdict(self), indent=2) + "\n"
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            raise FileExistsError(f"{path} exists and results are never overwritten: choose another name.") from None
        return path

    @classmethod
    def load(cls, path: str | Path) -> BenchmarkReport:
        """Read a report that `save` wrote.

        Raises:
            ValueError: The file is not a report of this format.
        """
        record = json.loads(Path(path).read_text(encoding="utf-8"))
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            raise ValueError(f"{path} is not a RUDDER benchmark report ({FORMAT}).")
        return cls(**{**record, "cases": [CaseResult.from_dict(case) for case in record["cases"]]})


def new_result_file(out: str | Path | None) -> Path:
    """Where a new result goes, checked before hours are spent on it.

    Args:
        out: A file that does not exist yet, or a folder, in which the file is numbered. None is the current folder.

    Raises:
        FileExistsError: The file exists.
        NotADirectoryError: Part of the path is a file.
    """
    path = Path("." if out is None else out)
    blocking = next((parent for parent in path.parents if parent.exists() and not parent.is_dir()), None)
    if blocking is not None:
        raise NotADirectoryError(f"{path} cannot be written: {blocking} is a file.")
    if path.suffix == ".json" and not path.is_dir():
        if path.exists():
            raise FileExistsError(f"{path} exists and results are never overwritten: choose another name.")
        return path
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(f"{path} is a file: give a folder or a new file that ends in .json.")
    number = 1
    while (path / f"{FILE_PREFIX}-{number:03d}.json").exists():
        number += 1
    return path / f"{FILE_PREFIX}-{number:03d}.json"
