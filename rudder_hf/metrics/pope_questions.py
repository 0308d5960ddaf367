"""POPE questions from annotations: three objects of an image, each followed by one that is not in it.

- `random`: any object of the annotations' categories;
- `popular`: the object that is in most images;
- `adversarial`: the object that is most often in an image together with the one just asked for.

Within an image no object is asked for twice. Ties go to the more frequent object, then to the category order of the
file, and the draw for an image depends on the seed and the image alone, so the same annotations always give the same
questions, and each image its own whatever other images are asked about.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection
from typing import Literal

from .coco import CocoData
from .errors import InputError, listed
from .pope import Question

Strategy = Literal["random", "popular", "adversarial"]
STRATEGIES: tuple[Strategy, ...] = ("random", "popular", "adversarial")
_PER_IMAGE = 3  # objects that are there, each followed by one that is not


def question_text(name: str) -> str:
    """POPE's question for a category."""
    return f"Is there {'an' if name[:1].lower() in 'aeiou' else 'a'} {name} in the image?"


def build_questions(
    data: CocoData, strategy: Strategy, images: int | Collection[int] | None = 500, seed: int = 0
) -> list[Question]:
    """Balanced questions about images with at least three objects.

    Args:
        data: annotations; frequencies and co-occurrences are counted over all of its images.
        strategy: how the absent objects are chosen.
        images: how many images to draw (fewer if fewer qualify), which image ids to use, or None for all.
        seed: of the drawing of images and, for `random`, of objects.
    """
    if strategy not in STRATEGIES:
        raise InputError(f"unknown POPE strategy {strategy!r}; choose {listed(STRATEGIES)}")
    chosen = _choose_images(data, images, seed)
    ranking = _rankings(data, strategy, seed)
    questions: list[Question] = []
    for image in chosen:
        used = set(data.objects[image])
        for name in data.objects[image][:_PER_IMAGE]:
            absent = next(other for other in ranking(image, name) if other not in used)
            used.add(absent)
            for asked, label in ((name, "yes"), (absent, "no")):
                text = question_text(asked)
                questions.append(Question(len(questions) + 1, data.files[image], text, label))  # type: ignore[arg-type]
    return questions


def _choose_images(data: CocoData, images: int | Collection[int] | None, seed: int) -> list[int]:
    fitting = [
        i
        for i in data.ids
        if _PER_IMAGE <= len(data.objects[i]) <= len(data.categories) - _PER_IMAGE and data.files[i]
    ]
    if not fitting:
        raise InputError(
            f"no image has a file name, at least {_PER_IMAGE} kinds of objects and {_PER_IMAGE} kinds that are absent"
        )
    if images is None:
        return fitting
    if isinstance(images, int):
        if images < 1:
            raise InputError(f"images is {images}; draw at least one")
        return sorted(random.Random(seed).sample(fitting, min(images, len(fitting))))
    unfit = sorted(set(images) - set(fitting))
    if unfit:
        raise InputError(f"{len(unfit)} images have no annotation or fewer than {_PER_IMAGE} objects: {listed(unfit)}")
    return sorted(set(images))


def _rankings(data: CocoData, strategy: Strategy, seed: int) -> Callable[[int, str], list[str]]:
    """For an image and an object in it, all categories from the first to the last choice of an absent object."""
    number = Counter(name for names in data.objects.values() for name in names)
    popular = sorted(data.categories, key=lambda name: -number[name])
    if strategy == "popular":
        return lambda image, name: popular
    if strategy == "adversarial":
        together: dict[str, Counter[str]] = {name: Counter() for name in data.categories}
        for names in data.objects.values():
            for name in names:
                together[name].update(names)
        ranked = {name: sorted(popular, key=lambda other: -pairs[other]) for name, pairs in together.items()}
        return lambda image, name: ranked[name]

    def shuffled(image: int, name: str) -> list[str]:
        names = sorted(data.categories)
        random.Random(f"{seed}/{image}/{name}").shuffle(names)
        return names

    return shuffled
