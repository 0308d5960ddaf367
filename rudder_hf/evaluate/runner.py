"""One runner for all tasks: batches, progress, resuming, several processes.

What can change a result and what cannot: answers are generated in batches that are cut from the list of samples, the
same ones whoever does them and whenever, so that interruptions and the number of processes change not a bit. Another
batch size changes the shapes of the matrix products, and with them the last bits of the logits; random numbers belong
to the sample, so an answer changes only where two tokens are equally likely to within rounding.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..methods import Intervention
from ..runtime.decoding import Decoding, sample_seed
from ..runtime.environment import hardware, timestamp, versions
from ..runtime.folder import RunFolder
from ..runtime.inputs import answers, encode, log_likelihoods
from ..runtime.journal import Journal
from ..runtime.models import Subject
from ..runtime.processes import Process
from .methods import settings_record
from .tasks.base import Sample, Task, samples_hash

Progress = Callable[[int, int], None]


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

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"The batch size is {self.batch_size}, but has to be at least 1.")


def make_plan(
    task: Task, subject: Subject, methods: Sequence[Intervention], decoding: Decoding, prompt: str, options: RunOptions
) -> dict[str, Any]:
    """Everything that a result depends on: two runs with the same plan are one run."""
    return {
        "task": task.name,
        "kind": task.kind,
        "data": {**task.data, "samples_sha256": samples_hash(task.samples)},
        "notes": task.notes,
        "model": subject.record(),
        "methods": {method.name: settings_record(method) for method in methods},
        "decoding": decoding.record(),
        "prompt": prompt,
        "seed": options.seed,
        "likelihood": options.likelihood,
    }


def run(
    task: Task, subject: Subject, methods: Sequence[Intervention], decoding: Decoding, folder: RunFolder,
    options: RunOptions, process: Process | None = None, progress: Progress | None = None,
) -> int:  # fmt: skip
    """Generate what this process has to and what is not there yet. The folder must be prepared.

    Args:
        task: The samples.
        subject: The model.
        methods: Each answers every sample.
        decoding: How answers are written.
        folder: Where they go.
        options: Batch size and the like.
        process: Which one of several this is.
        progress: Is told how many answers of this process are there, and how many there will be.

    Returns:
        How many answers of other processes are still missing.
    """
    process = process or Process()
    with Journal(folder.answers, process.rank, process.count) as journal:
        done = set(folder.done())
        batches = _batches(task.samples, len(methods), options.batch_size)
        mine = [
            (methods[m], batch) for number, (m, batch) in enumerate(batches) if number % process.count == process.rank
        ]
        total = sum(len(batch) for _, batch in mine)
        finished = sum((method.name, sample.id) in done for method, batch in mine for sample in batch)
        if progress:
            progress(finished, total)
        if finished < total:
            journal.append({"launch": _launch(options, process), "method": "", "rows": []})
        for method, batch in mine:
            # With another batch size than before, part of a batch may be there already.
            missing = [sample for sample in batch if (method.name, sample.id) not in done]
            if not missing:
                continue
            started = time.perf_counter()
            rows = answer_batch(task, subject, method, missing, decoding, options)
            seconds = round(time.perf_counter() - started, 3)
            journal.append({"method": method.name, "seconds": seconds, "rows": rows})
            finished += len(missing)
            if progress:
                progress(finished, total)
    return len(task.samples) * len(methods) - len(folder.done())


def _batches(samples: Sequence[Sample], methods: int, size: int) -> list[tuple[int, Sequence[Sample]]]:
    """All batches of a run in a fixed order: number of the method, and samples."""
    return [(m, samples[start : start + size]) for m in range(methods) for start in range(0, len(samples), size)]


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


def answer_batch(
    task: Task, subject: Subject, method: Intervention, samples: Sequence[Sample], decoding: Decoding,
    options: RunOptions,
) -> list[dict[str, Any]]:  # fmt: skip
    """The answers of one method to one batch."""
    pictures = [task.image(sample) for sample in samples]
    inputs = encode(subject.model, subject.processor, pictures, [sample.prompt for sample in samples])
    seeds = [sample_seed(options.seed, sample.id) for sample in samples]
    # Opened for each batch: outside of it the model is unsteered, as the likelihood needs it.
    with method.applied(subject.model) as generate:
        written = answers(
            generate, subject.model, subject.processor, inputs, decoding, seeds, [sample.id for sample in samples]
        )
    likely: list[float | None] = [None] * len(written)
    if options.likelihood:
        sums = log_likelihoods(subject.model, inputs, [answer.ids for answer in written])
        likely = [round(value, 4) for value in sums]
    return [
        {
            "id": sample.id,
            "answer": answer.text,
            "tokens": len(answer.ids),
            "finished": answer.finished,
            "log_likelihood": value,
        }
        for sample, answer, value in zip(samples, written, likely, strict=True)
    ]


def run_record(folder: RunFolder) -> dict[str, Any]:
    """When, how long, with what command, versions and hardware: from all launches that took part."""
    from ..runtime.journal import read_batches

    launches: list[dict[str, Any]] = []
    seconds: dict[str, float] = {}
    tokens: dict[str, int] = {}
    for batch in read_batches(folder.answers):
        if "launch" in batch:
            launches.append(batch["launch"])
            continue
        name = batch["method"]
        seconds[name] = round(seconds.get(name, 0.0) + batch["seconds"], 3)
        tokens[name] = tokens.get(name, 0) + sum(row["tokens"] for row in batch["rows"])
    launches.sort(key=lambda launch: (launch["started"], launch["process"]))
    return {
        "finished": timestamp(),
        "seconds": round(sum(seconds.values()), 3),
        "seconds_by_method": seconds,
        "tokens_by_method": tokens,
        "launches": launches,
    }
