"""The results folder of an evaluation.

plan.json        what is evaluated; a folder with another plan is refused
questions.jsonl  the samples, with what the answers are scored against, so that scoring needs nothing else
batches/         finished batches, one file for each process
samples.jsonl    all answers, in order             } written when everything is done,
result.json      metrics, and how they came about  } never overwritten
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypedDict

from ..metrics.errors import InputError
from ..runtime.environment import Process
from ..runtime.store import Store, read_json_lines, to_json_lines, write_new
from .tasks.base import Sample

Rows = list[dict[str, Any]]
_QUESTIONS, _SAMPLES = "questions.jsonl", "samples.jsonl"


class Answer(TypedDict):
    """One answer of one method, as batches hold it."""

    id: str
    answer: str
    tokens: int
    log_likelihood: float | None


class _Launch(TypedDict):
    started: str
    process: int


class _MayHaveLaunch(TypedDict, total=False):
    launch: _Launch


class Answers(_MayHaveLaunch):
    """A batch: answers of one method, or none where a launch is written down."""

    method: str
    seconds: float
    rows: list[Answer]


class _MethodAnswer(Answer):
    method: str


class _Plan(TypedDict):
    task: str
    kind: str
    data: dict[str, Any]
    notes: list[str]
    model: dict[str, Any]
    methods: dict[str, dict[str, Any]]
    decoding: dict[str, Any]
    prompt: str
    seed: int


class RunFolder(Store):
    """The files of one run.

    Args:
        path: The folder.
        process: Which of several processes this one is.
    """

    plan_kind = _Plan

    def __init__(self, path: str | Path, process: Process | None = None) -> None:
        super().__init__(path, "evaluate", process)

    def begin(self, plan: dict[str, Any], samples: Sequence[Sample]) -> None:
        """Start the folder, or see that it belongs to the same run.

        Raises:
            InputError: It belongs to another run.
        """
        self.start(plan)
        write_new(self.path / _QUESTIONS, to_json_lines(asdict(sample) for sample in samples))

    def questions(self) -> list[Sample]:
        """The samples."""
        return read_json_lines(self.path / _QUESTIONS, Sample)

    def done(self) -> dict[tuple[str, str], dict[str, Any]]:
        """Answers of finished batches, by method and sample."""
        found: dict[tuple[str, str], dict[str, Any]] = {}
        for batch in self.batches(Answers):
            for row in batch["rows"]:
                found.setdefault((batch["method"], row["id"]), row)
        return found

    def gather(self) -> Rows:
        """All answers in order, once every batch is done; they are written down unless another process has."""
        samples, done = self.questions(), self.done()
        rows = [{"method": m, **done[m, sample.id]} for m in self.plan()["methods"] for sample in samples]
        write_new(self.path / _SAMPLES, to_json_lines(rows))
        return rows

    def rows(self) -> Rows:
        """All answers of a finished run, in order.

        Raises:
            InputError: The run has not finished.
        """
        path = self.path / _SAMPLES
        if not path.is_file():
            raise InputError(f"{self.path} is not finished: repeat its command to continue it")
        return read_json_lines(path, _MethodAnswer)
