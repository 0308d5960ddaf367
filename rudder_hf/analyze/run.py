"""`analyze`: gather, compute, draw, report."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..calibrate.layers import stored_layer_statistics
from ..core.backbones import find_backbone, resolve_layer
from ..metrics.errors import InputError
from ..runtime.environment import versions
from ..runtime.progress import Progress, no_progress
from ..runtime.store import Store, to_json, write_new
from .gather import Gatherer, unpacked
from .geometry import geometry_numbers
from .numbers import answer_numbers, gate_numbers, present_objects, token_numbers
from .report import write_report
from .study import AnalysisOptions, Study

NUMBERS_FILE = "numbers.json"


def check_folder(out: Path) -> None:
    """Check that a folder is new or holds an unfinished analysis, before a model is loaded.

    Raises:
        InputError: It is something else.
    """
    Store(out, "analyze").check()
    if (out / NUMBERS_FILE).exists():
        raise InputError(f"{out} holds a finished analysis, which is never overwritten: choose a new folder.")


def analyze(out: Path, study: Study, options: AnalysisOptions, progress: Progress = no_progress) -> dict[str, Any]:
    """Analyze a model on images, and write numbers, figures and the report into a folder.

    Args:
        out: A new folder, or that of the same analysis, which is continued.
        study: The model, the images and RUDDER's settings.
        options: What to do.
        progress: Reports progress.

    Returns:
        The numbers.

    Raises:
        InputError: The folder is not new.
    """
    plan = study.record(options)
    check_folder(out)
    store = Store(out, "analyze")
    store.start(plan)
    present = present_objects(study, options.lineage)  # before hours are spent
    gatherer = Gatherer(study, study.max_new_tokens(options))
    numbers: dict[str, Any] = {"format": 3, "command": options.command, "versions": versions(), **plan}
    with store:
        traces = gatherer.gather(store, options.batch_size, progress)
        numbers["layers"] = _layers(out, study, options, progress)
    samples, notes = study.task.samples, []
    if present is None:
        notes.append("which objects are in the images, because they have no annotations (give COCO's as `--data`).")
    cards, without_image = unpacked(row.card for row in traces), [row.text_card for row in traces]
    text = None if None in without_image else unpacked(card for card in without_image if card is not None)
    if text is None:
        why = gatherer.no_text_card or "the model reads no prompt without an image"
        notes.append(f"how far the image turns CARD, because there is no CARD without it: {why.rstrip('.')}.")
    numbers["answers"] = answer_numbers(traces, present, options.lineage)
    numbers["tokens"] = token_numbers(traces, present, options.lineage)
    numbers["gate"] = gate_numbers(traces, present, study.config, options)
    numbers["geometry"] = geometry_numbers(text, cards, options.seed)
    if present is not None:
        numbers["present"] = {sample.id: sorted(row) for sample, row in zip(samples, present, strict=True)}
    numbers["notes"] = notes
    shown = {entry["id"] for entry in numbers["tokens"]["shown"]}
    images = {sample.id: study.task.image(sample) for sample in samples if sample.id in shown}
    numbers["summary"] = write_report(out, numbers, images)
    # Last: a folder with this file is complete.
    write_new(out / NUMBERS_FILE, to_json(numbers))
    return numbers


def _layers(out: Path, study: Study, options: AnalysisOptions, progress: Progress) -> dict[str, Any]:
    """Gather the statistics of the layers of the unsteered model."""
    loaded, samples = study.loaded, study.task.samples
    rows = stored_layer_statistics(out / "layers.json", loaded, study.task, samples, progress, options.batch_size)
    steered = resolve_layer(find_backbone(loaded.model), study.config.layer)
    return {"images": len(samples), "steered_layer": steered, "layers": [asdict(entry) for entry in rows]}
