"""Saved answers scored again, captions of other programs scored, and two runs compared."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from ..metrics.coco import read_captions_file, read_coco
from ..metrics.errors import InputError, listed
from ..runtime.store import numbered_path, write_new
from .folder import RunFolder
from .result import RESULT_FILE, EvaluationResult, MetricDifference
from .run import run_record
from .scoring import Scoring, build_result, score_run
from .tasks.captions import chair_sample


def rescore(source: str | Path, scoring: Scoring) -> EvaluationResult:
    """Score the saved answers of a finished run again, without a model and without its data.

    Raises:
        InputError: The run has not finished, or this is no run.
    """
    folder = RunFolder(source)
    plan, rows = folder.plan(), folder.rows()
    old = EvaluationResult.load(folder.path) if (folder.path / RESULT_FILE).is_file() else None
    record = {**(old.run if old else run_record(folder)), "rescored": True}
    return build_result(plan, folder.questions(), rows, scoring, record)


def save_rescored(result: EvaluationResult, folder: Path) -> Path:
    """Write a result beside the first one, under a number of its own."""
    path = numbered_path(folder, "result", ".json", first=2)
    return path if write_new(path, result.to_json()) else save_rescored(result, folder)


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
    twice = [image for image, count in Counter(caption.image_id for caption in written).items() if count > 1]
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


def compare_runs(left: str, right: str, scoring: Scoring) -> dict[str, dict[str, MetricDifference]]:
    """Right minus left, on the same images and questions.

    Args:
        left: FOLDER or FOLDER:METHOD.
        right: The same. Without methods, those that both runs have are compared each with itself.
        scoring: Both are scored anew in this way, so that lineages never mix.

    Returns:
        Differences by metric, for each pair of methods.

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
    pairs = _pairs([method_a] if method_a else list(scores_a), [method_b] if method_b else list(scores_b))
    if not pairs:
        raise InputError(f"{path_a} and {path_b} have no method in common: write FOLDER:METHOD")
    return {
        f"{path_b}:{b} - {path_a}:{a}": scores_b[b].minus(scores_a[a], scoring.bootstrap, plan_a["seed"])
        for a, b in pairs
    }


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


def _pairs(left: list[str], right: list[str]) -> list[tuple[str, str]]:
    """Methods to compare: the only ones of both sides with each other, else each with itself."""
    if len(left) == len(right) == 1:
        return [(left[0], right[0])]
    return [(name, name) for name in left if name in right]
