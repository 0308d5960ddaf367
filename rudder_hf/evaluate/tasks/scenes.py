"""The embedded scenes: CHAIR and POPE without any data to download."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from PIL import Image

from ...scenes import captions as grammar
from ...scenes.coco import captions as scene_captions
from ...scenes.coco import file_name
from ...scenes.evaluate import pope_questions
from ...scenes.pictures import SPLITS, Scene, draw, split_scenes
from .base import Sample, Task, choose_ids
from .chair import chair_sample

EVALUATION_SPLITS = tuple(split for split in SPLITS if split not in ("train",))
POPE_SPLITS = ("random", "popular", "adversarial")


class SceneTask(Task):
    """What both tasks on scenes share: pictures are drawn when they are needed."""

    def __init__(self, name: str, samples: list[Sample], data: dict[str, Any], scenes: Sequence[Scene]) -> None:
        super().__init__(name, samples, data)
        self._scenes = {scene.seed: scene for scene in scenes}

    def picture(self, sample: Sample) -> Image.Image:
        """Draw the scene."""
        return draw(self._scenes[int(sample.image_id)])


class SceneChairTask(SceneTask):
    """Captions of the scenes, scored by CHAIR."""

    kind: ClassVar[str] = "chair"
    max_new_tokens: ClassVar[int] = 120

    @classmethod
    def from_split(
        cls, split: str = "evaluation", prompt: str = grammar.DETAIL_PROMPT, limit: int | None = None, seed: int = 0,
        wanted: Sequence[int | str] | None = None,
    ) -> SceneChairTask:  # fmt: skip
        """All scenes of a split, or some of them."""
        scenes = _choose(split, limit, seed, wanted)
        references: dict[int, list[str]] = {scene.seed: [] for scene in scenes}
        for row in scene_captions(scenes, split)["annotations"]:
            references[row["image_id"]].append(row["caption"])
        samples = [
            chair_sample(s.seed, file_name(s, split), prompt, list(dict.fromkeys(s.names)), references[s.seed])
            for s in scenes
        ]
        return cls("scenes", samples, {"split": split, "images": SPLITS[split][1]}, scenes)


class ScenePopeTask(SceneTask):
    """Yes/no questions about the scenes, scored as POPE."""

    kind: ClassVar[str] = "pope"
    max_new_tokens: ClassVar[int] = 8

    @classmethod
    def from_split(
        cls, split: str = "evaluation", prompt: str = "{question}", limit: int | None = None, seed: int = 0,
        wanted: Sequence[int | str] | None = None,
    ) -> ScenePopeTask:  # fmt: skip
        """POPE's three strategies on all scenes of a split, or on some of them."""
        scenes = _choose(split, limit, seed, wanted)
        samples = []
        for kind in POPE_SPLITS:
            for index, name, present in pope_questions(scenes, kind, seed):
                scene, question = scenes[index], grammar.question(name)
                samples.append(
                    Sample(
                        id=f"{kind}:{scene.seed}:{name}",
                        image_id=scene.seed,
                        image=file_name(scene, split),
                        prompt=prompt.replace("{question}", question),
                        reference={"split": kind, "label": "yes" if present else "no", "question": question},
                    )
                )
        return cls("scenes-pope", samples, {"split": split, "images": SPLITS[split][1]}, scenes)


def _choose(split: str, limit: int | None, seed: int, wanted: Sequence[int | str] | None) -> list[Scene]:
    scenes = split_scenes(split)
    chosen = set(choose_ids([scene.seed for scene in scenes], limit, seed, wanted))
    return [scene for scene in scenes if scene.seed in chosen]
