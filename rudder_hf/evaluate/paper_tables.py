"""The paper's tables, row by row: run whichever rows this machine can, and say why the others were skipped.

    python benchmarks/paper/run.py --coco COCO --pope POPE --mme MME --out results/paper

Every row has a config in `benchmarks/paper/`. A row can run if its model's weights are on this machine (or may be
downloaded), its data are there, the weights fit into memory, and this package has its method. Results go to one folder
per row, which `rudder evaluate --compare` and `--table` read; rows that are finished are not run again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..methods import NAMES
from ..metrics.errors import InputError
from ..presets import get_preset

TASKS = {1: "chair", 2: "pope", 3: "mme", 4: "speed", 5: "chair"}
DATA_OPTION = {"chair": "coco", "pope": "pope", "mme": "mme"}


@dataclass(frozen=True)
class RowConfig:
    """One row of one of the paper's tables, for one model.

    Attributes:
        table: Number of the table.
        model: Hub id.
        task: "chair", "pope", "mme", or "speed" for throughput.
        decoding: "greedy", "beam" or "nucleus".
        method: The method.
        settings: RUDDER's settings; empty for other methods, which have their published ones.
        images: How many pictures are drawn; None for all.
        seed: Of the draw and of sampling.
        paper: What the paper prints.
    """

    table: int
    model: str
    task: str
    decoding: str
    method: str
    settings: dict[str, Any] = field(default_factory=dict)
    images: int | None = None
    seed: int = 0
    paper: dict[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The config's file name, and the folder of its results."""
        model = get_preset(self.model).name
        return f"table{self.table}-{self.task}-{self.decoding}-{model}-{self.method}"

    def to_json(self) -> str:
        """The config's file."""
        return json.dumps(asdict(self), indent=2) + "\n"


def paper_configs() -> list[RowConfig]:
    """A config for each row of Tables 1 to 5, made from the paper's numbers and the presets."""
    from .paper import paper_rows

    configs = []
    for row in paper_rows():
        task = "pope" if "accuracy" in row.metrics else TASKS[row.table]
        preset = get_preset(row.model)
        rudder = {"layer": preset.layer, "alpha_max": preset.alpha_max, "k": preset.k}
        configs.append(
            RowConfig(
                table=row.table,
                model=row.model,
                task=task,
                decoding=row.decoding,
                method=row.method,
                settings=rudder if row.method.startswith("rudder") else {},
                images=500 if task == "chair" else None,
                paper=row.metrics,
            )
        )
    return configs


def read_configs(folder: Path) -> list[RowConfig]:
    """All configs in a folder.

    Raises:
        ValueError: There is none, or one is damaged.
    """
    configs = []
    for path in sorted(folder.glob("table*.json")):
        try:
            configs.append(RowConfig(**json.loads(path.read_text(encoding="utf-8"))))
        except (ValueError, TypeError) as error:
            raise InputError(f"{path} is no config of a row: {error}") from error
    if not configs:
        raise InputError(f"there are no configs (table*.json) in {folder}")
    return configs


@dataclass(frozen=True)
class Machine:
    """What this machine has.

    Attributes:
        data: Folders by task: "chair" (COCO), "pope" (its question files), "mme".
        images: COCO's pictures for POPE.
        split: Of COCO.
        device: Where to run.
        dtype: Type of the weights.
        batch_size: Samples per batch.
        download: Whether weights that are not here may be fetched.
        limit: Fewer pictures than the row asks for, to try it out.
    """

    data: dict[str, Path] = field(default_factory=dict)
    images: Path | None = None
    split: str = "val2014"
    device: str = "cpu"
    dtype: str = "auto"
    batch_size: int = 8
    download: bool = False
    limit: int | None = None


def obstacle(config: RowConfig, machine: Machine) -> str | None:
    """Why a row cannot run here, or None."""
    if config.method not in NAMES:
        return f"the method {config.method} is not in this package"
    if config.task != "speed":
        option = DATA_OPTION[config.task]
        folder = machine.data.get(config.task)
        if folder is None:
            return f"no data: pass --{option}"
        if not folder.exists():
            return f"no data: there is no {folder}"
        if config.task == "pope" and machine.images is None and not (folder / "annotations").is_dir():
            return "no pictures: pass --images"
    return weights_obstacle(config.model, machine)


