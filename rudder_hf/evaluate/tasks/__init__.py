"""Tasks by name, from what users give on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...metrics.errors import InputError, listed
from .base import Sample, Task

__all__ = ["NAMES", "DataOptions", "Sample", "Task", "coco_annotations", "make_task"]

NAMES = ("scenes", "scenes-pope", "chair", "pope", "mme")


@dataclass(frozen=True)
class DataOptions:
    """Where samples come from.

    Attributes:
        data: COCO's folder or `instances_*.json` (chair, pope), POPE's question files (pope), MME's folder (mme).
        captions: COCO's `captions_*.json`, if it is not beside the instances.
        images: Folder of the pictures, if it is not in COCO's folder.
        split: Of COCO ("val2014") or of the scenes ("evaluation").
        prompt: What to ask; None is the task's own.
        limit: How many pictures; None is the task's own number.
        seed: Of the draw.
        wanted: Exactly these pictures.
    """

    data: Path | None = None
    captions: Path | None = None
    images: Path | None = None
    split: str | None = None
    prompt: str | None = None
    limit: int | None = None
    seed: int = 0
    wanted: Sequence[int | str] | None = None


def make_task(name: str, options: DataOptions) -> Task:
    """Make a task.

    Raises:
        ValueError: There is no such task, or the data do not fit it.
    """
    common: dict[str, Any] = {"seed": options.seed, "wanted": options.wanted}
    if options.prompt is not None:
        common["prompt"] = options.prompt
    if options.limit is not None:
        common["limit"] = options.limit
    if name in ("scenes", "scenes-pope"):
        from .scenes import SceneChairTask, ScenePopeTask

        _refuse(name, data=options.data, captions=options.captions, images=options.images)
        kind = SceneChairTask if name == "scenes" else ScenePopeTask
        return kind.from_split(options.split or "evaluation", **common)
    if name not in NAMES:
        raise InputError(f"there is no task {name!r}; choose one of {', '.join(NAMES)}")
    if options.data is None:
        raise InputError(f"the task {name} needs --data; only the tasks scenes and scenes-pope need none")
    if name == "mme":
        from .mme import MmeTask

        _refuse(name, captions=options.captions, images=options.images, split=options.split)
        return MmeTask.from_folder(options.data, **common)
    if name == "pope":
        from .pope import PopeTask

        _refuse(name, captions=options.captions)
        if (options.data / "annotations").is_dir():
            files = coco_files(options)
            return PopeTask.from_data(files.instances, files.images, **common)
        if options.images is None:
            raise InputError("the task pope needs --images, the folder of the pictures that the questions name")
        return PopeTask.from_data(options.data, options.images, **common)
    from .chair import ChairTask

    files = coco_files(options)
    return ChairTask.from_coco(files.instances, files.captions, files.images, **common)


def _refuse(task: str, **given: object) -> None:
    unused = [f"--{name}" for name, value in given.items() if value is not None]
    if unused:
        raise InputError(f"the task {task} does not use {listed(unused)}; leave it out")


@dataclass(frozen=True)
class CocoFiles:
    """Files of one split of COCO."""

    instances: Path
    captions: Path | None
    images: Path


def coco_annotations(options: DataOptions) -> tuple[Path, Path | None]:
    """Find COCO's instances and reference captions in its own layout, or take what is given.

    Raises:
        ValueError: Files are missing, or there are several splits and none was chosen.
    """
    data = options.data
    if data is None or not data.exists():
        raise InputError(f"there is no {data}: give COCO's folder, or an instances_*.json" if data else "give --data")
    instances = data
    if data.is_dir():
        folder = data / "annotations" if (data / "annotations").is_dir() else data
        pattern = f"instances_{options.split or '*'}.json"
        found = sorted(folder.glob(pattern))
        if not found:
            raise InputError(f"there is no {pattern} in {folder}")
        if len(found) > 1:
            splits = [path.stem.removeprefix("instances_") for path in found]
            raise InputError(f"{folder} has annotations of {listed(splits)}: choose one with --split")
        instances = found[0]
    if options.captions is not None:
        return instances, options.captions
    beside = instances.with_name(instances.name.replace("instances_", "captions_"))
    return instances, beside if beside != instances and beside.is_file() else None


def coco_files(options: DataOptions) -> CocoFiles:
    """Find annotations and pictures in COCO's own layout, or take what is given.

    Raises:
        ValueError: Files are missing, or there are several splits and none was chosen.
    """
    instances, captions = coco_annotations(options)
    split = instances.stem.removeprefix("instances_")
    images = options.images
    if images is None:
        roots = [instances.parent.parent, instances.parent]
        images = next((root / split for root in roots if (root / split).is_dir()), None)
    if images is None:
        raise InputError(f"there is no folder {split} of pictures beside {instances}: pass --images")
    return CocoFiles(instances, captions, images)
