"""A benchmark from the model to the table, and its result: one JSON file that is never overwritten."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from ..core.backbones import find_backbone, resolve_layer
from ..core.configuration import RudderConfig
from ..methods import GROUPS, Sources, method_class
from ..runtime.answers import long_prompt
from ..runtime.environment import hardware, timestamp, versions
from ..runtime.errors import check_least
from ..runtime.models import load_model
from ..runtime.progress import Progress, no_progress
from ..runtime.report import Table, size
from ..runtime.store import check_folder, must_write_new, numbered_path, read_result, to_json
from .costs import Cost, CostSettings, measure_costs
from .timing import VANILLA, Run

FORMAT = "rudder-benchmark-3"
FILE_STEM = "rudder-benchmark"


@dataclass(frozen=True)
class BenchmarkSettings(CostSettings):
    """How to measure, and the model and prompts to measure on."""

    rounds: int = 15
    warmup: int = 2
    batch_size: int = 1
    prompt_tokens: int = 64  # length of the timed prompt, image included
    dtype: str = "auto"  # of the weights; "auto" is the stored one
    device: str = "cpu"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, batch_size=1, prompt_tokens=1)


@dataclass(frozen=True)
class BenchmarkModel:
    """A model to measure."""

    name: str
    model: PreTrainedModel  # the stock model
    config: RudderConfig  # RUDDER's settings for it
    inputs: dict[str, Any]  # of `generate`
    description: dict[str, Any]  # what a reader of the result has to know about the model

    @classmethod
    def of(
        cls,
        name: str,
        model: PreTrainedModel,
        inputs: dict[str, Any],
        config: RudderConfig | None = None,
        **description: Any,
    ) -> BenchmarkModel:
        """Return a model to measure; without settings, RUDDER's layer is at the paper's relative depth (30 of 32)."""
        backbone = find_backbone(model)
        layers = len(backbone.layers)
        if config is None:
            # The strength does not matter for the speed; it only has to be none of the special cases.
            config = RudderConfig(layer=layers * 30 // 32, alpha_max=1.0)
        used = {name: getattr(config, name) for name in ("alpha_max", "k", "c")}
        description |= {
            "class": type(model).__name__,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "layers": layers,
            "rudder": {"layer": resolve_layer(backbone, config.layer), **used},
        }
        return cls(name, model, config, inputs, description)


def benchmark_model(name: str | None, settings: BenchmarkSettings) -> BenchmarkModel:
    """Load the model of an id or a folder, or an embedded one, with a prompt as long as the settings say.

    Raises:
        ValueError: There is no such model.
    """
    loaded = load_model(name, settings.dtype, settings.device)
    inputs = long_prompt(loaded.processor, loaded.model, settings.prompt_tokens, settings.batch_size)
    config, source = loaded.settings_for("rudder-beta"), {"weights": loaded.name, "revision": loaded.revision}
    return BenchmarkModel.of(loaded.name, loaded.model, inputs, config, **source)


# The result


@dataclass(frozen=True)
class Case:
    """Everything measured on one model."""

    name: str
    model: dict[str, Any]  # its description, and RUDDER's settings on it
    prompt_tokens: int  # length of the timed prompt
    costs: list[Cost]  # one for each method, vanilla first
    runs: list[Run]  # all timed runs

    def cost(self, method: str) -> Cost:
        """The cost of one method that was measured."""
        return next(cost for cost in self.costs if cost.method == method)


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
    costs, runs = measure_costs(model.model, made, model.inputs, settings, progress)
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


# For people


def cost_table(report: BenchmarkReport) -> Table:
    """One row for each model and method; columns that say nothing are left out."""
    rows: list[dict[str, str]] = []
    for case in report.cases:
        base = case.cost(VANILLA).operators_per_token
        for cost in case.costs:
            ratio, added = cost.ratio, cost.operators_per_token - base
            row = {
                "Model": case.name,
                "Method": cost.method,
                "ms per token ↓": f"{cost.ms_per_token:.2f}",
                "Throughput / vanilla ↑": "1"
                if ratio is None
                else f"{ratio.median:.3f} [{ratio.interval[0]:.3f}, {ratio.interval[1]:.3f}]",
                "Forwards per token ↓": f"{cost.forwards_per_token:.2f}",
                "Prompt forwards ↓": f"{cost.prompt_forwards:.2f}",
                "Peak memory (/ vanilla) ↓": "-"
                if cost.peak_bytes is None or cost.peak_ratio is None
                else f"{size(cost.peak_bytes)} ({cost.peak_ratio:.2f})",
                "Operators per token ↓": f"{cost.operators_per_token:.0f}" + (f" ({added:+.0f})" if added else ""),
            }
            rows.append(row)
    headings = [heading for heading in rows[0] if {row[heading] for row in rows} != {"-"}]
    return Table(headings, [[row[heading] for heading in headings] for row in rows])


def notes(report: BenchmarkReport) -> list[str]:
    """What has to be said below the table."""
    settings = report.settings
    lines = [
        f"{settings['rounds']} interleaved rounds, {settings['new_tokens']} new tokens, batch size "
        f"{settings['batch_size']}, {settings['dtype']} on {settings['device']}. In brackets: 95 % interval of the "
        "median."
    ]
    for case in report.cases:
        model, where = case.model, f"RUDDER in layer {case.model['rudder']['layer']} of {case.model['layers']}"
        lines.append(f"{case.name}: {model['class']}, {where}, prompt of {case.prompt_tokens} tokens")
    return lines
