"""The results folder of an evaluation: what it holds, its answers scored again, and two of them compared.

plan.json        what is evaluated; a folder with another plan is refused
questions.jsonl  the samples, with what the answers are scored against, so that scoring needs nothing else
batches/         finished batches, one file for each process
samples.jsonl    all answers, in order             } written when everything is done,
result.json      metrics, and how they came about  } never overwritten
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypedDict

from ..metrics.chair import check_captions
from ..metrics.coco import read_captions_file, read_coco
from ..metrics.errors import InputError
from ..runtime.environment import Process, timestamp
from ..runtime.store import Store, check_folder, numbered_path, read_json_lines, to_json_lines, write_new
from .result import RESULT_FILE, ControlResult, EvaluationResult, MetricDifference
from .scoring import Scoring, build_result, score_run
from .tasks.base import Sample
from .tasks.captions import chair_sample

Done = dict[tuple[str, str], dict[str, Any]]
"""Answers by method and sample."""
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
    """The files of one run; arguments as for [`Store`]."""

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

    def done(self) -> Done:
        """Answers of finished batches, by method and sample."""
        found: Done = {}
        for batch in self.batches(Answers):
            for row in batch["rows"]:
                found.setdefault((batch["method"], row["id"]), row)
        return found

    def gather(self, done: Done) -> list[dict[str, Any]]:
        """All answers in order, once every batch is done; they are written down unless another process has."""
        samples = self.questions()
        rows = [{"method": m, **done[m, sample.id]} for m in self.plan()["methods"] for sample in samples]
        write_new(self.path / _SAMPLES, to_json_lines(rows))
        return rows

    def rows(self) -> list[dict[str, Any]]:
        """All answers of a finished run, in order.

        Raises:
            InputError: The run has not finished.
        """
        path = self.path / _SAMPLES
        if not path.is_file():
            raise InputError(f"{self.path} is not finished: repeat its command to continue it")
        return read_json_lines(path, _MethodAnswer)

    def record(self) -> dict[str, Any]:
        """When, how long, with what command, versions and hardware: from all launches that took part."""
        batches = list(self.batches(Answers))
        launches = [batch["launch"] for batch in batches if "launch" in batch]
        answered = [batch for batch in batches if "launch" not in batch]
        seconds: dict[str, float] = dict.fromkeys((batch["method"] for batch in answered), 0.0)
        tokens = dict.fromkeys(seconds, 0)
        for batch in answered:
            name = batch["method"]
            seconds[name] = round(seconds[name] + batch["seconds"], 3)
            tokens[name] += sum(row["tokens"] for row in batch["rows"])
        return {
            "finished": timestamp(),
            "seconds": round(sum(seconds.values()), 3),
            "seconds_by_method": seconds,
            "tokens_by_method": tokens,
            "launches": sorted(launches, key=lambda launch: (launch["started"], launch["process"])),
        }


def rescore(source: str | Path, scoring: Scoring) -> EvaluationResult:
    """Score the saved answers of a finished run again, without a model and without its data.

    Raises:
        InputError: The run has not finished, or this is no run.
    """
    folder = RunFolder(source)
    plan, rows = folder.plan(), folder.rows()
    old = EvaluationResult.load(folder.path) if (folder.path / RESULT_FILE).is_file() else None
    record = {**(old.run if old else folder.record()), "rescored": True}
    return build_result(plan, folder.questions(), rows, scoring, record)


def save_rescored(result: EvaluationResult, folder: Path, own: bool = False) -> Path:
    """Write a result beside the first one, under a number of its own.

    Raises:
        InputError: The folder belongs to a run, and that is not the result's `own`.
    """
    check_folder(folder, own)
    path = numbered_path(folder, "result", ".json", first=2)
    return path if write_new(path, result.to_json()) else save_rescored(result, folder, own)


def score_captions(
    path: Path, instances: Path, captions: Path | None, scoring: Scoring, seed: int = 0
) -> EvaluationResult:
    """CHAIR of a file of captions that some other program wrote.

    Args:
        path: JSON list or lines of `{"image_id": 139, "caption": "..."}`.
        instances: COCO's `instances_*.json`.
        captions: COCO's `captions_*.json`; None leaves reference captions out of the ground truth.
        scoring: The lineage.
        seed: Of the bootstrap.
    """
    data = read_coco(instances, captions)
    written = read_captions_file(path)
    check_captions(written, data.files)
    samples = [
        chair_sample(c.image_id, data.files[c.image_id], "", data.objects[c.image_id], data.references[c.image_id])
        for c in written
    ]
    rows = [
        {"method": path.stem, "id": str(c.image_id), "answer": c.text, "tokens": 0, "log_likelihood": None}
        for c in written
    ]
    plan: dict[str, Any] = {
        "task": "chair",
        "kind": "chair",
        "data": {"instances": instances.name, "captions": None if captions is None else captions.name},
        "notes": [] if captions else ["no reference captions were given: ground truth is the instances alone"],
        "model": {"name": path.stem},
        "methods": {path.stem: {}},
        "decoding": {"name": "unknown"},
        "prompt": "",
        "seed": seed,
    }
    return build_result(plan, samples, rows, scoring, {"rescored": True})


@dataclass(frozen=True)
class Compared:
    """Two methods compared.

    Attributes:
        left: Folder and method.
        right: The same.
        differences: Right minus left, by metric.
        control: Of captions: those of the left one cut to the recall of the right one.
    """

    left: str
    right: str
    differences: dict[str, MetricDifference]
    control: ControlResult | None


def compare_runs(left: str, right: str, scoring: Scoring) -> list[Compared]:
    """Right minus left, on the same images and questions.

    Args:
        left: FOLDER or FOLDER:METHOD.
        right: The same. Without methods, those that both runs have are compared each with itself.
        scoring: Both are scored anew in this way, so that lineages never mix.

    Returns:
        One entry for each pair of methods.

    Raises:
        InputError: The runs have different samples, or no method in common.
    """
    sides = []
    for text in (left, right):
        folder, method = _split_reference(text)
        plan, samples = folder.plan(), folder.questions()
        asked = {sample.id: (sample.image_id, sample.reference) for sample in samples}
        sides.append((folder.path, method, plan, asked, score_run(plan, samples, folder.rows(), scoring)))
    (path_a, method_a, plan_a, asked_a, scores_a), (path_b, method_b, plan_b, asked_b, scores_b) = sides
    if plan_a["kind"] != plan_b["kind"]:
        raise InputError(f"{path_a} is {plan_a['kind']} and {path_b} is {plan_b['kind']}: compare runs of one kind")
    if asked_a != asked_b:
        raise InputError(f"{path_a} and {path_b} do not have the same images and questions: compare runs on the same")
    names_a, names_b = [method_a] if method_a else list(scores_a), [method_b] if method_b else list(scores_b)
    # The only methods of both sides are compared with each other, else each with itself.
    alone = len(names_a) == len(names_b) == 1
    pairs = [(names_a[0], names_b[0])] if alone else [(name, name) for name in names_a if name in names_b]
    if not pairs:
        raise InputError(f"{path_a} and {path_b} have no method in common: write FOLDER:METHOD")
    draws = scoring.bootstrap, plan_a["seed"]
    return [
        Compared(
            f"{path_a}:{a}",
            f"{path_b}:{b}",
            scores_b[b].minus(scores_a[a], *draws),
            scores_b[b].control(scores_a[a], *draws),
        )
        for a, b in pairs
    ]


def _split_reference(text: str) -> tuple[RunFolder, str | None]:
    """A results folder, and the method if the text ends in `:METHOD`."""
    if Path(text).is_dir():
        return RunFolder(text), None
    path, colon, method = text.rpartition(":")
    if not colon or not Path(path).is_dir():
        raise InputError(f"there is no results folder {text!r}; write FOLDER or FOLDER:METHOD")
    folder = RunFolder(path)
    methods = folder.plan()["methods"]
    if method not in methods:
        raise InputError(f"the run {path} has no method {method!r}; it has {', '.join(methods)}")
    return folder, method
