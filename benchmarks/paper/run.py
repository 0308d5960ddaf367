"""The paper's tables, row by row: run whichever rows this machine can, and say why the others were skipped.

    python benchmarks/paper/run.py --coco COCO --pope POPE/output/coco --mme MME_Benchmark --out results/paper
    python benchmarks/paper/run.py --dry-run

COCO has `annotations/instances_val2014.json`, `annotations/captions_val2014.json` and the images in `val2014/`; POPE
is the folder of its question files; MME has one folder per subtask. A row can run if its model's weights are on this
machine (or may be downloaded), its data are there, the weights fit into memory, and rudder_hf has its method. Results
go to one folder per row, which `rudder score` reads; finished rows are not run again. Captions are written for the
images that the authors' public code draws; `--released` adds its form of RUDDER beside the paper's (docs/paper.md).
"""

from __future__ import annotations

import argparse
import json
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rudder_hf.methods import NAMES
from rudder_hf.presets import get_preset

TASKS = {1: "chair", 2: "pope", 3: "mme", 4: "speed", 5: "chair"}
DATA_OPTION = {"chair": "coco", "pope": "pope", "mme": "mme"}


@dataclass(frozen=True)
class PaperRow:
    """One row of one of the paper's tables for one model, as printed."""

    table: int
    model: str  # Hub id
    decoding: str
    method: str  # as the package names it, where it has it
    metrics: dict[str, float]


def paper_rows() -> list[PaperRow]:
    """All rows of the paper's Tables 1 to 5."""
    content = json.loads(Path(__file__).with_name("paper.json").read_text(encoding="utf-8"))
    return [PaperRow(**row) for row in content["rows"]]


@dataclass(frozen=True)
class Row:
    """One row of one of the paper's tables, for one model."""

    table: int  # number of the table
    model: str  # Hub id
    task: str  # "chair", "pope", "mme", or "speed" for throughput
    decoding: str  # "greedy", "beam" or "nucleus"
    method: str
    # RUDDER's settings; empty for other methods, which have their published ones
    settings: dict[str, Any] = field(default_factory=dict)
    images: int | None = None  # how many are drawn; None for all
    seed: int = 0  # of sampling
    paper: dict[str, float] = field(default_factory=dict)  # what the paper prints

    @property
    def name(self) -> str:
        """The folder of the row's results."""
        return f"table{self.table}-{self.task}-{self.decoding}-{get_preset(self.model).name}-{self.method}"


def rows(released: bool = False) -> list[Row]:
    """Every row of Tables 1 to 5, made from the paper's numbers and the presets; `released` adds the released form."""
    found = []
    for row in paper_rows():
        task = "pope" if "accuracy" in row.metrics else TASKS[row.table]
        preset = get_preset(row.model)
        rudder = {"layer": preset.layer, "alpha_max": preset.alpha_max, "k": preset.k}
        settings = rudder if row.method.startswith("rudder") else {}
        if row.method == "vista" and task != "chair":
            settings = {"strength": 0.01}  # as in VISTA's script for questions
        images = 500 if task == "chair" else None
        found.append(Row(row.table, row.model, task, row.decoding, row.method, settings, images, paper=row.metrics))
        if released and row.method == "rudder-beta":
            found.append(replace(found[-1], method="rudder-released"))
    return found


def drawn_images(instances: Path, count: int) -> list[int]:
    """The images that the authors' public code draws: of those with annotations, in the order of the file."""
    content = json.loads(instances.read_text(encoding="utf-8"))
    annotated = {annotation["image_id"] for annotation in content["annotations"]}
    ids = [image["id"] for image in content["images"] if image["id"] in annotated]
    return random.Random(42).sample(ids, min(count, len(ids)))


@dataclass(frozen=True)
class Machine:
    """What this machine has."""

    data: dict[str, Path] = field(default_factory=dict)  # folders: "chair" (COCO), "pope" (its question files), "mme"
    images: Path | None = None  # COCO's images for POPE
    split: str = "val2014"  # of COCO
    device: str = "cpu"
    dtype: str = "auto"  # of the weights
    batch_size: int = 8
    download: bool = False  # whether weights that are not here may be fetched
    limit: int | None = None  # fewer images than the row asks for, to try it out


