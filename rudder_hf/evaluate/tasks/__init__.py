"""Tasks: what the model is asked about which images, and what the answers are scored against.

`captions` has the tasks in which images are described, `questions` those of yes or no; both score what was answered.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from ...hub.images import read_image
from ...runtime.errors import InputError, listed

if TYPE_CHECKING:
    from ...runtime.models import LoadedModel

TASKS: dict[str, tuple[str, tuple[str, ...]]] = {
    "scenes": ("captions:scenes_task", ("data", "images")),
    "scenes-pope": ("questions:scenes_pope_task", ("data", "images")),
    "chair": ("captions:chair_task", ()),
    "pope": ("questions:pope_task", ()),
    "mme": ("questions:mme_task", ("images", "split")),
}
"""Module of this folder and function of each task, by the name that users type, and options that it does not use."""

_SCORERS = {
    "chair": "captions:score_chair",
    "images": "captions:score_images",
    "pope": "questions:score_pope",
    "mme": "questions:score_mme",
}


@dataclass(frozen=True)
class DataOptions:
    """Where samples come from, and which of them."""

    # COCO's folder or `instances_*.json` (chair, pope), POPE's folder of question files (pope), MME's folder (mme)
    data: Path | None = None
    images: Path | None = None  # Folder of the images, if it is not in COCO's folder
    split: str | None = None  # Of COCO ("val2014") or of the scenes ("evaluation")
    prompt: str | None = None  # What to ask, for questions with {question} in it; None is the task's own
    limit: int | None = None  # How many images; None is the task's own number
    seed: int = 0  # Of the draw

    def choose(self, ids: Iterable[int | str], limit: int | None = None) -> list[Any]:
        """Choose `limit` images, drawn with the seed; sorted.

        Args:
            ids: All that there are.
            limit: How many, if `self.limit` does not say so; None takes all.
        """
        known = sorted(set(ids), key=lambda value: (isinstance(value, str), value))
        limit = limit if self.limit is None else self.limit
        if limit is None or limit >= len(known):
            return known
        chosen = set(random.Random(self.seed).sample(known, limit))
        return [value for value in known if value in chosen]


@dataclass(frozen=True)
class Sample:
    """One question about one image."""

    id: str  # Unique in the task; the seed of sampling is derived from it
    image_id: int | str  # The image, as the data calls it
    image: str  # The image's file name, or how it is made
    prompt: str  # What the model is asked
    reference: dict[str, Any] = field(default_factory=dict)  # What the answer is scored against, as JSON values


def chair_sample(image_id: int, image: str, prompt: str, objects: Sequence[str], references: Sequence[str]) -> Sample:
    """A caption to be written, with its ground truth."""
    reference = {"objects": list(objects), "captions": list(references)}
    return Sample(str(image_id), image_id, image, prompt, reference)


def question_sample(
    id: str, image_id: int | str, image: str, prompt: str, question: str, /, **reference: str
) -> Sample:
    """A question about an image; `prompt` has {question} in it, `reference` what the answer is scored against."""
    return Sample(id, image_id, image, prompt.replace("{question}", question), {**reference, "question": question})


@dataclass
class Task:
    """A set of samples."""

    name: str  # What users type
    kind: str  # How answers are scored: "chair", "pope" or "mme"; "images" if they are not
    samples: list[Sample]  # In a fixed order
    data: dict[str, Any]  # Where the samples come from, for the result
    image: Callable[[Sample], Image.Image]  # The image of a sample, in RGB; raises InputError if it cannot be read
    max_new_tokens: int  # Longest answer unless the user says otherwise
    prompt: str  # The prompt of all samples, or its form with {question} in it
    notes: list[str] = field(default_factory=list)  # What users have to know about the data: counted warnings

    def __post_init__(self) -> None:
        if not self.samples:
            raise InputError(f"the task {self.name} has no samples: check the data and the limit")
        twice = [name for name, count in Counter(sample.id for sample in self.samples).items() if count > 1]
        if twice:
            raise InputError(f"{len(twice)} sample ids occur more than once in the data: {listed(twice)}")

    def check_images(self) -> None:
        """Look at every image before hours are spent.

        Raises:
            InputError: Some cannot be read.
        """
        broken: dict[str, str] = {}
        first_samples = {sample.image: sample for sample in reversed(self.samples)}
        for sample in first_samples.values():
            try:
                self.image(sample)
            except InputError as error:
                broken[sample.image] = str(error)
        if broken:
            raise InputError(
                f"{len(broken)} of {len(first_samples)} images cannot be read: {broken[min(broken)]}. Repair them, or "
                "take them out of the annotations."
            )


def images_in(folder: Path) -> Callable[[Sample], Image.Image]:
    """The images of a task whose samples name files of a folder.

    Raises:
        InputError: There is no such folder.
    """
    if not folder.is_dir():
        raise InputError(f"there is no folder of images {folder}: pass it as --images")

    def read(sample: Sample) -> Image.Image:
        try:
            return read_image(folder / sample.image)
        except ValueError as error:
            raise InputError(str(error)) from error

    return read


def make_task(name: str, options: DataOptions) -> Task:
    """Make a task.

    Raises:
        InputError: There is no such task, or the data do not fit it.
    """
    if name not in TASKS:
        raise InputError(f"there is no task {name!r}; choose one of {', '.join(TASKS)}")
    place, unused = TASKS[name]
    given = [f"--{option}" for option in unused if getattr(options, option) is not None]
    if given:
        raise InputError(f"the task {name} does not use {listed(given)}; leave it out")
    if options.data is None and "data" not in unused:
        raise InputError(f"the task {name} needs --data; only the tasks scenes and scenes-pope need none")
    made: Task = _loaded(place)(options)
    return made


def scorer(kind: str) -> Callable[..., Any]:
    """Return the function that scores the answers of a kind of task: (samples, rows, scoring) to `Scored`."""
    return _loaded(_SCORERS[kind])


def _loaded(place: str) -> Callable[..., Any]:
    """Return a function of this folder, whose module is imported now: a task of captions needs no POPE."""
    module, _, function = place.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(f".{module}", __name__), function)
    return found


def samples_hash(samples: Sequence[Sample]) -> str:
    """Identifies what is asked and how it is scored."""
    text = json.dumps([asdict(sample) for sample in samples], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# As inputs of a model

_DONORS, _DONOR_BATCH = 64, 8


def batches(samples: Sequence[Sample], size: int) -> list[list[Sample]]:
    """Consecutive samples, `size` at a time."""
    return [list(samples[start : start + size]) for start in range(0, len(samples), size)]


def encode_samples(
    loaded: LoadedModel, task: Task, samples: Sequence[Sample], pictured: Sequence[Sample] | None = None
) -> dict[str, Any]:
    """Return inputs of `generate` for some samples, with their own images or with those of other samples."""
    from ...runtime.answers import encode  # slow to import, and not needed to refuse wrong images

    images = [task.image(sample) for sample in pictured or samples]
    return encode(loaded.model, loaded.processor, images, [sample.prompt for sample in samples])


def donor_prompts(loaded: LoadedModel, task: Task) -> Iterator[dict[str, Any]]:
    """The first images of a task with a prompt of each, for controls that take their direction from other images.

    Batches have a size of their own, so that a control does not depend on that of the run.
    """
    first: dict[Any, Sample] = {}
    for sample in task.samples:
        first.setdefault(sample.image_id, sample)
    for part in batches(list(first.values())[:_DONORS], _DONOR_BATCH):
        yield encode_samples(loaded, task, part)
