"""CHAIR: describe pictures of COCO in detail."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from ...metrics.coco import read_coco
from ...metrics.errors import InputError, listed
from .base import FolderTask, Sample, choose_ids

PROMPT = "Please help me describe the image in detail"
IMAGES = 500  # as in the paper


class ChairTask(FolderTask):
    """Captions of COCO pictures, scored by CHAIR."""

    kind: ClassVar[str] = "chair"
    max_new_tokens: ClassVar[int] = 512

    @classmethod
    def from_coco(
        cls, instances: Path, captions: Path | None, images: Path, prompt: str = PROMPT, limit: int | None = IMAGES,
        seed: int = 0, wanted: Sequence[int | str] | None = None,
    ) -> ChairTask:  # fmt: skip
        """From COCO's files.

        Args:
            instances: `instances_*.json`.
            captions: `captions_*.json`; None leaves the reference captions out of the ground truth.
            images: Folder of the pictures.
            prompt: What to ask.
            limit: How many pictures to draw.
            seed: Of the draw.
            wanted: Exactly these pictures.
        """
        data = read_coco(instances, captions)
        ids = choose_ids(data.ids, limit, seed, wanted)
        nameless = [image for image in ids if not data.files[image]]
        if nameless:
            raise InputError(f"{instances}: 'images' has no entry for annotated images {listed(nameless)}")
        notes = []
        if captions is None:
            notes.append("no reference captions were given: ground truth is the instance annotations alone")
        bare = [image for image in ids if not data.objects[image] and not data.references[image]]
        if bare:
            notes.append(f"{len(bare)} pictures have neither instances nor reference captions: {listed(bare)}")
        samples = [chair_sample(i, data.files[i], prompt, data.objects[i], data.references[i]) for i in ids]
        record: dict[str, Any] = {
            "instances": Path(instances).name,
            "captions": None if captions is None else Path(captions).name,
            "images": len(data.ids),
        }
        return cls("chair", samples, record, Path(images), notes)


def chair_sample(image_id: int, image: str, prompt: str, objects: Sequence[str], references: Sequence[str]) -> Sample:
    """A caption to be written, with its ground truth."""
    return Sample(
        id=str(image_id),
        image_id=image_id,
        image=image,
        prompt=prompt,
        reference={"objects": list(objects), "captions": list(references)},
    )