def obstacle(row: Row, machine: Machine) -> str | None:
    """Why a row cannot run here, or None."""
    if row.method not in NAMES:
        return f"the method {row.method} is not in rudder_hf"
    if row.task != "speed":
        option, folder = DATA_OPTION[row.task], machine.data.get(row.task)
        if folder is None:
            return f"no data: pass --{option}"
        if not folder.exists():
            return f"no data: there is no {folder}"
        if row.task == "pope" and machine.images is None and not (folder / "annotations").is_dir():
            return "no images: pass --images"
    return weights_obstacle(row.model, machine)


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
    """Bytes of memory of a device, or None if they cannot be read."""
    import torch

    if device.startswith("cuda"):
        return int(torch.cuda.get_device_properties(device).total_memory)
    if device == "cpu" and hasattr(os, "sysconf"):
        return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return None


@dataclass(frozen=True)
class Outcome:
    """What became of a row."""

    row: Row
    skipped: str | None  # why it did not run, or None
    ours: dict[str, float]  # measured numbers
    how: str = ""  # on how many images, and by which lineage or parser


def run_rows(
    wanted: Sequence[Row], machine: Machine, out: Path, say: Callable[[str], None] = print, dry: bool = False
) -> list[Outcome]:
    """Run the rows that can run, model by model, so that each is loaded once.

    Args:
        wanted: The rows.
        machine: What there is.
        out: Folder for the results, one folder per row.
        say: Is called with a line about each row.
        dry: Only say what would run.
    """
    outcomes = []
    loaded: tuple[str, Any] | None = None
    for row in sorted(wanted, key=lambda row: row.model):
        reason = obstacle(row, machine)
        ours: dict[str, float] = {}
        how = ""
        if reason is None and dry:
            say(f"would run {row.name}")
        elif reason is None:
            say(f"running {row.name}")
            try:
                if row.task == "speed":
                    ours, how = run_speed(row, machine, out / row.name), "one prompt"
                else:
                    if loaded is None or loaded[0] != row.model:
                        loaded = None  # One model at a time is in memory.
                        loaded = (row.model, load(row.model, machine))
                    ours, how = run_row(row, machine, loaded[1], out / row.name)
            except Exception as error:
                # One row that fails must not cost the others.
                reason = f"failed: {type(error).__name__}: {' '.join(str(error).split())}"
        if reason is not None:
            say(f"skipped {row.name}: {reason}")
        outcomes.append(Outcome(row, reason, ours, how))
    return outcomes


def load(model: str, machine: Machine) -> Any:
    """Load a model."""
    from rudder_hf.runtime.models import load_model

    return load_model(model, machine.dtype, machine.device)


def run_row(row: Row, machine: Machine, loaded: Any, out: Path) -> tuple[dict[str, float], str]:
    """Measure one row: its numbers by the paper's metrics, and what they are about.

    The paper says neither which lineage of CHAIR nor which parser of POPE its numbers are about.
    """
    from rudder_hf.evaluate.methods import make_methods
    from rudder_hf.evaluate.result import Scoring
    from rudder_hf.evaluate.run import Run, RunOptions
    from rudder_hf.evaluate.tables import save_result
    from rudder_hf.evaluate.tasks import DataOptions, make_task
    from rudder_hf.evaluate.tasks.captions import coco_annotations
    from rudder_hf.runtime.answers import Decoding

    data = DataOptions(
        data=machine.data[row.task],
        images=machine.images if row.task == "pope" else None,
        split=machine.split if row.task == "chair" else None,
        limit=machine.limit if row.images is None else 2**31,  # all, of which some are drawn below
        seed=row.seed,
    )
    task = make_task(row.task, data)
    if row.images is not None:
        drawn = set(drawn_images(coco_annotations(data)[0], machine.limit or row.images))
        task = replace(task, samples=[sample for sample in task.samples if sample.image_id in drawn])
    task.check_images()
    settings = {row.method: row.settings} if row.settings else {}
    methods, _ = make_methods([row.method], loaded, settings)
    decoding = Decoding(row.decoding, task.max_new_tokens)
    options = RunOptions(machine.batch_size, row.seed, command=f"benchmarks/paper/run.py ({row.name})")
    run = Run(out).begin(task, loaded, decoding, options)
    run.answer(methods)
    result = save_result(run.result(Scoring()), run.path)
    images, wanted = len(result.image_ids), row.images
    how = [f"{images} of {wanted} images" if wanted is not None and images < wanted else f"{images} images"]
    if machine.limit is not None and wanted is None:
        how[0] += " only"
    how += [f"{name} {result.scoring[name]}" for name in ("lineage", "parser") if name in result.scoring]
    return {name: result.methods[0].metrics[name].value for name in row.paper}, ", ".join(how)


