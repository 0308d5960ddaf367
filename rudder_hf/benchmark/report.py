"""A benchmark from beginning to end, and its result: one JSON file that is never overwritten."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..methods import GROUPS, Sources, method_class
from ..runtime.environment import hardware, timestamp, versions
from ..runtime.progress import Progress, no_progress
from ..runtime.store import check_folder, must_write_new, numbered_path, read_result, to_json
from .costs import Cost, measure_costs
from .models import BenchmarkModel, BenchmarkSettings
from .timing import VANILLA, Run

FORMAT = "rudder-benchmark-2"
FILE_STEM = "rudder-benchmark"


@dataclass(frozen=True)
class Case:
    """Everything measured on one model."""

    name: str
    model: dict[str, Any]  # its description, and RUDDER's settings on it
    prompt_tokens: int  # length of the timed prompt
    costs: list[Cost]  # one for each method and decoding, vanilla first
    runs: list[Run]  # all timed runs

    def cost(self, method: str, decoding: str = "greedy") -> Cost:
        """The cost of one method that was measured."""
        return next(cost for cost in self.costs if (cost.method, cost.decoding) == (method, decoding))


@dataclass(frozen=True)
class BenchmarkReport:
    """A whole benchmark."""

    created: str  # in UTC
    versions: dict[str, str | None]  # of Python and packages
    hardware: dict[str, Any]
    settings: dict[str, Any]
    cases: list[Case]  # one for each model
    format: str = FORMAT  # version of this layout

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
        return read_result(Path(path), cls, FORMAT, "a report of rudder benchmark")


def run_benchmark(
    model: BenchmarkModel,
    settings: BenchmarkSettings,
    methods: Sequence[str] = GROUPS["rudder"],
    progress: Progress = no_progress,
) -> BenchmarkReport:
    """Measure methods on one model by greedy search.

    Args:
        model: From `benchmark_model`.
        settings: How to measure.
        methods: Names of the methods; vanilla is always measured.
        progress: Is called with what is being done.
    """
    created = timestamp()
    # For methods that borrow from another image, or compare two captions: any other pixels. It costs the same time.
    other = {key: -value if key.startswith("pixel_values") else value for key, value in model.inputs.items()}
    sources = Sources(lambda name: model.config, lambda: [(model.inputs, other)], lambda: [other])
    names = dict.fromkeys((VANILLA, *methods))
    made = {name: method_class(name).for_model(model.model, sources) for name in names}
    costs, runs = measure_costs(model.model, made, model.inputs, {"greedy": list(made)}, settings, progress)
    case = Case(model.name, model.description, int(model.inputs["input_ids"].shape[1]), costs, runs)
    return BenchmarkReport(created, versions(), hardware(), asdict(settings), [case])


def new_result_file(out: str | Path | None) -> Path:
    """Where a new result goes, checked before hours are spent on it.

    Args:
        out: A file that does not exist yet, or a folder, in which the file is numbered. None is the current folder.

    Raises:
        FileExistsError: The file exists.
        InputError: Part of the path is a file, or the folder holds another command's results.
    """
    path = Path("." if out is None else out)
    is_file = path.suffix == ".json" and not path.is_dir()
    check_folder(path.parent if is_file else path, own=False)
    if is_file and path.exists():
        raise FileExistsError(f"{path} exists and results are never overwritten: choose another name.")
    return path if is_file else numbered_path(path, FILE_STEM, ".json")
