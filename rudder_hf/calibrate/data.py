"""Pictures to calibrate on: some to choose with, others to check the choice, none that an evaluation draws."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..evaluate.tasks import DataOptions, Sample, Task, make_task
from ..evaluate.tasks.base import choose_ids
from ..evaluate.tasks.chair import IMAGES as EVALUATED
from ..evaluate.tasks.images import has_annotations, images_task
from ..evaluate.tasks.pope import pope_samples
from ..metrics.coco import CocoData
from ..metrics.errors import InputError
from ..metrics.pope import Question
from ..metrics.pope_questions import STRATEGIES, build_questions


@dataclass(frozen=True)
class CalibrationData:
    """The pictures.

    Attributes:
        task: Reads the pictures to choose with; its kind is "chair" if there are annotations, else "images".
        choosing: Samples that settings are chosen on.
        check_task: Reads the pictures to check with.
        checking: Samples that are looked at once, after the choice.
        record: Where they come from, for the config.
    """

    task: Task
    choosing: list[Sample]
    check_task: Task
    checking: list[Sample]
    record: dict[str, Any]

    @property
    def labelled(self) -> bool:
        """Whether it is known what is in the pictures."""
        return self.task.kind == "chair"


def data_source(data: Path | None, **rest: Any) -> DataOptions:
    """What users mean by --data: nothing or "embedded" is the embedded scenes, "embedded:SPLIT" a split of them."""
    text = "embedded" if data is None else str(data)
    if text != "embedded" and not text.startswith("embedded:"):
        return DataOptions(data, **rest)
    split = text.removeprefix("embedded").removeprefix(":") or rest.pop("split", None)
    return DataOptions(None, **{**rest, "split": split})


def find_data(
    options: DataOptions,
    pictures: int,
    check: int,
    exclude: Collection[str] = (),
    skip_unreadable: bool = False,
    check_options: DataOptions | None = None,
) -> CalibrationData:
    """Find pictures and draw those to choose with and those to check with.

    Args:
        options: Where they are: no data means the embedded scenes' calibration split; COCO's folder or an
            `instances_*.json`; else a folder of pictures without annotations. `limit` and `wanted` are not used.
        pictures: How many to choose with.
        check: How many to check with.
        exclude: Ids that must not be used.
        skip_unreadable: Whether pictures that cannot be read are left out.
        check_options: Where the pictures to check with are, if not in the same data. Evaluation data are welcome
            here: nothing is chosen by them.

    Raises:
        InputError: There are too few.
    """
    if pictures < 2:
        raise InputError(f"--pictures is {pictures}; give at least 2, better 100")
    task, left_out = _all_pictures(options)
    forbidden = {*map(str, exclude), *left_out}
    drawn = _drawn(task, forbidden, options.seed, pictures, check if check_options is None else 0)
    readable = _readable(task, drawn, skip_unreadable)
    choosing = [sample for sample in drawn[:pictures] if sample.id in readable]
    check_task, checking = task, [sample for sample in drawn[pictures:] if sample.id in readable]
    record = {"task": task.name, **task.data, "seed": options.seed, "left_out_for_evaluation": len(left_out)}
    if check_options is not None:
        check_task, _ = _all_pictures(check_options, choosing=False)
        if check_task.kind != task.kind:
            raise InputError("--check-data and --data have to be of a kind: both with annotations, or both without")
        used = {*map(str, exclude), *(sample.id for sample in choosing)}
        others = _drawn(check_task, used, check_options.seed, 0, check)
        readable = _readable(check_task, others, skip_unreadable)
        checking = [sample for sample in others if sample.id in readable]
        record["checked_on"] = {"task": check_task.name, **check_task.data}
    return CalibrationData(task, choosing, check_task, checking, record)


def _readable(task: Task, drawn: list[Sample], skip_unreadable: bool) -> set[str]:
    """Ids of the samples whose picture can be read; the task is left with these alone."""
    if drawn:
        task.samples = list(drawn)
        task.skip_unreadable(skip_unreadable)
    return {sample.id for sample in task.samples}


def _drawn(task: Task, forbidden: Collection[str], seed: int, pictures: int, check: int) -> list[Sample]:
    """Samples in random order: so many to choose with, then up to so many to check with."""
    usable = [sample for sample in task.samples if sample.id not in forbidden]
    if len(usable) < pictures + min(check, 1):
        raise InputError(
            f"there are {len(usable)} pictures to calibrate on ({len(task.samples) - len(usable)} are left out "
            f"because evaluations draw them or --exclude names them), but {pictures} to choose with and {check} to "
            "check with were asked for: lower --pictures or --check-pictures, or give more data"
        )
    random.Random(seed).shuffle(usable)
    return usable[: pictures + check]


def _all_pictures(options: DataOptions, choosing: bool = True) -> tuple[Task, set[str]]:
    """Everything there is, and the ids that the default evaluation would draw from the same data."""
    data = options.data
    if data is None:
        split = options.split or ("calibration" if choosing else "evaluation")
        if choosing and split.startswith("evaluation"):
            raise InputError(f"--split {split} is for evaluation; the scenes to calibrate on are --split calibration")
        return make_task("scenes", DataOptions(split=split, prompt=options.prompt)), set()
    if data.is_dir() and not has_annotations(data):
        return images_task(replace(options, limit=None, wanted=None)), set()
    everything = DataOptions(
        data, options.captions, options.images, options.split, options.prompt, limit=2**31, seed=options.seed
    )
    task = make_task("chair", everything)
    drawn = choose_ids([sample.image_id for sample in task.samples], EVALUATED, seed=0)
    # A split that is hardly larger than an evaluation cannot spare what evaluations draw; its ids are stored.
    spare = len(task.samples) > 2 * EVALUATED
    return task, {str(i) for i in drawn} if spare else set()


def pope_task(data: CalibrationData, seed: int = 0, pictures: int | None = None) -> Task:
    """POPE's questions about the held-out pictures, built from their annotations.

    Args:
        data: The pictures.
        seed: Of the draw of objects that are not there.
        pictures: How many of them at most.

    Raises:
        InputError: There are no annotations or no held-out pictures.
    """
    if not data.labelled or not data.checking:
        raise InputError("--check pope needs annotated pictures that are not used for choosing (--check-pictures)")
    asked = data.checking[:pictures]
    if data.check_task.name == "scenes":
        split, wanted = data.check_task.data["split"], [sample.image_id for sample in asked]
        return make_task("scenes-pope", DataOptions(split=split, wanted=wanted, seed=seed))
    objects = {int(sample.image_id): tuple(sample.reference["objects"]) for sample in asked}
    coco = CocoData(
        files={int(sample.image_id): sample.image for sample in asked},
        objects=objects,
        references=dict.fromkeys(objects, ()),
        categories=tuple(dict.fromkeys(name for names in objects.values() for name in names)),
    )
    splits: dict[str, list[Question]] = {
        strategy: build_questions(coco, strategy, images=None, seed=seed) for strategy in STRATEGIES
    }
    record = {"source": "annotations of the held-out pictures"}
    return Task("pope", "pope", pope_samples(splits), record, data.check_task.image, 16)


def batches(samples: Sequence[Sample], size: int) -> list[list[Sample]]:
    """Consecutive samples, `size` at a time."""
    return [list(samples[start : start + size]) for start in range(0, len(samples), size)]