def run_speed(row: Row, machine: Machine, out: Path) -> dict[str, float]:
    """Throughput at batch size 1, of the method beside vanilla on the same prompt."""
    from rudder_hf.benchmark import BenchmarkReport, CostSettings, run_benchmark
    from rudder_hf.runtime.models import load_model

    path = out / "speed.json"
    if not path.exists():
        dtype = "float32" if machine.device == "cpu" else "bfloat16"
        settings = CostSettings(rounds=15, warmup=2, seed=row.seed)
        run_benchmark(load_model(row.model, dtype, machine.device), settings, [row.method]).save(path)
    cost = BenchmarkReport.load(path).cases[0].cost(row.method)
    return {"tokens_per_second": 1000.0 / cost.ms_per_token}


def summary(outcomes: Sequence[Outcome]) -> str:
    """Markdown: rows that ran, ours beside the paper's, and rows that were skipped, with reasons."""
    from rudder_hf.runtime.report import Table

    ran = [outcome for outcome in outcomes if outcome.skipped is None and outcome.ours]
    numbers = [
        [outcome.row.name, metric, f"{outcome.ours[metric]:.2f}", outcome.how, f"{value:.2f}"]
        for outcome in ran
        for metric, value in outcome.row.paper.items()
    ]
    reasons: dict[str, list[str]] = {}
    for outcome in outcomes:
        if outcome.skipped is not None:
            reasons.setdefault(outcome.skipped, []).append(outcome.row.name)
    parts = [f"{len(ran)} of {len(outcomes)} rows were run."]
    if numbers:
        parts.append(Table(["row", "metric", "ours", "measured on", "paper"], numbers).markdown())
    if reasons:
        skipped = [[reason, str(len(names)), ", ".join(names)] for reason, names in reasons.items()]
        parts.append(Table(["skipped because", "rows", "which"], skipped).markdown())
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--coco", type=Path, help="COCO's folder")
    parser.add_argument("--pope", type=Path, help="folder of POPE's question files")
    parser.add_argument("--mme", type=Path, help="MME's folder")
    parser.add_argument("--images", type=Path, help="images of POPE's questions, if not in COCO's folder")
    parser.add_argument("--split", default="val2014")
    parser.add_argument("--tables", default="1,2,3,4,5", help="which tables, separated by commas")
    parser.add_argument("--only", default="", help="only rows whose name contains this text")
    parser.add_argument("--out", type=Path, default=Path("results/paper"))
    parser.add_argument("--released", action="store_true", help="also RUDDER as in the authors' public code")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16", "float16"])
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--limit", type=int, help="fewer images, to try it out")
    parser.add_argument("--download", action="store_true", help="fetch weights that are not here")
    parser.add_argument("--dry-run", action="store_true", help="only say what would run")
    given = parser.parse_args()

    from rudder_hf.cli.common import choose_device

    folders = {"chair": given.coco, "pope": given.pope, "mme": given.mme}
    machine = Machine(
        data={task: folder for task, folder in folders.items() if folder is not None},
        images=given.coco / given.split if given.images is None and given.coco is not None else given.images,
        split=given.split,
        device=choose_device(given.device),
        dtype=given.dtype,
        batch_size=given.batch_size,
        download=given.download,
        limit=given.limit,
    )
    tables = {int(number) for number in given.tables.split(",")}
    wanted = [row for row in rows(given.released) if row.table in tables and given.only in row.name]
    outcomes = run_rows(wanted, machine, given.out, dry=given.dry_run)
    print(f"\n{summary(outcomes)}")


if __name__ == "__main__":
    main()
