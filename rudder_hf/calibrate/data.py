"""Images to calibrate on: some to choose with, others to check the choice, none that an evaluation draws."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..evaluate.tasks import DataOptions, Sample, Task, make_task
from ..evaluate.tasks.base import choose_ids
from ..evaluate.tasks.captions import IMAGES as EVALUATED
from ..evaluate.tasks.captions import has_annotations, images_task
from ..metrics.errors import InputError


@dataclass(frozen=True)
class CalibrationData:
    """The images.

    Attributes:
        task: Reads the images to choose with; its kind is "chair" if there are annotations, else "images".
        choosing: Samples that settings are chosen on.
        check_task: Reads the images to check with.
        checking: Samples that are looked at once, after the choice.
        check_options: Where these come from.
        record: Where they come from, for the config.
    """

    task: Task
    choosing: list[Sample]
    check_task: Task
    checking: list[Sample]
    check_options: DataOptions
    record: dict[str, Any]

    @property
    def labelled(self) -> bool:
        """Whether it is known what is in the images."""
        return self.task.kind == "chair"


def data_source(data: Path | None, **rest: Any) -> DataOptions:
    """What users mean by --data: nothing or "embedded" is the embedded scenes, "embedded:SPLIT" a split of them."""
    name, _, split = ("embedded" if data is None else str(data)).partition(":")
    if name != "embedded":
        return DataOptions(data, **rest)
    return DataOptions(None, **{**rest, "split": split or rest.get("split")})


def find_images(options: DataOptions) -> Task:
    """Images to describe: the embedded scenes, annotated images in COCO's form, or a folder of images.

    Raises:
        InputError: There are none.
    """
    if options.data is not None and options.data.is_dir() and not has_annotations(options.data):
        return images_task(options)
    return make_task("scenes" if options.data is None else "chair", options)


def find_data(
    options: DataOptions,
    limit: int,
    check: int,
    exclude: Collection[str] = (),
    skip_unreadable: bool = False,
    check_options: DataOptions | None = None,
) -> CalibrationData:
    """Find images and draw those to choose with and those to check with.

    Args:
        options: Where they are: no data means the embedded scenes' calibration split; COCO's folder or an
            `instances_*.json`; else a folder of images without annotations. `limit` and `wanted` are not used.
        limit: How many to choose with.
        check: How many to check with.
        exclude: Ids that must not be used.
        skip_unreadable: Whether images that cannot be read are left out.
        check_options: Where the images to check with are, if not in the same data. Evaluation data are welcome here:
            nothing is chosen by them.

    Raises:
        InputError: There are too few.
    """
    if limit < 2:
        raise InputError(f"--limit is {limit}; give at least 2 images to choose with, better 100")
    task, left_out = _all_images(options)
    record = {"task": task.name, **task.data, "seed": options.seed, "left_out_for_evaluation": len(left_out)}
    excluded = set(map(str, exclude))
    here = check if check_options is None else 0
    choosing, checking = _draw(task, excluded | left_out, options.seed, limit, here, skip_unreadable)
    check_task = task
    if check_options is not None:
        check_task, _ = _all_images(check_options, choosing=False)
        if check_task.kind != task.kind:
            raise InputError("--check-data and --data have to be of a kind: both with annotations, or both without")
        used = excluded | {sample.id for sample in choosing}
        _, checking = _draw(check_task, used, check_options.seed, 0, check, skip_unreadable)
        record["checked_on"] = {"task": check_task.name, **check_task.data}
    return CalibrationData(task, choosing, check_task, checking, check_options or options, record)


def _draw(
    task: Task, forbidden: Collection[str], seed: int, limit: int, check: int, skip_unreadable: bool
) -> tuple[list[Sample], list[Sample]]:
    """Samples in random order: so many to choose with, and up to so many to check with."""
    usable = [sample for sample in task.samples if sample.id not in forbidden]
    if len(usable) < limit + min(check, 1):
        raise InputError(
            f"there are {len(usable)} images to calibrate on ({len(task.samples) - len(usable)} are left out because "
            f"evaluations draw them or --exclude names them), but {limit} to choose with and {check} to check with "
            "were asked for: lower --limit or --check-limit, or give more data"
        )
    random.Random(seed).shuffle(usable)
    drawn = usable[: limit + check]
    if not drawn:
        return [], []
    read = replace(task, samples=drawn)
    read.skip_unreadable(skip_unreadable)
    readable = {sample.id for sample in read.samples}
    return [s for s in drawn[:limit] if s.id in readable], [s for s in drawn[limit:] if s.id in readable]


def _all_images(options: DataOptions, choosing: bool = True) -> tuple[Task, set[str]]:
    """Everything there is, and the ids that the default evaluation would draw from the same data."""
    if options.data is None:
        split = options.split or ("calibration" if choosing else "evaluation")
        if choosing and split.startswith("evaluation"):
            raise InputError(f"--split {split} is for evaluation; the scenes to calibrate on are --split calibration")
        return find_images(DataOptions(split=split, prompt=options.prompt)), set()
    task = find_images(replace(options, limit=2**31, wanted=None))
    # A split that is hardly larger than an evaluation cannot spare what evaluations draw; its ids are stored.
    if task.kind != "chair" or len(task.samples) <= 2 * EVALUATED:
        return task, set()
    return task, set(map(str, choose_ids([sample.image_id for sample in task.samples], EVALUATED, seed=0)))
