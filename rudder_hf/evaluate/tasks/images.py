"""A folder of images without annotations: captions that nothing is known about."""

from __future__ import annotations

from pathlib import Path

from ...metrics.errors import InputError
from ...metrics.mme import IMAGE_SUFFIXES
from .base import DataOptions, Sample, Task, images_in
from .chair import PROMPT


def has_annotations(folder: Path) -> bool:
    """Whether a folder has COCO annotations."""
    return any(any(place.glob("instances_*.json")) for place in (folder, folder / "annotations"))


def images_task(options: DataOptions) -> Task:
    """All images of a folder and of the folders in it, or those that the options choose.

    Raises:
        InputError: There are none.
    """
    folder = options.data or Path()
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES)
    if not files:
        raise InputError(f"{folder} has neither COCO annotations nor images ({', '.join(IMAGE_SUFFIXES)})")
    prompt = PROMPT if options.prompt is None else options.prompt
    names = [path.relative_to(folder).as_posix() for path in files]
    samples = [Sample(name, name, name, prompt) for name in options.choose(names)]
    record = {"folder": folder.name, "images": len(files)}
    return Task("images", "images", samples, record, images_in(folder), 512, prompt)
