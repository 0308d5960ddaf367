"""What the tests of the evaluation share: a tiny model under evaluation, small tasks, and a way to run them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from rudder_hf import RudderConfig
from rudder_hf.evaluate.result import Result, Scoring
from rudder_hf.evaluate.run import Run, RunOptions
from rudder_hf.evaluate.tables import save_result
from rudder_hf.evaluate.tasks import DataOptions, Task, make_task
from rudder_hf.methods import Generate, Method, get
from rudder_hf.runtime.answers import Decoding
from rudder_hf.runtime.environment import Process
from rudder_hf.runtime.models import LoadedModel
from rudder_hf.runtime.report import Progress, no_progress
from tests.support.toy import toy_model, toy_processor

SETTINGS = {"layer": 2, "alpha_max": 12.0}
NEW = 6
SCORING = Scoring(bootstrap=200)


@cache
def loaded() -> LoadedModel:
    """A tiny LLaVA with random weights."""
    return LoadedModel("toy", toy_model(), toy_processor(), {"": RudderConfig(**SETTINGS)}, "test")


def scenes(limit: int = 5) -> Task:
    """Captions of a few scenes."""
    return make_task("scenes", DataOptions(limit=limit))


@dataclass(frozen=True)
class Counting(Method):
    """A method that counts how often each sample is answered."""

    name = "vanilla"

    seen: list[str] = field(default_factory=list)

    def settings(self) -> dict[str, Any]:
        return {}

    @contextmanager
    def applied(self, model: Any) -> Iterator[Generate]:
        def generate(*args: Any, sample_ids: list[str], **kwargs: Any) -> Any:
            self.seen.extend(sample_ids)
            return model.generate(*args, **kwargs)

        yield generate


def damage(path: Path, place: Sequence[str | int], value: object) -> None:
    """Put another value in a place of a JSON file, or of its last line; ... takes out what is there."""
    *rest, text = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    content = {"all": json.loads(text)}
    *way, last = "all", *place
    within: Any = content
    for step in way:
        within = within[step]
    if value is ...:
        del within[last]
    else:
        within[last] = value
    path.write_text("".join(f"{line}\n" for line in (*rest, json.dumps(content["all"]))))


def run_task(
    out: Path, task: Task | None = None, methods: list[Method] | None = None, decoding: str = "greedy",
    batch_size: int = 2, process: Process | None = None, progress: Progress = no_progress, seed: int = 0,
) -> Result | None:  # fmt: skip
    """Evaluate the tiny model."""
    model = loaded()
    if methods is None:
        methods = [get("vanilla"), get("rudder-add", config=model.settings[""])]
    run = Run(out, process).begin(
        task or scenes(), model, Decoding(decoding, NEW, num_beams=3), RunOptions(batch_size, seed, command="test")
    )
    return save_result(run.result(SCORING), run.path) if run.answer(methods, progress) else None


def texts(folder: Path) -> list[tuple[str, str, str]]:
    """Method, sample and answer of everything in a run, in the order of variants and samples."""
    run = Run(folder)
    done = run.answers()
    return [(v.label, sample.id, done[v.key, sample.id]["answer"]) for v in run.variants() for sample in run.samples()]
