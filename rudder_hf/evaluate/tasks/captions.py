"""Captions: describe images of COCO (CHAIR) or of a folder in detail. And where COCO's files are."""

from __future__ import annotations

from pathlib import Path

from ...metrics.coco import read_coco
from ...metrics.mme import IMAGE_SUFFIXES
from ...runtime.errors import InputError, listed
from ...scenes.captions import DETAIL_PROMPT
from .base import DataOptions, Sample, Task, chair_sample, images_in

IMAGES = 500
"""How many images are captioned unless the user says otherwise, as in the paper."""


def chair_task(options: DataOptions) -> Task:
    """Captions of COCO images, scored by CHAIR."""
    instances, captions = coco_annotations(options)
    images = images_in(coco_images(options, instances))
    data = read_coco(instances, captions)
    ids = options.choose(data.ids, IMAGES)
    nameless = [image for image in ids if not data.files[image]]
    if nameless:
        raise InputError(f"{instances}: 'images' has no entry for annotated images {listed(nameless)}")
    notes = [] if captions else ["no reference captions were given: ground truth is the instance annotations alone"]
    bare = [image for image in ids if not data.objects[image] and not data.references[image]]
    if bare:
        notes.append(f"{len(bare)} images have neither instances nor reference captions: {listed(bare)}")
    prompt = DETAIL_PROMPT if options.prompt is None else options.prompt
    samples = [chair_sample(i, data.files[i], prompt, data.objects[i], data.references[i]) for i in ids]
    record = {
        "instances": instances.name,
        "captions": None if captions is None else captions.name,
        "images": len(data.ids),
    }
    return Task("chair", "chair", samples, record, images, 512, prompt, notes)


def images_task(options: DataOptions) -> Task:
    """Captions, of which nothing is known, of all images of a folder and of the folders in it.

    Raises:
        InputError: There are none.
    """
    folder = options.data or Path()
    files = image_files(folder)
    if not files:
        raise InputError(f"{folder} has neither COCO annotations nor images ({', '.join(IMAGE_SUFFIXES)})")
    prompt = DETAIL_PROMPT if options.prompt is None else options.prompt
    names = [path.relative_to(folder).as_posix() for path in files]
    samples = [Sample(name, name, name, prompt) for name in options.choose(names)]
    record = {"folder": folder.name, "images": len(files)}
    return Task("images", "images", samples, record, images_in(folder), 512, prompt)


def image_files(folder: Path) -> list[Path]:
    """The images in a folder and the folders in it, by their names."""
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES)


def has_annotations(folder: Path) -> bool:
    """Whether a folder has COCO annotations."""
    return any(any(place.glob("instances_*.json")) for place in (folder, folder / "annotations"))


def coco_annotations(options: DataOptions) -> tuple[Path, Path | None]:
    """Find COCO's instances, and the reference captions beside them.

    Raises:
        InputError: Files are missing, or there are several splits and none was chosen.
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
    beside = instances.with_name(instances.name.replace("instances_", "captions_"))
    return instances, beside if beside != instances and beside.is_file() else None


def coco_images(options: DataOptions, instances: Path) -> Path:
    """The folder of the images in COCO's own layout, or the given one.

    Raises:
        InputError: There is none.
    """
    if options.images is not None:
        return options.images
    split = instances.stem.removeprefix("instances_")
    folders = [root / split for root in (instances.parent.parent, instances.parent)]
    found = next((folder for folder in folders if folder.is_dir()), None)
    if found is None:
        raise InputError(
            f"there is no folder {split} of images beside {instances}: put them there, or pass --images to evaluate"
        )
    return found
