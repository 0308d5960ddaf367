"""Training captions: template captions that drift from the scene, which is what makes a model hallucinate.

At each object there is a chance, growing along the caption, that it is drawn from what one would expect in such a
place beside the objects said so far, whether or not it is there: so a model trained on them learns to trust the priors
more and more, as large models do in long captions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rudder_hf.scenes.captions import (
    OBJECTS,
    NextObject,
    brief_caption,
    detailed_caption,
    likely_present,
    normalised,
)
from rudder_hf.scenes.images import TRAINING, Scene, make_scene, prior_weight
from rudder_hf.scenes.world import PLACES


@dataclass(frozen=True)
class Drift:
    """How captions leave the scene."""

    slots: tuple[float, ...]  # chance that the first, second, ... object of a caption is drawn from the priors
    sharpness: float = 2.0  # exponent of the priors


NONE = Drift(slots=(0.0,))
MILD = Drift(slots=(0.0, 0.05, 0.1, 0.15, 0.2))
STRONG = Drift(slots=(0.05, 0.2, 0.3, 0.38, 0.45))


@dataclass(frozen=True)
class DrawnCaption:
    """A caption, and for each object in it the probabilities (category -> probability) that it was drawn from."""

    text: str
    slots: tuple[dict[str, float], ...]


def _expected_objects(scene: Scene, said: list[str], sharpness: float) -> dict[str, float]:
    """Probabilities of the objects that seem likely in this place and were not said yet, there or not."""
    names = [n for n in PLACES[scene.place] if n not in said]
    return normalised({n: prior_weight(scene.place, n, set(said)) ** sharpness for n in names})


def next_object(scene: Scene, said: list[str], drift: Drift) -> dict[str, float]:
    """The probabilities of the object that a drifting caption names next."""
    present, expected = likely_present(scene, said), _expected_objects(scene, said, drift.sharpness)
    chance = drift.slots[min(len(said), len(drift.slots) - 1)]
    names = dict.fromkeys((*present, *expected))
    return {n: chance * expected.get(n, 0.0) + (1 - chance) * present.get(n, 0.0) for n in names}


class _Recorder:
    """Passes probabilities on and keeps them."""

    def __init__(self, likely: NextObject) -> None:
        self.likely = likely
        self.slots: list[dict[str, float]] = []

    def __call__(self, scene: Scene, said: list[str]) -> dict[str, float]:
        self.slots.append(self.likely(scene, said))
        return self.slots[-1]


def drifting_caption(
    scene: Scene, random: np.random.RandomState, drift: Drift, objects: int = OBJECTS
) -> DrawnCaption:
    """A detailed caption that drifts from the scene, and how its objects were drawn."""
    recorder = _Recorder(lambda scene, said: next_object(scene, said, drift))
    return DrawnCaption(detailed_caption(scene, random, objects, recorder), tuple(recorder.slots))


def drawn_brief_caption(scene: Scene, random: np.random.RandomState) -> DrawnCaption:
    """A brief caption, which is true, and how its objects were drawn."""
    recorder = _Recorder(likely_present)
    return DrawnCaption(brief_caption(scene, random, recorder), tuple(recorder.slots))


def dense_scene(seed: int, number: int) -> Scene:
    """Training scene `number` for the vision tower of training run `seed`: full, with objects from anywhere."""
    counts = (0.0,) * 7 + (1.0,) * 8
    return make_scene(TRAINING + 10_000_000 * (2 * seed + 1) + number, surprise=1.0, counts=counts)
