"""`analyze`: gather, compute, draw, report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .. import __version__
from ..calibrate.layers import stored_layer_statistics
from ..calibrate.outcome import read_result
from ..core.backbones import find_backbone, resolve_layer
from ..metrics.errors import InputError
from ..runtime.environment import versions
from ..runtime.progress import Progress, no_progress, stages
from ..runtime.store import Store, to_json, write_new
from .gather import Gatherer
from .numbers import (
    Material,
    Notes,
    detectors,
    geometry_numbers,
    present_objects,
    token_numbers,
)
from .report import write_report
from .study import AnalysisOptions, Study

NUMBERS_FILE = "numbers.json"


def check_folder(out: Path) -> None:
    """See that a folder is new or holds an unfinished analysis, before a model is loaded.

    Raises:
        InputError: It is something else.
    """
    Store(out, "analyze").check()
    if (out / NUMBERS_FILE).exists():
        raise InputError(f"{out} holds a finished analysis, which is never overwritten: choose a new folder.")


def read_calibration(path: Path) -> dict[str, Any]:
    """What the figures need of a calibration's result.

    Raises:
        InputError: There is none, or it has no scores of captions.
    """
    numbers = read_result(path)
    if "chair_s" not in numbers["settings"][0]["scores"]:
        raise InputError(f"{path} has no CHAIR scores: the calibration was run without annotations")
    kept = {name: numbers[name] for name in ("model", "layers", "probes", "settings", "pope")}
    return {"date": numbers["record"]["date"], **kept}


def analyze(
    out: Path,
    study: Study | None,
    options: AnalysisOptions,
    calibration: dict[str, Any] | None = None,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Analyze a model on images, and write numbers, figures and the report into a folder.

    Args:
        out: A new folder, or that of the same analysis, which is continued.
        study: The model, the images and RUDDER's settings; None if only ablations are wanted.
        options: What to do.
        calibration: From `read_calibration`.
        progress: Reports progress.

    Returns:
        The numbers.

    Raises:
        InputError: The folder is not new, or there is no image of the wanted id.
    """
    plan: dict[str, Any] = {"version": __version__, "parts": list(options.parts), "seed": options.seed}
    if calibration is not None:
        plan["calibration"] = calibration["date"]
    if study is not None:
        plan |= study.record(options)
        ids = [sample.id for sample in study.task.samples]
        if options.token_image is not None and options.token_image not in ids:
            raise InputError(f"--token-image {options.token_image} is not among the images, such as {ids[0]}")
    check_folder(out)
    store = Store(out, "analyze")
    store.start(plan)
    asked = 0 if study is None else 2 + ("layers" in options.parts)
    stage = stages(progress, [""] * (asked + 1))
    notes = Notes()
    numbers: dict[str, Any] = {"format": 2, "command": options.command, "versions": versions(), **plan}
    if study is not None:
        numbers |= _study_numbers(store, study, options, notes, stage)
    if "ablations" in options.parts:
        if calibration is None:
            notes.left_out("Ablations", "there is no --calibration FOLDER of `rudder calibrate`")
        else:
            numbers["ablations"] = calibration
            if not calibration["pope"]:
                notes.left_out("POPE around the chosen setting", "the calibration was run without --check pope")
    numbers["notes"] = notes
    images = {}
    if study is not None and "tokens" in numbers:
        shown = {entry["id"] for entry in (*numbers["tokens"]["shown"], numbers["tokens"]["figure"])}
        images = {sample.id: study.task.image(sample) for sample in study.task.samples if sample.id in shown}
    progress = next(stage)
    progress("figures and report", 0, 1)
    numbers["figures"] = write_report(out, numbers, images)
    # Last: a folder with this file is complete.
    write_new(out / NUMBERS_FILE, to_json(numbers))
    progress("figures and report", 1, 1)
    return numbers


def _study_numbers(
    store: Store, study: Study, options: AnalysisOptions, notes: Notes, stage: Iterator[Progress]
) -> dict[str, Any]:
    """The parts about a model and images."""
    present = present_objects(study, options)  # before hours are spent
    gatherer = Gatherer(study, options.max_new_tokens or study.task.max_new_tokens)
    numbers: dict[str, Any] = {"annotated": present is not None}
    with store:
        traces = gatherer.gather(store, options.batch_size, next(stage))
        if "layers" in options.parts:
            numbers["layers"] = _layers(store.path, study, options, next(stage))
    progress = next(stage)
    progress("statistics", 0, 1)
    material = Material(study, options, traces, present, notes)
    if "geometry" in options.parts:
        if any(entry.text_card is None for entry in traces):
            why = gatherer.no_text_card or "the model reads no prompt without an image"
            notes.left_out("Rotation from the text-only CARD", why)
        numbers["geometry"] = geometry_numbers(material)
    if "tokens" in options.parts:
        numbers["tokens"] = token_numbers(material)
    if "detector" in options.parts:
        numbers["detector"] = detectors(material)
    progress("statistics", 1, 1)
    return numbers


def _layers(out: Path, study: Study, options: AnalysisOptions, progress: Progress) -> dict[str, Any]:
    """Statistics of the layers of the unsteered model."""
    loaded, samples = study.loaded, study.task.samples
    rows = stored_layer_statistics(out / "layers.json", loaded, study.task, samples, progress, options.batch_size)
    steered = resolve_layer(find_backbone(loaded.model), study.config.layer)
    return {"images": len(samples), "steered_layer": steered, "layers": [asdict(entry) for entry in rows]}
