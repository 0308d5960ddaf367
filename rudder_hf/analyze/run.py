"""`analyse`: gather, compute, draw, report."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import __version__
from ..calibrate.layers import LayerStatistics, layer_statistics
from ..core.backbones import find_backbone, resolve_layer
from ..core.configuration import CALL_SETTINGS, RudderConfig
from ..evaluate.tasks import DataOptions, Task, make_task
from ..evaluate.tasks.base import samples_hash
from ..evaluate.tasks.images import has_annotations, images_task
from ..metrics.chair_parsers import Lineage
from ..runtime.environment import versions
from ..runtime.inputs import encode
from ..runtime.journal import write_new
from ..runtime.models import Subject
from . import numbers as make
from .ablations import ablations
from .dynamics import dynamics
from .gathering import Gatherer, Progress, Seen
from .report import write_report
from .store import NUMBERS, Store

PARTS = ("layers", "geometry", "tokens", "detector", "ablations")
FORMAT = "rudder-analysis-1"


@dataclass(frozen=True)
class AnalysisOptions:
    """What to analyse, and how.

    Attributes:
        parts: Of `PARTS`.
        max_new_tokens: Longest answer; None is the task's own.
        batch_size: Pictures read at once.
        lineage: How mentions are found.
        seed: Of every random step.
        draws: Of bootstraps.
        shown: How many pictures the report shows token by token.
        token_picture: Id of the picture for the figure of the token view.
        command: For the record.
    """

    parts: tuple[str, ...] = PARTS
    max_new_tokens: int | None = None
    batch_size: int = 8
    lineage: Lineage = "pattern"
    seed: int = 0
    draws: int = 2000
    shown: int = 8
    token_picture: str | None = None
    command: str = ""

    def __post_init__(self) -> None:
        unknown = [part for part in self.parts if part not in PARTS]
        if unknown or not self.parts:
            raise ValueError(f"There is no part {(unknown or [''])[0]!r}: choose of {', '.join(PARTS)}.")


def find_pictures(options: DataOptions) -> Task:
    """Pictures to analyse: the embedded scenes, annotated pictures in COCO's form, or a folder of pictures.

    Raises:
        ValueError: There are none.
    """
    data = options.data
    if data is None:
        return make_task("scenes", options)
    if data.is_dir() and not has_annotations(data):
        return images_task(options)
    return make_task("chair", options)


def settings_for(subject: Subject, given: dict[str, Any]) -> RudderConfig:
    """RUDDER's settings for a model, with what the user set on top.

    Raises:
        ValueError: There are none, or a value is unknown or out of range.
    """
    stored = subject.settings_for("rudder-beta")
    if stored is None and not {"layer", "alpha_max"} <= set(given):
        raise ValueError(
            f"There are no RUDDER settings for {subject.name!r}: pass --rudder FOLDER, or --set layer=... "
            "--set alpha_max=..."
        )
    allowed = ("layer", *CALL_SETTINGS)
    unknown = sorted(set(given) - set(allowed))
    if unknown:
        raise ValueError(f"There is no setting {unknown[0]!r}: settings are {', '.join(allowed)}.")
    values = {} if stored is None else {name: getattr(stored, name) for name in allowed}
    config = RudderConfig(**{**values, **given})
    if not config.alpha_max > 0:
        raise ValueError("alpha_max is 0: there is nothing to analyse without a push.")
    return config


def analyse(
    out: Path,
    subject: Subject | None,
    task: Task | None,
    config: RudderConfig | None,
    options: AnalysisOptions,
    calibration: dict[str, Any] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Analyse a model on pictures, and write numbers, figures and the report into a folder.

    Args:
        out: A new folder, or that of the same analysis when it was interrupted.
        subject: The stock model and its processor; None if only ablations are wanted.
        task: The pictures.
        config: RUDDER's settings.
        options: What to do.
        calibration: What `read_calibration` read.
        progress: Is told how far it is.

    Returns:
        The numbers.
    """
    store = Store(out)
    store.start(_plan(subject, task, config, options, calibration))
    notes: list[str] = []

    def note(what: str, why: object) -> None:
        text = str(why).rstrip(".")
        notes.append(f"{what} left out: {text}.")

    found: dict[str, Any] = {
        "format": FORMAT,
        "command": options.command,
        "versions": versions(),
        "seed": options.seed,
    }
    found["versions"]["rudder_hf"] = __version__
    material = None
    if subject is not None and task is not None and config is not None:
        material = _material(store, subject, task, config, options, note, progress)
        found |= _about(subject, task, config, options, material)
        if "layers" in options.parts:
            found["layers"] = _layers(store, subject, task, config, options, progress)
    _compute(found, material, options, calibration, note, progress)
    found["notes"] = notes
    found["parts"] = list(options.parts)
    pictures = {} if material is None or task is None else {s.id: s for s in task.samples}
    thumbnails = {
        entry["id"]: task.image(pictures[entry["id"]])  # type: ignore[union-attr]
        for entry in [*found["tokens"]["shown"], found["tokens"]["figure"]]
    } if found.get("tokens") else {}  # fmt: skip
    if progress is not None:
        progress("figures and report", 0, 1)
    write_report(out, found, thumbnails)
    # Last: a folder with this file is complete.
    write_new(out / NUMBERS, json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    if progress is not None:
        progress("figures and report", 1, 1)
    return found


def _compute(
    found: dict[str, Any],
    material: make.Material | None,
    options: AnalysisOptions,
    calibration: dict[str, Any] | None,
    note: make.Note,
    progress: Progress | None,
) -> None:
    """The parts that are computed from what was gathered."""
    if progress is not None:
        progress("statistics", 0, 1)
    if material is not None:
        if material.present is not None:
            found["scores"] = make.caption_scores(material)
        if "geometry" in options.parts:
            found["geometry"] = make.geometry_numbers(material, note)
        if "tokens" in options.parts:
            found["tokens"] = make.token_numbers(material, options.shown, options.token_picture)
            if material.present is None:
                note("Marks of hallucinated objects", make.NO_ANNOTATIONS)
        if "detector" in options.parts:
            found["detector"] = make.detector_numbers(material, note)
    if "ablations" in options.parts:
        if calibration is None:
            note("Ablations", "there is no --calibration FOLDER of `rudder calibrate`")
        else:
            found["ablations"] = make.attempt(note, "Ablations", lambda: ablations(calibration))
            if found["ablations"] is not None and not found["ablations"]["pope"]:
                note("POPE around the chosen setting", "the calibration was run without --check pope")
    if progress is not None:
        progress("statistics", 1, 1)


def _plan(
    subject: Subject | None, task: Task | None, config: RudderConfig | None, options: AnalysisOptions,
    calibration: dict[str, Any] | None,
) -> dict[str, Any]:  # fmt: skip
    """What makes two commands the same analysis."""
    plan: dict[str, Any] = {"format": FORMAT, "version": __version__, "parts": list(options.parts)}
    if calibration is not None:
        plan["calibration"] = calibration.get("record", {}).get("date", "")
    if subject is not None and task is not None and config is not None:
        plan |= {
            "model": {"name": subject.name, "revision": subject.revision, "dtype": str(subject.model.dtype)},
            "settings": {name: getattr(config, name) for name in ("layer", *CALL_SETTINGS)},
            "pictures": samples_hash(task.samples),
            "batch size": options.batch_size,
            "longest answer": options.max_new_tokens or task.max_new_tokens,
        }
    return plan


def _about(
    subject: Subject, task: Task, config: RudderConfig, options: AnalysisOptions, material: make.Material
) -> dict[str, Any]:
    """Where the numbers come from."""
    prompts = sorted({sample.prompt for sample in task.samples})
    return {
        "model": subject.record(),
        "settings": {name: getattr(config, name) for name in ("layer", *CALL_SETTINGS)},
        "data": {"task": task.name, **task.data, "notes": task.notes},
        "pictures": len(task.samples),
        "picture_ids": [sample.image_id for sample in task.samples],
        "annotated": material.present is not None,
        "prompts": prompts[:5],
        "decoding": "greedy",
        "max_new_tokens": options.max_new_tokens or task.max_new_tokens,
        "lineage": options.lineage,
    }


def _batches(task: Task, size: int) -> list[Sequence[Any]]:
    return [task.samples[start : start + size] for start in range(0, len(task.samples), size)]


def _material(
    store: Store, subject: Subject, task: Task, config: RudderConfig, options: AnalysisOptions, note: make.Note,
    progress: Progress | None,
) -> make.Material:  # fmt: skip
    """Read the pictures, but for those that an interrupted run has read."""
    gatherer = Gatherer(subject, config, options.max_new_tokens or task.max_new_tokens)
    present = make.present_objects(task, options.lineage)  # before hours are spent
    seen: list[Seen] = []
    for number, part in enumerate(_batches(task, options.batch_size)):
        if progress is not None:
            progress("answers", len(seen), len(task.samples))
        batch = store.batch(number)
        seen += store.keep(number, gatherer.read(task, part)) if batch is None else batch
    if progress is not None:
        progress("answers", len(seen), len(task.samples))
    if "geometry" in options.parts and any(entry.text_card is None for entry in seen):
        why = gatherer.without_text_card or "the model reads no prompt without a picture"
        note("Rotation from the text-only CARD", why)
    return make.Material(task.samples, seen, present, config, options.lineage, options.seed, options.draws)


def _layers(
    store: Store, subject: Subject, task: Task, config: RudderConfig, options: AnalysisOptions,
    progress: Progress | None,
) -> dict[str, Any]:  # fmt: skip
    """Statistics of the layers of the unsteered model."""
    rows = store.layers()
    if rows is None:
        parts = _batches(task, options.batch_size)

        def inputs() -> Iterator[dict[str, Any]]:
            for number, part in enumerate(parts):
                if progress is not None:
                    progress("layers", number, len(parts))
                pictures = [task.image(sample) for sample in part]
                yield encode(subject.model, subject.processor, pictures, [sample.prompt for sample in part])

        rows = [entry.record() for entry in layer_statistics(subject.model, inputs())]
        store.keep_layers(rows)
    statistics = [LayerStatistics(**row) for row in rows]
    return dynamics(statistics, len(task.samples), resolve_layer(find_backbone(subject.model), config.layer))
