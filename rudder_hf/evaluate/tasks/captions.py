"""Captions: describe the embedded scenes, images of COCO (both CHAIR) or of a folder. And where COCO's files are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from ...metrics.chair import CHAIR_METRICS, Lineage, chair, check_lineage, ground_truth
from ...metrics.coco import IMAGE_SUFFIXES, CocoData, read_coco
from ...metrics.statistics import Counts
from ...runtime.errors import InputError, listed
from ...scenes.captions import DETAIL_PROMPT, reference_captions
from ...scenes.images import SPLITS, Scene, draw, file_name, split_scenes
from ..result import Rows, Scored, Scoring
from . import DataOptions, Sample, Task, chair_sample, images_in

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


def scenes_task(options: DataOptions) -> Task:
    """Captions of the scenes, scored by CHAIR."""
    split, scenes = choose_scenes(options)
    prompt = DETAIL_PROMPT if options.prompt is None else options.prompt
    samples = [
        chair_sample(s.seed, file_name(s, split), prompt, list(dict.fromkeys(s.names)), reference_captions(s))
        for s in scenes
    ]
    return task_of_scenes("scenes", "chair", samples, split, scenes, 120, prompt)


def choose_scenes(options: DataOptions) -> tuple[str, list[Scene]]:
    """A split of the scenes, and those of them that are asked about."""
    split = options.split or "evaluation"
    scenes = split_scenes(split)
    chosen = set(options.choose(scene.seed for scene in scenes))
    return split, [scene for scene in scenes if scene.seed in chosen]


def task_of_scenes(
    name: str, kind: str, samples: list[Sample], split: str, scenes: list[Scene], max_new_tokens: int, prompt: str
) -> Task:
    """A task whose images are drawn when they are needed."""
    by_seed = {scene.seed: scene for scene in scenes}

    def image(sample: Sample) -> Image.Image:
        return draw(by_seed[int(sample.image_id)])

    return Task(name, kind, samples, {"split": split, "images": SPLITS[split][1]}, image, max_new_tokens, prompt)


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


# Scores


def chair_truth(samples: Sequence[Sample], lineage: Lineage) -> dict[int, frozenset[str]]:
    """The objects in each image of CHAIR's samples, by image id."""
    data = CocoData(
        files={int(s.image_id): s.image for s in samples},
        objects={int(s.image_id): tuple(s.reference["objects"]) for s in samples},
        references={int(s.image_id): tuple(s.reference["captions"]) for s in samples},
        categories=tuple(dict.fromkeys(name for s in samples for name in s.reference["objects"])),
    )
    return ground_truth(data, lineage)


def score_chair(samples: Sequence[Sample], rows: Rows, scoring: Scoring) -> Scored:
    """CHAIR."""
    lineage = check_lineage(scoring.lineage)
    captions = [(int(sample.image_id), row["answer"]) for sample, row in zip(samples, rows, strict=True)]
    result = chair(captions, chair_truth(samples, lineage), lineage)
    silent = f"{result.silent} captions mention no object: they count for CHAIR_S and recall only"
    return Scored(result.counts, CHAIR_METRICS, [silent] if result.silent else [], result.details)


def score_images(samples: Sequence[Sample], rows: Rows, scoring: Scoring) -> Scored:
    """Numbers of words."""
    values = np.asarray([[len(row["answer"].split())] for row in rows], dtype=np.float64).reshape(len(rows), 1)
    return Scored(Counts(tuple(str(sample.image_id) for sample in samples), ("words",), values), ())
