"""Pictures to calibrate on: some to choose with, others to check the choice, none that an evaluation draws."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ..evaluation.coco import CocoData
from ..evaluation.errors import InputError
from ..evaluation.pope_questions import STRATEGIES, build_questions
from ..evaluation.tasks import DataOptions, Sample, Task, make_task
from ..evaluation.tasks.base import FolderTask, choose_ids
from ..evaluation.tasks.chair import IMAGES as EVALUATED
from ..evaluation.tasks.chair import PROMPT
from ..evaluation.tasks.pope import PROMPT as POPE_PROMPT
from ..evaluation.tasks.pope import PopeTask, pope_sample

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")


class PictureTask(FolderTask):
    """Pictures without annotations."""

    kind: ClassVar[str] = "pictures"
    max_new_tokens: ClassVar[int] = 512


@dataclass(frozen=True)
class CalibrationData:
    """The pictures.

    Attributes:
        task: Reads the pictures; its kind is "chair" if there are annotations, else "pictures".
        choosing: Samples that settings are chosen on.
        checking: Samples that are looked at once, after the choice.
        record: Where they come from, for the config.
    """

    task: Task
    choosing: list[Sample]
    checking: list[Sample]
    record: dict[str, Any]

    @property
    def labelled(self) -> bool:
        """Whether it is known what is in the pictures."""
        return self.task.kind == "chair"


def find_data(
    options: DataOptions, pictures: int, check: int, exclude: Collection[str] = (), skip_unreadable: bool = False
) -> CalibrationData:
    """Find pictures and draw those to choose with and those to check with.

    Args:
        options: Where they are: no data means the embedded scenes' calibration split; COCO's folder or an
            `instances_*.json`; else a folder of pictures without annotations. `limit` and `wanted` are not used.
        pictures: How many to choose with.
        check: How many to check with.
        exclude: Ids that must not be used.
        skip_unreadable: Whether pictures that cannot be read are left out.

    Raises:
        InputError: There are too few.
    """
    if pictures < 2:
        raise InputError(f"--pictures is {pictures}; give at least 2, better 100")
    task, left_out = _all_pictures(options)
    forbidden = {*map(str, exclude), *left_out}
    usable = [sample.id for sample in task.samples if sample.id not in forbidden]
    if len(usable) < pictures + min(check, 1):
        raise InputError(
            f"there are {len(usable)} pictures to calibrate on ({len(task.samples) - len(usable)} are left out "
            f"because evaluations draw them or --exclude names them), but {pictures} to choose with and {check} to "
            "check with were asked for: lower --pictures or --check-pictures, or give more data"
        )
    order = list(usable)
    random.Random(options.seed).shuffle(order)
    drawn = order[: pictures + check]
    by_id = {sample.id: sample for sample in task.samples}
    task.samples = [by_id[i] for i in drawn]
    task.skip_unreadable(skip_unreadable)
    readable = {sample.id for sample in task.samples}
    choosing = [by_id[i] for i in drawn[:pictures] if i in readable]
    checking = [by_id[i] for i in drawn[pictures:] if i in readable]
    record = {"task": task.name, **task.data, "seed": options.seed, "left_out_for_evaluation": len(left_out)}
    return CalibrationData(task, choosing, checking, record)


def _all_pictures(options: DataOptions) -> tuple[Task, set[str]]:
    """Everything there is, and the ids that the default evaluation would draw from the same data."""
    data = options.data
    if data is None:
        split = options.split or "calibration"
        if split.startswith("evaluation"):
            raise InputError(f"--split {split} is for evaluation; the scenes to calibrate on are --split calibration")
        return make_task("scenes", DataOptions(split=split, prompt=options.prompt)), set()
    if data.is_dir() and not has_annotations(data):
        return picture_folder(data, options), set()
    everything = DataOptions(
        data, options.captions, options.images, options.split, options.prompt, limit=2**31, seed=options.seed
    )
    task = make_task("chair", everything)
    drawn = choose_ids([sample.image_id for sample in task.samples], EVALUATED, seed=0)
    # A split that is hardly larger than an evaluation cannot spare what evaluations draw; its ids are stored.
    spare = len(task.samples) > 2 * EVALUATED
    return task, {str(i) for i in drawn} if spare else set()


def has_annotations(folder: Path) -> bool:
    """Whether a folder has COCO annotations."""
    return any(any(place.glob("instances_*.json")) for place in (folder, folder / "annotations"))


def picture_folder(folder: Path, options: DataOptions) -> PictureTask:
    """All pictures of a folder and of those in it.

    Raises:
        InputError: There are none.
    """
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    if not files:
        raise InputError(f"{folder} has neither COCO annotations nor pictures ({', '.join(SUFFIXES)})")
    prompt = options.prompt or PROMPT
    names = [path.relative_to(folder).as_posix() for path in files]
    samples = [Sample(id=name, image_id=name, image=name, prompt=prompt) for name in names]
    return PictureTask("pictures", samples, {"folder": folder.name, "images": len(files)}, folder)


def pope_task(data: CalibrationData, options: DataOptions) -> Task:
    """POPE's questions about the held-out pictures, built from their annotations.

    Raises:
        InputError: There are no annotations or no held-out pictures.
    """
    if not data.labelled or not data.checking:
        raise InputError("--check pope needs annotated pictures that are not used for choosing (--check-pictures)")
    held_out = [sample.image_id for sample in data.checking]
    if options.data is None:
        split = options.split or "calibration"
        return make_task("scenes-pope", DataOptions(split=split, wanted=held_out, seed=options.seed))
    objects = {int(sample.image_id): tuple(sample.reference["objects"]) for sample in data.checking}
    coco = CocoData(
        files={int(sample.image_id): sample.image for sample in data.checking},
        objects=objects,
        references=dict.fromkeys(objects, ()),
        categories=tuple(dict.fromkeys(name for names in objects.values() for name in names)),
    )
    samples = [
        pope_sample(strategy, question, POPE_PROMPT)
        for strategy in STRATEGIES
        for question in build_questions(coco, strategy, images=None, seed=options.seed)
    ]
    folder = data.task.images if isinstance(data.task, FolderTask) else Path()
    return PopeTask("pope", samples, {"source": "annotations of the held-out pictures"}, folder)


def batches(samples: Sequence[Sample], size: int) -> list[list[Sample]]:
    """Consecutive samples, `size` at a time."""
    return [list(samples[start : start + size]) for start in range(0, len(samples), size)]
