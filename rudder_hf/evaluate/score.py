"""Answers scored again, captions of other programs scored, and two methods compared: none of it needs a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..metrics.chair import check_captions
from ..metrics.coco import read_captions_file, read_coco
from ..metrics.errors import InputError
from .result import ControlResult, MetricDifference, Result
from .run import Run, Variant
from .scoring import Scoring, build_result, score_answers
from .tasks.captions import chair_sample


def score_captions(path: Path, instances: Path, captions: Path | None, scoring: Scoring, seed: int = 0) -> Result:
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
    rows = [{"id": str(c.image_id), "answer": c.text, "tokens": 0} for c in written]
    plan: dict[str, Any] = {
        "task": "chair",
        "kind": "chair",
        "data": {"instances": instances.name, "captions": None if captions is None else captions.name},
        "notes": [] if captions else ["no reference captions were given: ground truth is the instances alone"],
        "model": {"name": path.stem},
        "decoding": {"name": "unknown"},
        "prompt": "",
        "seed": seed,
    }
    scored = score_answers("chair", "chair", samples, rows, scoring)
    return build_result(plan, samples, [Variant(path.stem, path.stem)], [scored], scoring, {})


@dataclass(frozen=True)
class Compared:
    """Two methods compared."""

    left: str  # folder and method
    right: str
    differences: dict[str, MetricDifference]  # right minus left, by metric
    control: ControlResult | None  # of captions: those of the left one cut to the recall of the right one


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
    (run_a, found_a), (run_b, found_b) = _split_reference(left), _split_reference(right)
    plan = run_a.plan()
    if plan["kind"] != run_b.plan()["kind"]:
        kinds = f"{run_a.path} is {plan['kind']} and {run_b.path} is {run_b.plan()['kind']}"
        raise InputError(f"{kinds}: compare runs of one kind")
    asked = [{s.id: (s.image_id, s.reference) for s in run.samples()} for run in (run_a, run_b)]
    if asked[0] != asked[1]:
        raise InputError(
            f"{run_a.path} and {run_b.path} do not have the same images and questions: compare runs on the same"
        )
    # The only methods of both sides are compared with each other, else each with itself.
    if len(found_a) == len(found_b) == 1:
        pairs = [(found_a[0], found_b[0])]
    else:
        pairs = [(a, b) for a in found_a for b in found_b if a.label == b.label]
    if not pairs:
        raise InputError(f"{run_a.path} and {run_b.path} have no method in common: write FOLDER:METHOD")
    compared, draws = [], (scoring.bootstrap, plan["seed"])
    for a, b in pairs:
        (own,), (other,) = run_a.scored([a], scoring), run_b.scored([b], scoring)
        names = f"{run_a.path}:{a.label}", f"{run_b.path}:{b.label}"
        compared.append(Compared(*names, other.minus(own, *draws), other.control(own, *draws)))
    return compared


def _split_reference(text: str) -> tuple[Run, list[Variant]]:
    """A run, and its variants, or the one that the text names after a colon."""
    path, label = (text, "") if Path(text).is_dir() else text.rpartition(":")[::2]
    if not path or not Path(path).is_dir():
        raise InputError(f"there is no results folder {text!r}; write FOLDER or FOLDER:METHOD")
    run = Run(path)
    run.plan()  # or this is no folder of a run
    found = {variant.label: variant for variant in run.finished()}
    if not label:
        return run, list(found.values())
    if label not in found:
        raise InputError(f"the run {path} has no method {label!r}; it has {', '.join(found)}")
    return run, [found[label]]
