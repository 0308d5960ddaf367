"""How a trained model describes the scenes and answers questions, with the package's own scorers."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel, ProcessorMixin

from rudder_hf.metrics.chair import ChairResult, chair
from rudder_hf.metrics.fluency import BROKEN_METRICS, FLUENCY_METRICS, broken, repetition
from rudder_hf.metrics.pope import Question, pope
from rudder_hf.metrics.statistics import scores
from rudder_hf.runtime.answers import encode, without_prompt
from rudder_hf.scenes import captions
from rudder_hf.scenes.images import Scene, draw, split_scenes
from rudder_hf.scenes.questions import pope_questions

CAPTION_TOKENS = 120
ANSWER_TOKENS = 8
BATCH = 150


@torch.no_grad()
def answers(
    model: PreTrainedModel, processor: ProcessorMixin, scenes: list[Scene], prompts: list[str], max_new_tokens: int
) -> list[str]:
    """The greedy answer to each scene's prompt."""
    written: list[str] = []
    for start in range(0, len(scenes), BATCH):
        images = [draw(scene) for scene in scenes[start : start + BATCH]]
        inputs = encode(model, processor, images, prompts[start : start + BATCH])
        output: Any = model.generate(**inputs, do_sample=False, max_new_tokens=max_new_tokens)  # type: ignore[operator]
        new = without_prompt(output, inputs["input_ids"])
        written += processor.tokenizer.batch_decode(new, skip_special_tokens=True)  # type: ignore[attr-defined]
    return written


def scene_chair(scenes: list[Scene], texts: list[str]) -> ChairResult:
    """CHAIR of one caption for each scene; the strict lineage reads template English exactly."""
    given = [(scene.seed, text) for scene, text in zip(scenes, texts, strict=True)]
    return chair(given, {scene.seed: set(scene.names) for scene in scenes}, "strict")


def caption_scores(scenes: list[Scene], texts: list[str]) -> dict[str, float]:
    """CHAIR, recall and fluency in percent; objects and words per caption."""
    found = scene_chair(scenes, texts)
    ids = [str(scene.seed) for scene in scenes]
    fluency = {
        **scores(repetition(texts, ids), FLUENCY_METRICS),
        **scores(broken(texts, ids), BROKEN_METRICS),
    }
    return {
        "chair_s": 100 * found.scores.chair_s,
        "chair_i": 100 * found.scores.chair_i,
        "chair_i_distinct": 100 * found.scores.chair_i_distinct,
        "recall": 100 * found.scores.recall,
        "broken": 100 * fluency["broken_sentences"],
        "repeated": 100 * fluency["repeated_sentences"],
        "objects": found.scores.distinct_objects,
        "words": found.scores.length,
    }


def pope_scores(
    model: PreTrainedModel, processor: ProcessorMixin, scenes: list[Scene], strategy: str
) -> dict[str, float]:
    """Accuracy, F1 and share of yes of one of POPE's strategies, in percent."""
    asked = pope_questions(scenes, strategy)
    questions = [
        Question(number, str(scenes[index].seed), captions.question(name), "yes" if present else "no")
        for number, (index, name, present) in enumerate(asked)
    ]
    about = [scenes[index] for index, _, _ in asked]
    found = pope(questions, answers(model, processor, about, [q.text for q in questions], ANSWER_TOKENS)).scores
    return {name: 100 * found[score] for name, score in (("accuracy", "accuracy"), ("f1", "f1"), ("yes", "yes_ratio"))}


def measure(model: PreTrainedModel, processor: ProcessorMixin, split: str) -> dict[str, Any]:
    """Captions and POPE of a model on a split, without steering."""
    scenes = split_scenes(split)
    texts = answers(model, processor, scenes, [captions.DETAIL_PROMPT] * len(scenes), CAPTION_TOKENS)
    strategies = ("random", "popular", "adversarial")
    pope_results = {strategy: pope_scores(model, processor, scenes, strategy) for strategy in strategies}
    return {**caption_scores(scenes, texts), "pope": pope_results}
