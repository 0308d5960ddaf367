"""The result of a benchmark: typed, written as one JSON file that is never overwritten, read back as it was."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..runtime.store import must_write_new, numbered_path, read_json, to_json
from .costs import Cost
from .timing import Run

FORMAT = "rudder-benchmark-2"
FILE_STEM = "rudder-benchmark"


@dataclass(frozen=True)
class Case:
    """Everything measured on one model.

    Attributes:
        name: The shape's name or the model's id.
        model: Description of the model and RUDDER's settings on it.
        prompt_tokens: Length of the timed prompt.
        costs: One for each method and decoding, vanilla first.
        runs: All timed runs.
    """

    name: str
    model: dict[str, Any]
    prompt_tokens: int
    costs: list[Cost]
    runs: list[Run]

    def cost(self, method: str, decoding: str = "greedy") -> Cost:
        """The cost of one method that was measured."""
        return next(cost for cost in self.costs if (cost.method, cost.decoding) == (method, decoding))


@dataclass(frozen=True)
class BenchmarkReport:
    """A whole benchmark.

    Attributes:
        created: When, in UTC.
        versions: Of Python and packages.
        hardware: The machine.
        settings: What was asked for.
        cases: One for each model.
        format: Version of this layout.
    """

    created: str
    versions: dict[str, str | None]
    hardware: dict[str, Any]
    settings: dict[str, Any]
    cases: list[Case]
    format: str = FORMAT

    def save(self, path: str | Path) -> Path:
        """Write the report.

        Raises:
            FileExistsError: The file exists; results are never overwritten.
        """
        return must_write_new(Path(path), to_json(asdict(self)))

    @classmethod
    def load(cls, path: str | Path) -> BenchmarkReport:
        """Read a report that `save` wrote.

        Raises:
            ValueError: The file is not a report of this format.
        """
        record = read_json(Path(path))
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            raise ValueError(f"{path} is not a report of rudder benchmark ({FORMAT}).")
        report: BenchmarkReport = read_json(Path(path), cls)
        return report


def new_result_file(out: str | Path | None) -> Path:
    """Where a new result goes, checked before hours are spent on it.

    Args:
        out: A file that does not exist yet, or a folder, in which the file is numbered. None is the current folder.

    Raises:
        FileExistsError: The file exists.
        NotADirectoryError: Part of the path is a file.
    """
    path = Path("." if out is None else out)
    is_file = path.suffix == ".json" and not path.is_dir()
    blocking = next((part for part in [path, *path.parents][is_file:] if part.is_file()), None)
    if blocking is not None:
        raise NotADirectoryError(f"{blocking} is a file: give a folder, or a new file that ends in .json.")
    if is_file and path.exists():
        raise FileExistsError(f"{path} exists and results are never overwritten: choose another name.")
    return path if is_file else numbered_path(path, FILE_STEM, ".json")
