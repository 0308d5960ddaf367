"""A results folder: what is being evaluated, finished batches, and in the end answers, result and tables.

run.json         what is evaluated; a folder with another one is refused
questions.jsonl  the samples, with what the answers are scored against, so that scoring needs nothing else
answers/         finished batches, one file for each process
samples.jsonl    all answers, in order             } written when everything is done,
result.json      metrics, and how they came about  } never overwritten
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..evaluate.tasks.base import Sample
from .journal import read_batches, write_new

RUN_FILE, QUESTIONS_FILE, SAMPLES_FILE = "run.json", "questions.jsonl", "samples.jsonl"
ANSWERS_FOLDER = "answers"
Key = tuple[str, str]  # method and sample


class RunFolder:
    """The files of one run.

    Args:
        path: The folder.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.answers = self.path / ANSWERS_FOLDER

    def prepare(self, plan: dict[str, Any], samples: Sequence[Sample]) -> None:
        """Start the folder, or see that it belongs to the same run.

        Raises:
            ValueError: It belongs to another run, or is no results folder.
            OSError: It cannot be written.
        """
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{self.path} is a file: give a folder for the results.")
        if self.path.is_dir() and not (self.path / RUN_FILE).exists():
            others = sorted(p.name for p in self.path.iterdir() if p.name[0] != "." and p.name != QUESTIONS_FILE)
            if others:
                raise ValueError(
                    f"{self.path} is not empty and holds no run of rudder evaluate ({', '.join(others[:3])}): "
                    "choose a new folder."
                )
        write_new(self.path / QUESTIONS_FILE, json_lines(asdict(sample) for sample in samples))
        if write_new(self.path / RUN_FILE, json.dumps(plan, indent=2, ensure_ascii=False) + "\n"):
            return
        stored = self.plan()
        different = sorted(name for name in {*plan, *stored} if plan.get(name) != stored.get(name))
        if different:
            raise ValueError(
                f"{self.path} holds another run: {_tell(different, stored, plan)}. Choose a new folder, or repeat the "
                "command of that run to continue it."
            )

    def plan(self) -> dict[str, Any]:
        """What is evaluated.

        Raises:
            ValueError: This is no results folder.
        """
        path = self.path / RUN_FILE
        if not path.is_file():
            raise ValueError(f"{self.path} is no results folder of rudder evaluate: there is no {RUN_FILE} in it.")
        try:
            plan = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path} is damaged: {error}.") from error
        if not isinstance(plan, dict):
            raise ValueError(f"{path} is damaged: it holds no object.")
        return plan

    def questions(self) -> list[Sample]:
        """The samples."""
        return [Sample(**record) for record in read_json_lines(self.path / QUESTIONS_FILE)]

    def done(self) -> dict[Key, dict[str, Any]]:
        """Answers of finished batches, by method and sample."""
        found: dict[Key, dict[str, Any]] = {}
        for batch in read_batches(self.answers):
            for row in batch["rows"]:
                found.setdefault((batch["method"], row["id"]), row)
        return found

    def rows(self) -> list[dict[str, Any]]:
        """All answers of a finished run, in order.

        Raises:
            ValueError: The run has not finished.
        """
        path = self.path / SAMPLES_FILE
        if not path.is_file():
            raise ValueError(f"{self.path} is not finished: repeat its command to continue it.")
        return read_json_lines(path)

    def write_samples(self, rows: Iterable[dict[str, Any]]) -> None:
        """Write all answers, unless another process has."""
        write_new(self.path / SAMPLES_FILE, json_lines(rows))


def json_lines(records: Iterable[dict[str, Any]]) -> str:
    """One JSON object per line."""
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Read what `json_lines` wrote.

    Raises:
        ValueError: A line is damaged.
    """
    records = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        if line.strip():
            try:
                records.append(json.loads(line))
            except ValueError as error:
                raise ValueError(f"Line {number} of {path} is not JSON: {error}.") from error
    return records


def _tell(names: list[str], stored: dict[str, Any], plan: dict[str, Any]) -> str:
    """Differences in words, short enough for one line."""

    def short(value: Any) -> str:
        text = json.dumps(value, ensure_ascii=False)
        return text if len(text) <= 120 else text[:117] + "..."

    return "; ".join(f"{name} is {short(stored.get(name))} there and {short(plan.get(name))} here" for name in names)
