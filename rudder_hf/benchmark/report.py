"""A benchmark from the model to the table, and its result: one JSON file that is never overwritten."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..core.backbones import find_backbone, resolve_layer
from ..core.configuration import RudderConfig
from ..methods import GROUPS, Sources, method_class
from ..runtime.answers import long_prompt
from ..runtime.environment import hardware, timestamp, versions
from ..runtime.models import LoadedModel
from ..runtime.report import Progress, Table, no_progress
from ..runtime.store import check_folder, must_write_new, read_result, to_json
from .costs import VANILLA, Cost, CostSettings, Run, measure_costs

FORMAT = "rudder-benchmark-3"
PROMPT_TOKENS = 64  # length of the timed prompt, image included


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
    loaded: LoadedModel,
    settings: CostSettings,
    methods: Sequence[str] = GROUPS["rudder"],
    batch_size: int = 1,
    inputs: dict[str, Any] | None = None,
    progress: Progress = no_progress,
) -> BenchmarkReport:
    """Measure methods on one model by greedy search.

    Args:
        loaded: The model; without RUDDER's settings for it, the layer is at the paper's relative depth (30 of 32).
        settings: How to measure.
        methods: Names of the methods; vanilla is always measured.
        batch_size: Number of synthetic images with a question.
        inputs: Of `generate`, in place of these.
        progress: Is called with what is being done.
    """
    created, model = timestamp(), loaded.model
    if inputs is None:
        inputs = long_prompt(loaded.processor, model, PROMPT_TOKENS, batch_size)
    backbone = find_backbone(model)
    layers = len(backbone.layers)
    # The strength does not matter for the speed; it only has to be none of the special cases.
    config = loaded.settings_for("rudder-beta") or RudderConfig(layer=layers * 30 // 32, alpha_max=1.0)
    used = {name: getattr(config, name) for name in ("alpha_max", "k", "c")}
    rudder = {"layer": resolve_layer(backbone, config.layer), **used}
    # For methods that borrow from another image, or compare two captions: any other pixels. It costs the same time.
    other = {key: -value if key.startswith("pixel_values") else value for key, value in inputs.items()}
    sources = Sources(lambda name: config, lambda: [(inputs, other)], lambda: [other])
    made = {name: method_class(name).for_model(model, sources) for name in dict.fromkeys((VANILLA, *methods))}
    costs, runs = measure_costs(model, made, inputs, settings, progress)
    rows, length = inputs["input_ids"].shape
    case = Case(loaded.name, {**loaded.record(), "layers": layers, "rudder": rudder}, int(length), costs, runs)
    how = {**asdict(settings), "batch_size": int(rows), "device": str(model.device)}
    return BenchmarkReport(created, versions(), hardware(), how, [case])


def check_new_file(path: Path) -> None:
    """Check where a new result goes, before hours are spent on it.

    Raises:
        FileExistsError: The file exists.
        InputError: Part of the path is a file, or the folder holds another command's results.
    """
    check_folder(path.parent, own=False)
    if path.exists():
        raise FileExistsError(f"{path} exists and results are never overwritten: choose another name.")


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
                else f"{cost.peak_bytes / 1e6:.1f} MB ({cost.peak_ratio:.2f})",
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
        f"{settings['batch_size']}, on {settings['device']}. In brackets: 95 % interval of the median."
    ]
    for case in report.cases:
        model, where = case.model, f"RUDDER in layer {case.model['rudder']['layer']} of {case.model['layers']}"
        lines.append(
            f"{case.name}: {model['class']}, {model['dtype']}, {where}, prompt of {case.prompt_tokens} tokens"
        )
    return lines
