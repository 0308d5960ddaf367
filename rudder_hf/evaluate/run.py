"""A run: one task, one decoding and one model in one folder, with the answers of many variants of methods.

plan.json         what all variants share; a folder with another plan is refused
samples.jsonl     the samples, with what answers are scored against, so that scoring needs nothing else
answers/0.jsonl   finished batches, one file for each process
result.json       metrics of all variants that are finished; `rudder evaluate` writes table.md and table.tex beside it

A folder takes further variants later: a larger search generates what is new, a killed one goes on, and a method can be
added to yesterday's run.

What can change a result and what cannot: answers are generated in batches that are cut from the list of samples, the
same ones whichever process does them and whenever, so that interruptions and the number of processes change not a bit.
Another batch size changes the shapes of the matrix products, and with them the last bits of the logits; random numbers
belong to the sample, so an answer changes only where two tokens are equally likely to within rounding.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import torch

from ..methods import Method
from ..runtime.answers import STEP_BY_STEP, Decoding, answers, check_likelihood, log_likelihoods, sample_seed
from ..runtime.environment import Process, hardware, timestamp, versions
from ..runtime.errors import InputError, check_least
from ..runtime.models import LoadedModel
from ..runtime.report import Progress, no_progress
from ..runtime.store import Store, read_json_lines, write_new
from .methods import settings_record
from .result import Result, Scored, Scoring, build_result, score_answers
from .tasks import Sample, Task, encode_samples, samples_hash

_SAMPLES = "samples.jsonl"


@dataclass(frozen=True)
class Variant:
    """A method with its settings."""

    label: str  # what tables call it
    method: str  # name of the method
    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, method: Method, label: str | None = None) -> Self:
        """A method as it is run."""
        return cls(label or method.name, method.name, json.loads(json.dumps(settings_record(method))))

    @cached_property
    def key(self) -> str:
        """What its answers are found by: a digest of name and settings, however the settings came about."""
        settings = {name: value for name, value in self.settings.items() if name != "calibrated"}
        text = json.dumps([self.method, settings], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Batch:
    """A line of a file of answers: those of one variant to one batch, or the launch of a process."""

    key: str  # of the variant
    method: str
    settings: dict[str, Any]
    seconds: float
    rows: list[dict[str, Any]]
    launch: dict[str, Any] | None = None


@dataclass(frozen=True)
class RunOptions:
    """How to run, beside what is run."""

    batch_size: int = 8  # samples per batch
    seed: int = 0  # of sampling
    # Whether to measure how likely answers are to the unsteered model: "none", "own" image, or also given "other" ones
    likelihood: str = "own"
    command: str = ""  # what the user typed, for the result

    def __post_init__(self) -> None:
        check_least(self, batch_size=1)


class Run(Store):
    """The folder of a run: `Run(path)` reads one, `begin` starts or continues it; arguments as for [`Store`].

    ```python
    run = Run("results/scenes").begin(task, loaded, Decoding("greedy", 64))
    run.answer([methods.get("vanilla"), methods.get("vcd")])  # generates what is missing
    result = run.result(Scoring())
    ```
    """

    def __init__(self, path: str | Path, process: Process | None = None) -> None:
        super().__init__(path, "evaluate", process)

    def begin(self, task: Task, loaded: LoadedModel, decoding: Decoding, options: RunOptions | None = None) -> Self:
        """Start the folder, or see that it belongs to the same run.

        Raises:
            InputError: It belongs to another run, or wants likelihoods that the model does not give.
        """
        self.task, self.loaded, self.decoding, self.options = task, loaded, decoding, options or RunOptions()
        if self.options.likelihood == "other":
            check_likelihood(loaded.model)
        self.start(
            {
                "task": task.name,
                "kind": task.kind,
                "samples": len(task.samples),  # first, because it is what people change
                "data": {**task.data, "samples_sha256": samples_hash(task.samples)},
                "notes": task.notes,
                "model": loaded.record(),
                "decoding": decoding.record(),
                "prompt": task.prompt,
                "seed": self.options.seed,
                "likelihood": self.options.likelihood,
            }
        )
        lines = [json.dumps(asdict(sample), ensure_ascii=False) for sample in task.samples]
        write_new(self.path / _SAMPLES, "\n".join(lines) + "\n")
        return self

    # What is in the folder

    def samples(self) -> list[Sample]:
        """The samples, in order."""
        return read_json_lines(self.path / _SAMPLES, Sample)

    def answers(self) -> dict[tuple[str, str], dict[str, Any]]:
        """Answers by key of the variant and id of the sample."""
        found: dict[tuple[str, str], dict[str, Any]] = {}
        for batch in self.batches(Batch):
            for row in batch.rows:
                found.setdefault((batch.key, row["id"]), row)
        return found

    def variants(self) -> list[Variant]:
        """The variants that have answered every sample, in the order in which they were first run.

        Of several variants of one method, all but the first are called by what is set otherwise.

        Raises:
            InputError: There is none.
        """
        samples = {sample.id for sample in self.samples()}
        known: dict[str, Variant] = {}
        done: dict[str, set[str]] = {}
        for batch in self.batches(Batch):
            if batch.rows:
                known.setdefault(batch.key, Variant(batch.method, batch.method, batch.settings))
                done.setdefault(batch.key, set()).update(row["id"] for row in batch.rows)
        found: dict[str, Variant] = {}
        for key, variant in known.items():
            if not samples <= done[key]:
                continue
            if first := found.get(variant.method):
                changed = [n for n, v in variant.settings.items() if first.settings.get(n) != v and n != "calibrated"]
                label = f"{variant.method}[{', '.join(f'{n}={variant.settings[n]}' for n in changed)}]"
                found[label] = Variant(label, variant.method, variant.settings)
            else:
                found[variant.method] = variant
        if not found:
            raise InputError(f"{self.path} is not finished: repeat its command to continue it.")
        return list(found.values())

    def scored(
        self, variants: Sequence[Variant], scoring: Scoring | None = None, first: int | None = None
    ) -> list[Scored]:
        """Counts of variants on all samples, or on the first ones.

        Raises:
            InputError: Answers are missing.
        """
        plan, samples, done = self.plan(), self.samples()[:first], self.answers()
        found = []
        for variant in variants:
            rows = [done[variant.key, sample.id] for sample in samples if (variant.key, sample.id) in done]
            if missing := len(samples) - len(rows):
                raise InputError(
                    f"{self.path} is not finished: {missing} of {len(samples)} answers of {variant.label!r} are "
                    "missing. Repeat its command to continue it."
                )
            found.append(score_answers(plan["task"], plan["kind"], samples, rows, scoring or Scoring()))
        return found

    def result(self, scoring: Scoring, variants: Sequence[Variant] | None = None) -> Result:
        """Score variants, all that are finished unless some are given; differences are to the first.

        Raises:
            InputError: Answers are missing.
        """
        variants = variants or self.variants()
        scored = self.scored(variants, scoring)
        return build_result(self.plan(), self.samples(), variants, scored, scoring, self._record(variants))

    def _record(self, variants: Sequence[Variant]) -> dict[str, Any]:
        """When, how long, with what commands, versions and hardware: from all launches that took part."""
        labels = {variant.key: variant.label for variant in variants}
        seconds: dict[str, float] = dict.fromkeys(labels.values(), 0.0)
        tokens = dict.fromkeys(labels.values(), 0)
        launches = []
        for batch in self.batches(Batch):
            if batch.launch is not None:
                launches.append(batch.launch)
            elif label := labels.get(batch.key):
                seconds[label] = round(seconds[label] + batch.seconds, 3)
                tokens[label] += sum(row["tokens"] for row in batch.rows)
        return {
            "finished": timestamp(),
            "seconds": round(sum(seconds.values()), 3),
            "seconds_by_method": seconds,
            "tokens_by_method": tokens,
            "launches": sorted(launches, key=lambda launch: (launch["started"], launch["process"])),
        }

    # Answering

    def answer(
        self, methods: Sequence[Method], progress: Progress = no_progress, first: int | None = None, wait: bool = False
    ) -> bool:
        """Generate what this process has to and what is not there yet, after `begin`.

        Args:
            methods: What to generate with.
            progress: Is called with how far this process is.
            first: Answer this many of the samples only.
            wait: Whether to wait for the other processes.

        Returns:
            Whether everything is there; otherwise other processes are still at work.
        """
        samples, size = self.task.samples[:first], self.options.batch_size
        variants = [(method, Variant.of(method)) for method in methods]

        def left() -> int:
            done = self.answers()
            return sum((variant.key, sample.id) not in done for _, variant in variants for sample in samples)

        if not left():  # a finished run is shown again from a folder that cannot be written
            return True
        # All batches in a fixed order, of which this process takes its share.
        cuts = [(start, *variant) for start in range(0, len(samples), size) for variant in variants]
        mine = cuts[self.process.rank :: self.process.count]
        with self:
            done = set(self.answers())
            # With another batch size than before, part of a batch may be there already.
            parts = [[s for s in samples[start : start + size] if (v.key, s.id) not in done] for start, _, v in mine]
            total = sum(len(samples[start : start + size]) for start, _, _ in mine)
            finished = total - sum(map(len, parts))
            if finished < total:
                self.append(asdict(Batch("", "", {}, 0.0, [], self._launch())))
            what = f"{self.task.name}, {self.decoding.name}"
            for (_, method, variant), missing in zip(mine, parts, strict=True):
                if not missing:
                    continue
                progress(f"{what}, {method.name}", finished, total)
                started = time.perf_counter()
                try:
                    rows = answer_batch(self.task, self.loaded, method, missing, self.decoding, self.options)
                except torch.OutOfMemoryError as error:
                    raise InputError(
                        f"Memory does not suffice for batches of {len(missing)}: repeat the command with a smaller "
                        "--batch-size. What is finished is kept."
                    ) from error
                seconds = round(time.perf_counter() - started, 3)
                self.append(asdict(Batch(variant.key, variant.method, dict(variant.settings), seconds, rows)))
                finished += len(missing)
            progress(what, finished, total)
        if wait and self.process.count > 1:
            self.wait(left)
        return not left()

    def _launch(self) -> dict[str, Any]:
        """Describe this process, for the record of the run."""
        return {
            "started": timestamp(),
            "command": self.options.command,
            "process": self.process.rank,
            "processes": self.process.count,
            "batch_size": self.options.batch_size,
            "versions": versions(),
            "hardware": hardware(),
        }


def answer_batch(
    task: Task, loaded: LoadedModel, method: Method, samples: Sequence[Sample], decoding: Decoding,
    options: RunOptions,
) -> list[dict[str, Any]]:  # fmt: skip
    """The answers of one method to one batch, with their likelihoods."""
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
    measured = options.likelihood != "none" and loaded.model.config.model_type not in STEP_BY_STEP
    given = {"log_likelihood": inputs} if measured else {}
    if options.likelihood == "other":
        places = {sample.id: place for place, sample in enumerate(task.samples)}
        others = [task.samples[(places[sample.id] + 1) % len(task.samples)] for sample in samples]
        given["other_log_likelihood"] = encode_samples(loaded, task, samples, others)
    for name, prompts in given.items():
        sums = log_likelihoods(loaded.model, prompts, [answer.ids for answer in written])
        for row, value in zip(rows, sums, strict=True):
            row[name] = round(value, 4)
    return rows
