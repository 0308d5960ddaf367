"""Images whose ground truth is what a known setting says about them: so it is known which setting has to win."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from rudder_hf.calibrate import CalibrationData, Grid, find_data, layer_statistics
from rudder_hf.evaluate.tasks import DataOptions, Sample, Task, encode_samples
from rudder_hf.methods import Method
from rudder_hf.metrics.chair import chair
from rudder_hf.metrics.coco import Caption
from tests.support.evaluating import loaded

NEW = 8
LAYER = 2
GRID = Grid(strengths=(0.5, 1.5), k=(2.0, 8.0))
PLACE = 2  # in the grid's candidates: the stronger push with the flatter gate


def planted_method(data: CalibrationData) -> Method:
    """The candidate of the grid that has to win, in the absolute numbers of these images."""
    inputs = encode_samples(loaded(), data.choosing, data.choosing.samples)
    norm = next(s.hidden_norm for s in layer_statistics(loaded().model, [inputs]) if s.layer == LAYER)
    return GRID.candidates(LAYER, norm)[PLACE]


def planted(data: CalibrationData, winner: Method) -> CalibrationData:
    """The same images with other annotations: the objects that the winner names, and no others."""

    def labelled(task: Task | None) -> Task | None:
        if task is None:
            return None
        samples = [
            replace(s, reference={"objects": sorted(objects(answer(data, s, winner))), "captions": []})
            for s in task.samples
        ]
        return replace(task, samples=samples)

    choosing = labelled(data.choosing)
    assert choosing is not None
    return replace(data, choosing=choosing, checking=labelled(data.checking))


def answer(data: CalibrationData, sample: Sample, method: Method) -> str:
    """What a method writes about an image, alone in its batch."""
    model = loaded()
    inputs = encode_samples(model, data.choosing, [sample])
    with method.applied(model.model) as generate:
        written: Any = generate(**inputs, max_new_tokens=NEW, do_sample=False)
    text = model.processor.tokenizer.decode(written[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return str(text).strip()


def objects(text: str) -> frozenset[str]:
    """The COCO categories that a caption names."""
    return chair([Caption(1, text)], {1: frozenset()}).details[0].objects


def planted_scenes(count: int, check: int) -> tuple[CalibrationData, Method]:
    """Planted annotations on the embedded scenes."""
    data = find_data(DataOptions(), count, check)
    winner = planted_method(data)
    return planted(data, winner), winner


def planted_folder(folder: Path, count: int, check: int) -> Method:
    """The same as files in COCO's layout, for the command line."""
    images = folder / "toy2014"
    images.mkdir(parents=True)
    source = find_data(DataOptions(), count + check, 0).choosing
    for number, sample in enumerate(source.samples):
        source.image(sample).save(images / f"{number}.png")
    _annotate(folder, {number: [] for number in range(count + check)})
    data = find_data(DataOptions(folder), count, check)
    winner = planted_method(data)
    labelled = planted(data, winner)
    _annotate(
        folder,
        {
            int(s.image_id): s.reference["objects"]
            for task in (labelled.choosing, labelled.checking)
            if task
            for s in task.samples
        },
    )
    return winner


def _annotate(folder: Path, truth: dict[int, list[str]]) -> None:
    names = sorted({name for found in truth.values() for name in found} | {"dog"})
    content = {
        "categories": [{"id": number, "name": name} for number, name in enumerate(names)],
        "images": [{"id": number, "file_name": f"{number}.png"} for number in truth],
        "annotations": [
            {"image_id": number, "category_id": names.index(name)} for number, found in truth.items() for name in found
        ],
    }
    (folder / "annotations").mkdir(exist_ok=True)
    (folder / "annotations" / "instances_toy2014.json").write_text(json.dumps(content))
