"""A run from beginning to end: batches, resuming, several processes, and the result.

What can change a result and what cannot: answers are generated in batches that are cut from the list of samples, the
same ones whichever process does them and whenever, so that interruptions and the number of processes change not a bit.
Another batch size changes the shapes of the matrix products, and with them the last bits of the logits; random numbers
belong to the sample, so an answer changes only where two tokens are equally likely to within rounding.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..methods import Method
from ..metrics.errors import InputError
from ..runtime.answers import answers, encode, log_likelihoods
from ..runtime.decoding import Decoding, sample_seed
from ..runtime.environment import Process, hardware, timestamp, versions
from ..runtime.models import LoadedModel
from ..runtime.progress import Progress, no_progress, stages
from ..runtime.store import write_new
from .folder import Done, RunFolder
from .methods import settings_record
from .result import RESULT_FILE, EvaluationResult
from .scoring import Scoring, build_result
from .tables import paper_latex, run_markdown
from .tasks.base import Sample, Task, samples_hash

_MARKDOWN_FILE, _LATEX_FILE = "table.md", "table.tex"
_DONORS, _DONOR_BATCH = 64, 8


@dataclass(frozen=True)
class RunOptions:
    """How to run, beside what is evaluated.

    Attributes:
        batch_size: Samples per batch.
        seed: Of sampling.
        likelihood: Whether to measure how likely each answer is to the unsteered model.
        command: What the user typed, for the result.
    """

    batch_size: int = 8
    seed: int = 0
    likelihood: bool = True
    command: str = ""


def evaluate(
    task: Task, loaded: LoadedModel, methods: Sequence[Method], decoding: Decoding, out: str | Path,
    options: RunOptions | None = None, scoring: Scoring | None = None, process: Process | None = None,
    progress: Progress = no_progress,
) -> EvaluationResult | None:  # fmt: skip
    """Run a task, or what is left of it, and score it.

    Args:
        task: What to ask.
        loaded: The model.
        methods: Ways to decode; differences are to the first.
        decoding: How answers are written.
        out: A new folder, or the folder of this very run, which is then continued.
        options: Batch size, seed and the like.
        scoring: Lineage, parser, draws of the bootstrap.
        process: Which one of several this is.
        progress: Is called with how far this process is.

    Returns:
        The result; None while other processes still have to finish, the last of which writes it.

    Raises:
        InputError: The folder belongs to another run, or its result was scored otherwise.
    """
    scoring = scoring or Scoring()
    folder, done = write_answers(task, loaded, methods, decoding, out, options, process, progress)
    if len(done) < len(task.samples) * len(methods):
        return None
    rows, path = folder.gather(done), folder.path / RESULT_FILE
    if not path.exists():
        result = build_result(folder.plan(), task.samples, rows, scoring, folder.record())
        write_new(folder.path / _MARKDOWN_FILE, run_markdown(result))
        write_new(folder.path / _LATEX_FILE, paper_latex([result]))
        write_new(path, result.to_json())
    found = EvaluationResult.load(path)
    _check_scoring(folder.path, found, scoring)
    return found


def _check_scoring(folder: Path, found: EvaluationResult, scoring: Scoring) -> None:
    """Refuse a finished result that was scored otherwise; older results do not have all options."""
    asked, usual = scoring.record(found.kind), asdict(Scoring())
    changed = [name for name, value in asked.items() if found.scoring.get(name, value) != value]
    if changed:
        there, here = (", ".join(f"{name} {own[name]}" for name in changed) for own in (found.scoring, asked))
        options = [f"--{name} {value}" for name, value in asked.items() if name in changed or value != usual[name]]
        raise InputError(
            f"{folder} is finished and was scored with {there}; this command has {here}. To score its answers again: "
            f"`rudder score {shlex.quote(str(folder))} {' '.join(options)}`."
        )


def write_answers(
    task: Task, loaded: LoadedModel, methods: Sequence[Method], decoding: Decoding, out: str | Path,
    options: RunOptions | None = None, process: Process | None = None, progress: Progress = no_progress,
) -> tuple[RunFolder, Done]:  # fmt: skip
    """Generate what this process has to and what is not there yet; arguments as for `evaluate`.

    Returns:
        The folder, and all answers in it; those of other processes may still be missing.
    """
    options, process = options or RunOptions(), process or Process()
    folder = RunFolder(out, process)
    folder.begin(_plan(task, loaded, methods, decoding, options), task.samples)
    with folder:
        done = set(folder.done())
        # All batches of the run in a fixed order, of which this process takes its share.
        size = options.batch_size
        cuts = [(method, start) for method in methods for start in range(0, len(task.samples), size)]
        mine = [(m, task.samples[start : start + size]) for m, start in cuts[process.rank :: process.count]]
        total = sum(len(batch) for _, batch in mine)
        finished = sum((method.name, sample.id) in done for method, batch in mine for sample in batch)
        names = [method.name for method in methods]
        stage = dict(zip(names, stages(progress, names), strict=True))
        text = f"{task.name}, {decoding.name}"
        if finished < total:
            folder.append({"launch": _launch(options, process), "method": "", "seconds": 0.0, "rows": []})
        for method, batch in mine:
            # With another batch size than before, part of a batch may be there already.
            missing = [sample for sample in batch if (method.name, sample.id) not in done]
            if not missing:
                continue
            stage[method.name](text, finished, total)
            started = time.perf_counter()
            rows = answer_batch(task, loaded, method, missing, decoding, options)
            folder.append({"method": method.name, "seconds": round(time.perf_counter() - started, 3), "rows": rows})
            finished += len(missing)
        stage[names[-1]](text, finished, total)
    return folder, folder.done()


def _plan(
    task: Task, loaded: LoadedModel, methods: Sequence[Method], decoding: Decoding, options: RunOptions
) -> dict[str, Any]:
    """Everything that a result depends on: two runs with the same plan are one run."""
    return {
        "task": task.name,
        "kind": task.kind,
        "data": {**task.data, "samples_sha256": samples_hash(task.samples)},
        "samples": len(task.samples),
        "notes": task.notes,
        "model": loaded.record(),
        "methods": {method.name: settings_record(method) for method in methods},
        "decoding": decoding.record(),
        "prompt": task.prompt,
        "seed": options.seed,
        "likelihood": options.likelihood,
    }


def _launch(options: RunOptions, process: Process) -> dict[str, Any]:
    return {
        "started": timestamp(),
        "command": options.command,
        "process": process.rank,
        "processes": process.count,
        "batch_size": options.batch_size,
        "versions": versions(),
        "hardware": hardware(),
    }


def batches(samples: Sequence[Sample], size: int) -> list[list[Sample]]:
    """Consecutive samples, `size` at a time."""
    return [list(samples[start : start + size]) for start in range(0, len(samples), size)]


def encode_samples(loaded: LoadedModel, task: Task, samples: Sequence[Sample]) -> dict[str, Any]:
    """Inputs of `generate` for some samples."""
    images = [task.image(sample) for sample in samples]
    return encode(loaded.model, loaded.processor, images, [sample.prompt for sample in samples])


def donor_prompts(loaded: LoadedModel, task: Task) -> Iterator[dict[str, Any]]:
    """The first images of a task with a prompt of each, for controls that take their direction from other images.

    Batches have a size of their own, so that a control does not depend on that of the run.
    """
    first: dict[Any, Sample] = {}
    for sample in task.samples:
        first.setdefault(sample.image_id, sample)
    for part in batches(list(first.values())[:_DONORS], _DONOR_BATCH):
        yield encode_samples(loaded, task, part)


def answer_batch(
    task: Task, loaded: LoadedModel, method: Method, samples: Sequence[Sample], decoding: Decoding,
    options: RunOptions,
) -> list[dict[str, Any]]:  # fmt: skip
    """The answers of one method to one batch."""
    inputs = encode_samples(loaded, task, samples)
    seeds = [sample_seed(options.seed, sample.id) for sample in samples]
    # Opened for each batch: outside of it the model is unsteered, as the likelihood needs it.
    with method.applied(loaded.model) as generate:
        written = answers(
            generate, loaded.model, loaded.processor, inputs, decoding, seeds, [sample.id for sample in samples]
        )
    rows: list[dict[str, Any]] = [
        {"id": sample.id, "answer": answer.text, "tokens": len(answer.ids), "finished": answer.finished}
        for sample, answer in zip(samples, written, strict=True)
    ]
    if not options.likelihood:
        return [{**row, "log_likelihood": None} for row in rows]
    sums = log_likelihoods(loaded.model, inputs, [answer.ids for answer in written])
    return [{**row, "log_likelihood": round(value, 4)} for row, value in zip(rows, sums, strict=True)]
