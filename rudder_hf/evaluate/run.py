"""A run from beginning to end, scoring it again, and comparing two of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..methods import Intervention
from ..metrics.coco import read_captions_file, read_coco
from ..metrics.errors import InputError, listed
from ..metrics.statistics import compare
from ..runtime.decoding import Decoding
from ..runtime.folder import RunFolder
from ..runtime.journal import write_new
from ..runtime.models import Subject
from ..runtime.processes import Process
from .result import RESULT_FILE, EvaluationResult, MetricDifference
from .runner import Progress, RunOptions, make_plan, run, run_record
from .scoring import Scoring, build_result, metric_difference, score
from .tables import paper_latex, run_markdown
from .tasks.base import Task
from .tasks.chair import chair_sample

MARKDOWN_FILE, LATEX_FILE = "table.md", "table.tex"


def evaluate(
    task: Task, subject: Subject, methods: Sequence[Intervention], decoding: Decoding, out: str | Path,
    prompt: str = "", options: RunOptions | None = None, scoring: Scoring | None = None,
    process: Process | None = None, progress: Progress | None = None,
) -> EvaluationResult | None:  # fmt: skip
    """Run a task, or what is left of it, and score it.

    Args:
        task: What to ask.
        subject: The model.
        methods: Ways to decode; differences are to the first.
        decoding: How answers are written.
        out: A new folder, or the folder of this very run, which is then continued.
        prompt: The form of the prompts, for the result; empty is the first sample's.
        options: Batch size, seed and the like.
        scoring: Lineage, parser, draws of the bootstrap.
        process: Which one of several this is.
        progress: Is told how far this process is.

    Returns:
        The result; None while other processes still have to finish, the last of which writes it.

    Raises:
        ValueError: The folder belongs to another run.
    """
    options, scoring = options or RunOptions(), scoring or Scoring()
    folder = start(out, task, subject, methods, decoding, prompt, options)
    return proceed(folder, task, subject, methods, decoding, options, scoring, process, progress)


def start(
    out: str | Path, task: Task, subject: Subject, methods: Sequence[Intervention], decoding: Decoding,
    prompt: str | None, options: RunOptions,
) -> RunFolder:  # fmt: skip
    """Start the folder of a run, or see that it is this run's.

    Raises:
        ValueError: The folder belongs to another run.
    """
    folder = RunFolder(out)
    plan = make_plan(task, subject, methods, decoding, prompt or task.samples[0].prompt, options)
    folder.prepare(plan, task.samples)
    return folder


def proceed(
    folder: RunFolder, task: Task, subject: Subject, methods: Sequence[Intervention], decoding: Decoding,
    options: RunOptions, scoring: Scoring, process: Process | None = None, progress: Progress | None = None,
) -> EvaluationResult | None:  # fmt: skip
    """Do what is left of a run, and score it when nothing is."""
    if run(task, subject, methods, decoding, folder, options, process, progress):
        return None
    return finish(folder, scoring)


def finish(folder: RunFolder, scoring: Scoring) -> EvaluationResult:
    """Gather the answers of all processes, score them, and write everything down, unless that was done before."""
    plan, samples, done = folder.plan(), folder.questions(), folder.done()
    rows = [{"method": m, **done[m, s.id]} for m in plan["methods"] for s in samples]
    folder.write_samples(rows)
    path = folder.path / RESULT_FILE
    if not path.exists():
        result = build_result(plan, samples, rows, scoring, run_record(folder))
        write_new(folder.path / MARKDOWN_FILE, run_markdown(result))
        write_new(folder.path / LATEX_FILE, paper_latex([result]))
        write_new(path, result.to_json())
    return EvaluationResult.load(path)


def rescore(source: str | Path, scoring: Scoring) -> EvaluationResult:
    """Score the saved answers of a finished run again, without a model and without its data.

    Raises:
        ValueError: The run has not finished, or this is no run.
    """
    folder = RunFolder(source)
    old = EvaluationResult.load(folder.path) if (folder.path / RESULT_FILE).is_file() else None
    record = {**(old.run if old else run_record(folder)), "rescored": True}
    return build_result(folder.plan(), folder.questions(), folder.rows(), scoring, record)


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
    unknown = sorted({c.image_id for c in written if c.image_id not in data.files})
    if unknown:
        raise InputError(f"{len(unknown)} captioned images have no annotation: {listed(unknown)}")
    ids = [caption.image_id for caption in written]
    twice = sorted({i for i in ids if ids.count(i) > 1}) if len(set(ids)) < len(ids) else []
    if twice:
        raise InputError(f"{len(twice)} images have several captions: {listed(twice)}; remove them from {path}")
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


def save_rescored(result: EvaluationResult, folder: Path) -> Path:
    """Write a result beside the first one, under a number of its own."""
    number = 2
    while not write_new(path := folder / f"result-{number:03d}.json", result.to_json()):
        number += 1
    return path


def split_reference(text: str) -> tuple[Path, str | None]:
    """A results folder, and the method if the text ends in `:METHOD`.

    Raises:
        ValueError: There is no such folder or method.
    """
    if Path(text).is_dir():
        return Path(text), None
    path, colon, method = text.rpartition(":")
    if colon and Path(path).is_dir():
        methods = RunFolder(path).plan()["methods"]
        if method not in methods:
            raise InputError(f"the run {path} has no method {method!r}; it has {', '.join(methods)}")
        return Path(path), method
    raise InputError(f"there is no results folder {text!r}; write FOLDER or FOLDER:METHOD")


Comparison = dict[str, dict[str, MetricDifference]]


def compare_runs(left: str, right: str, scoring: Scoring) -> Comparison:
    """Right minus left, on the same pictures and questions.

    Args:
        left: FOLDER or FOLDER:METHOD.
        right: The same. Without methods, those that both runs have are compared each with itself.
        scoring: Both are scored anew in this way, so that lineages never mix.

    Returns:
        Differences by metric, for each pair of methods.

    Raises:
        ValueError: The runs have different samples, or no method in common.
    """
    sides = []
    for text in (left, right):
        path, method = split_reference(text)
        folder = RunFolder(path)
        plan, samples, rows = folder.plan(), folder.questions(), folder.rows()
        sides.append((path, method, plan, samples, score(plan, samples, rows, scoring)))
    (path_a, method_a, plan_a, samples_a, scores_a), (path_b, method_b, plan_b, samples_b, scores_b) = sides
    if plan_a["kind"] != plan_b["kind"]:
        raise InputError(f"{path_a} is {plan_a['kind']} and {path_b} is {plan_b['kind']}: compare runs of one kind")
    references_a, references_b = ({s.id: (s.image_id, s.reference) for s in side} for side in (samples_a, samples_b))
    if references_a != references_b:
        raise InputError(f"{path_a} and {path_b} do not have the same images and questions: compare runs on the same")
    pairs = _pairs(method_a, method_b, list(scores_a), list(scores_b))
    if not pairs:
        raise InputError(f"{path_a} and {path_b} have no method in common: write FOLDER:METHOD")
    found: Comparison = {}
    for a, b in pairs:
        common = [m for m in scores_a[a].metrics if m.name in {n.name for n in scores_b[b].metrics}]
        counts = [entry.counts for entry in (scores_a[a], scores_b[b])]
        columns = [c for c in counts[0].columns if c in counts[1].columns]
        one, two = (
            replace(c, columns=tuple(columns), values=c.values[:, [c.columns.index(name) for name in columns]])
            for c in counts
        )
        differences = compare(one, two, common, scoring.bootstrap, plan_a["seed"])
        name = f"{path_b}:{b} - {path_a}:{a}"
        found[name] = {m.name: metric_difference(m, differences[m.name]) for m in common}
    return found


def _pairs(a: str | None, b: str | None, in_a: list[str], in_b: list[str]) -> list[tuple[str, str]]:
    if a and b:
        return [(a, b)]
    if a or b:
        chosen = a or b or ""
        other = in_b if a else in_a
        if chosen in other:
            return [(chosen, chosen)]
        if len(other) == 1:
            return [(chosen, other[0])] if a else [(other[0], chosen)]
        return []
    if len(in_a) == len(in_b) == 1:
        return [(in_a[0], in_b[0])]
    return [(name, name) for name in in_a if name in in_b]
