"""Saved answers scored again, of one run or of several, without a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..runtime.errors import InputError
from .result import Result, Scored, Scoring, build_result
from .run import Run, Variant


def score_runs(references: Sequence[str], scoring: Scoring) -> Result:
    """Score saved answers anew: the methods of one folder, or methods of several; differences are to the first.

    Args:
        references: FOLDER, for all of its methods, or FOLDER:METHOD.
        scoring: How to score all of them, so that lineages never mix.

    Raises:
        InputError: A folder is no finished run, lacks the method, or has other samples than the first.
    """
    (first, chosen), *others = (_split_reference(text) for text in references)
    if not others:
        return first.result(scoring, chosen)
    plan, asked = first.plan(), _asked(first)
    variants, scored = list[Variant](), list[Scored]()
    names: dict[str, list[str]] = {"model": [], "decoding": []}
    for run, found in ((first, chosen), *others):
        own = run.plan()
        if own["kind"] != plan["kind"]:
            kinds = f"{first.path} is {plan['kind']} and {run.path} is {own['kind']}"
            raise InputError(f"{kinds}: compare runs of one kind")
        if _asked(run) != asked:
            raise InputError(
                f"{first.path} and {run.path} do not have the same images and questions: compare runs on the same"
            )
        for part, seen in names.items():
            seen.append(own[part]["name"])
        variants += [replace(variant, label=f"{run.path}:{variant.label}") for variant in found]
        scored += run.scored(found, scoring)
    # Runs may differ in these.
    plan |= {part: {"name": " and ".join(dict.fromkeys(seen))} for part, seen in names.items()}
    return build_result(plan, first.samples(), variants, scored, scoring, {})


def _asked(run: Run) -> dict[str, Any]:
    return {sample.id: (sample.image_id, sample.reference) for sample in run.samples()}


def _split_reference(text: str) -> tuple[Run, list[Variant]]:
    """A run, and its variants, or the one that the text names after a colon."""
    path, label = (text, "") if Path(text).is_dir() else text.rpartition(":")[::2]
    if not path or not Path(path).is_dir():
        raise InputError(f"there is no results folder {text!r}; write FOLDER or FOLDER:METHOD")
    run = Run(path)
    run.plan()  # or this is no folder of a run
    found = {variant.label: variant for variant in run.variants()}
    if not label:
        return run, list(found.values())
    if label not in found:
        raise InputError(f"the run {path} has no method {label!r}; it has {', '.join(found)}")
    return run, [found[label]]
