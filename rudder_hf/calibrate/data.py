"""Images to calibrate on: some to choose with, others to check the choice, none that an evaluation draws."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from ..evaluate.tasks import DataOptions, Task, make_task
from ..evaluate.tasks.captions import IMAGES as EVALUATED
from ..evaluate.tasks.captions import has_annotations, images_task
from ..runtime.errors import InputError


@dataclass(frozen=True)
class CalibrationData:
    """Images to choose with, and others to check the choice on."""

    choosing: Task  # its kind is "chair" if there are annotations, else "images"
    checking: Task | None  # of the same kind; looked at once, after the choice
    record: dict[str, Any]  # where the images come from, for the config

    @property
    def labelled(self) -> bool:
        """Whether it is known what is in the images."""
        return self.choosing.kind == "chair"


def find_images(options: DataOptions) -> Task:
    """Images to describe: the embedded scenes, annotated images in COCO's form, or a folder of images.

    Raises:
        InputError: There are none.
    """
    if options.data is not None and options.data.is_dir() and not has_annotations(options.data):
        return images_task(options)
    return make_task("scenes" if options.data is None else "chair", options)


def find_data(options: DataOptions, limit: int, check: int, exclude: Collection[str] = ()) -> CalibrationData:
    """Find images and draw those to choose with and up to so many to check with.

    Args:
        options: Where they are: no data means the embedded scenes' calibration split; COCO's folder or an
            `instances_*.json`; else a folder of images without annotations. `limit` and `wanted` are not used.
        limit: How many to choose with.
        check: How many to check with.
        exclude: Files of images that must not be used.

    Raises:
        InputError: There are too few, or some cannot be read.
    """
    if limit < 2:
        raise InputError(f"--limit is {limit}; give at least 2 images to choose with, better 100")
    task, left_out = _all_images(options)
    usable = [sample for sample in task.samples if sample.id not in left_out and sample.image not in exclude]
    if len(usable) < limit + min(check, 1):
        raise InputError(
            f"there are {len(usable)} images to calibrate on ({len(task.samples) - len(usable)} are left out because "
            f"evaluations draw them), but {limit} to choose with and {check} to check with were asked for: lower "
            "--limit or --check-limit, or give more data"
        )
    random.Random(options.seed).shuffle(usable)
    drawn = usable[: limit + check]
    replace(task, samples=drawn).check_images()
    return CalibrationData(
        choosing=replace(task, samples=drawn[:limit]),
        checking=replace(task, samples=drawn[limit:]) if drawn[limit:] else None,
        record={"task": task.name, **task.data, "seed": options.seed, "left_out_for_evaluation": len(left_out)},
    )


def _all_images(options: DataOptions) -> tuple[Task, set[str]]:
    """Everything there is, and the ids that the default evaluation would draw from the same data."""
    if options.data is None:
        split = options.split or "calibration"
        if split.startswith("evaluation"):
            raise InputError(f"--split {split} is for evaluation; the scenes to calibrate on are --split calibration")
        return find_images(DataOptions(split=split, prompt=options.prompt)), set()
    task = find_images(replace(options, limit=2**31, wanted=None))
    # A split that is hardly larger than an evaluation cannot spare what evaluations draw; its ids are stored.
    if task.kind != "chair" or len(task.samples) <= 2 * EVALUATED:
        return task, set()
    return task, set(map(str, DataOptions().choose([sample.image_id for sample in task.samples], EVALUATED)))