def weights_obstacle(model: str, machine: Machine) -> str | None:
    """Why a model cannot be loaded here, or None."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    if machine.download:
        return None
    try:
        folder = Path(snapshot_download(model, local_files_only=True))
    except (LocalEntryNotFoundError, OSError):
        return "no weights: they are not in the Hub cache (pass --download to fetch them)"
    files = [path for path in folder.rglob("*") if path.suffix in (".safetensors", ".bin")]
    if not files:
        return "no weights: the Hub cache has the model's config but not its weights (pass --download)"
    need, have = sum(path.stat().st_size for path in files), memory(machine.device)
    if have is not None and need > have:
        return f"too large: the weights take {need / 2**30:.0f} GiB and {machine.device} has {have / 2**30:.0f} GiB"
    return None


def memory(device: str) -> int | None:
    """Bytes of memory of a device, or None if it does not tell."""
    import os

    import torch

    if device.startswith("cuda"):
        return int(torch.cuda.get_device_properties(device).total_memory)
    if device == "cpu" and hasattr(os, "sysconf"):
        return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return None


@dataclass(frozen=True)
class RowOutcome:
    """What became of a row.

    Attributes:
        name: The config's name.
        skipped: Why it did not run, or None.
        ours: Measured numbers.
        paper: The paper's.
    """

    name: str
    skipped: str | None
    ours: dict[str, float]
    paper: dict[str, float]


def run_rows(
    configs: Sequence[RowConfig], machine: Machine, out: Path, say: Callable[[str], None] = print, dry: bool = False
) -> list[RowOutcome]:
    """Run the rows that can run, model by model, so that each is loaded once.

    Args:
        configs: The rows.
        machine: What there is.
        out: Folder for the results, one folder per row.
        say: Is told about each row.
        dry: Only say what would run.
    """
    outcomes = []
    loaded: tuple[str, Any] | None = None
    for config in sorted(configs, key=lambda config: config.model):
        reason = obstacle(config, machine)
        ours: dict[str, float] = {}
        if reason is None and dry:
            say(f"would run {config.name}")
        elif reason is None:
            say(f"running {config.name}")
            try:
                if config.task == "speed":
                    ours = _run_speed(config, machine, out / config.name)
                else:
                    if loaded is None or loaded[0] != config.model:
                        loaded = None  # One model at a time is in memory.
                        loaded = (config.model, _load(config.model, machine))
                    ours = _run_row(config, machine, loaded[1], out / config.name)
            except Exception as error:
                # One row that fails must not cost the others.
                reason = f"failed: {type(error).__name__}: {' '.join(str(error).split())}"
        if reason is not None:
            say(f"skipped {config.name}: {reason}")
        outcomes.append(RowOutcome(config.name, reason, ours, config.paper))
    return outcomes


def _load(model: str, machine: Machine) -> Any:
    from ..runtime.models import load_subject

    return load_subject(model, machine.dtype, machine.device)


def _run_row(config: RowConfig, machine: Machine, subject: Any, out: Path) -> dict[str, float]:
    """Measure one row; its numbers by the paper's metrics."""
    from ..runtime.decoding import Decoding
    from .methods import make_method
    from .run import evaluate
    from .runner import RunOptions
    from .tasks import DataOptions, make_task

    data = DataOptions(
        data=machine.data[config.task],
        images=machine.images if config.task == "pope" else None,
        split=machine.split if config.task == "chair" else None,
        limit=machine.limit or config.images,
        seed=config.seed,
    )
    task = make_task(config.task, data)
    task.skip_unreadable(False)
    methods = [make_method(config.method, subject, config.settings, questions=task.kind != "chair")]
    decoding = Decoding(config.decoding, task.max_new_tokens)
    options = RunOptions(machine.batch_size, config.seed, command=f"benchmarks/paper/run.py ({config.name})")
    result = evaluate(task, subject, methods, decoding, out, options=options)
    if result is None:
        raise RuntimeError("other processes have not finished; repeat the command to gather the result")
    return {name: result.methods[0].metrics[name].value for name in config.paper}


def _run_speed(config: RowConfig, machine: Machine, out: Path) -> dict[str, float]:
    """Throughput at batch size 1, of the method beside vanilla on the same prompt."""
    from ..benchmark import BenchmarkReport, BenchmarkSettings, real_model, run_benchmark

    path = out / "speed.json"
    if not path.exists():
        dtype = "float32" if machine.device == "cpu" else "bfloat16"
        settings = BenchmarkSettings(dtype=dtype, device=machine.device, seed=config.seed)
        run_benchmark([lambda: real_model(config.model, settings)], settings, [config.method]).save(path)
    cost = next(cost for cost in BenchmarkReport.load(path).cases[0].costs if cost.method == config.method)
    assert cost.ms_per_token is not None
    return {"tokens_per_second": 1000.0 / cost.ms_per_token}


def summary(outcomes: Sequence[RowOutcome]) -> str:
    """Markdown: rows that ran, ours beside the paper's, and rows that were skipped, with reasons."""
    from .tables import markdown_table

    ran = [outcome for outcome in outcomes if outcome.skipped is None and outcome.ours]
    rows = [
        [outcome.name, metric, f"{outcome.ours[metric]:.2f}", f"{value:.2f}"]
        for outcome in ran
        for metric, value in outcome.paper.items()
    ]
    reasons: dict[str, list[str]] = {}
    for outcome in outcomes:
        if outcome.skipped is not None:
            reasons.setdefault(outcome.skipped, []).append(outcome.name)
    parts = [f"{len(ran)} of {len(outcomes)} rows were run."]
    if rows:
        parts.append(markdown_table(["row", "metric", "ours", "paper"], rows))
    if reasons:
        skipped = [[reason, str(len(names)), ", ".join(names)] for reason, names in reasons.items()]
        parts.append(markdown_table(["skipped because", "rows", "which"], skipped))
    return "\n\n".join(parts) + "\n"
