"""The embedded scenes: CHAIR and POPE without any data to download."""

from __future__ import annotations

from PIL import Image

from ...metrics.pope import STRATEGIES, objects_to_ask
from ...scenes import captions as grammar
from ...scenes.captions import coco_captions, file_name
from ...scenes.images import SPLITS, Scene, draw, split_scenes
from ...scenes.world import OBJECT_NAMES
from .base import DataOptions, Sample, Task, chair_sample, question_sample


def scenes_task(options: DataOptions) -> Task:
    """Captions of the scenes, scored by CHAIR."""
    split, scenes = _choose(options)
    prompt = grammar.DETAIL_PROMPT if options.prompt is None else options.prompt
    references: dict[int, list[str]] = {scene.seed: [] for scene in scenes}
    for row in coco_captions(scenes, split)["annotations"]:
        references[row["image_id"]].append(row["caption"])
    samples = [
        chair_sample(s.seed, file_name(s, split), prompt, list(dict.fromkeys(s.names)), references[s.seed])
        for s in scenes
    ]
    return _task("scenes", "chair", samples, split, scenes, 120, prompt)


def scenes_pope_task(options: DataOptions) -> Task:
    """Yes/no questions about the scenes by POPE's three strategies, scored as POPE."""
    split, scenes = _choose(options)
    prompt = "{question}" if options.prompt is None else options.prompt
    samples, objects = [], {number: scene.names for number, scene in enumerate(scenes)}
    for strategy in STRATEGIES:
        for number, name, present in objects_to_ask(objects, OBJECT_NAMES, strategy, options.seed):
            scene, label = scenes[number], "yes" if present else "no"
            sample_id, file = f"{strategy}:{scene.seed}:{name}", file_name(scene, split)
            question = grammar.question(name)
            samples.append(question_sample(sample_id, scene.seed, file, prompt, question, split=strategy, label=label))
    return _task("scenes-pope", "pope", samples, split, scenes, 8, prompt)


def _choose(options: DataOptions) -> tuple[str, list[Scene]]:
    split = options.split or "evaluation"
    scenes = split_scenes(split)
    chosen = set(options.choose(scene.seed for scene in scenes))
    return split, [scene for scene in scenes if scene.seed in chosen]


def _task(
    name: str, kind: str, samples: list[Sample], split: str, scenes: list[Scene], max_new_tokens: int, prompt: str
) -> Task:
    """A task whose images are drawn when they are needed."""
    by_seed = {scene.seed: scene for scene in scenes}

    def image(sample: Sample) -> Image.Image:
        return draw(by_seed[int(sample.image_id)])

    return Task(name, kind, samples, {"split": split, "images": SPLITS[split][1]}, image, max_new_tokens, prompt)
