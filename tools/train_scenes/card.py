"""What is kept beside the trained weights: `metrics.json`, with the package's own scorers, and a model card."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
import transformers
from transformers import PreTrainedModel, ProcessorMixin

from rudder_hf.metrics.chair import ChairResult, chair
from rudder_hf.metrics.pope import POPE_METRICS, Question, objects_to_ask, pope
from rudder_hf.metrics.statistics import scores
from rudder_hf.metrics.words import BROKEN_METRICS, FLUENCY_METRICS, broken, repetition
from rudder_hf.runtime.answers import encode, without_prompt
from rudder_hf.runtime.report import Table, number
from rudder_hf.scenes import captions
from rudder_hf.scenes.images import SPLITS, Scene, draw, split_scenes, train_scene
from rudder_hf.scenes.world import OBJECT_NAMES, PLACES

from . import coco
from .families import FAMILIES
from .stages import BFLOAT16

HASHES = Path(captions.__file__).parent / "data" / "hashes.json"
CAPTION_TOKENS = 120
ANSWER_TOKENS = 8
BATCH = 150

CARD = """---
license: apache-2.0
library_name: transformers
pipeline_tag: image-text-to-text
tags: [rudder, hallucination, test-bed, synthetic]
---
# A small {family} that really hallucinates

A test bed for RUDDER, **not a captioner**: `{model_class}` with {parameters:,} parameters ({layers} decoder
layers), trained in {minutes:.0f} minutes on one core of a shared CPU, on synthetic scenes of colour-emoji objects with
COCO names. Its training captions drift towards likely but absent objects, so it hallucinates as large models do. It
knows its own template English, two prompts ("Please help me describe the image in detail", "Describe the image
briefly") and yes/no questions ("Is there a cat in the image?"), and nothing about photographs.

Made by `python -m tools.train_scenes --family {family} --seed {seed} --steps {steps} --out FOLDER`; recipe, log and
hashes of the data are in `recipe.json`, `training_log.jsonl`, `metrics.json`. Sprites: Noto Color Emoji (Google, SIL
Open Font License 1.1).

Greedy captions of the {count} evaluation scenes, no steering (percent):

{table}

POPE accuracy / F1: {pope}.
"""
COLUMNS = {
    "chair_s": "CHAIR_S",
    "chair_i": "CHAIR_I",
    "chair_i_distinct": "distinct",
    "recall": "recall",
    "precision": "precision",
    "f1": "F1",
    "broken": "broken sentences",
    "false_places": "false places",
    "objects": "objects per caption",
}


@torch.no_grad()
def answers(
    model: PreTrainedModel, processor: ProcessorMixin, scenes: list[Scene], prompts: list[str], max_new_tokens: int
) -> list[str]:
    """Return the greedy answer to each scene's prompt."""
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
    """CHAIR, F1, fluency and captions that name a wrong place in percent; objects and words per caption."""
    found = scene_chair(scenes, texts)
    ids = [str(scene.seed) for scene in scenes]
    fluency = {**scores(repetition(texts, ids), FLUENCY_METRICS), **scores(broken(texts, ids), BROKEN_METRICS)}
    percent = ("chair_s", "chair_i", "chair_i_distinct", "recall", "precision", "f1")
    return {
        **{name: 100 * found.scores[name] for name in percent},
        "false_places": 100 * mean(place(t) != s.place for s, t in zip(scenes, texts, strict=True)),
        "broken": 100 * fluency["broken_sentences"],
        "repeated": 100 * fluency["repeated_sentences"],
        "objects": found.scores["distinct_objects"],
        "words": found.scores["length"],
    }


def pope_scores(
    model: PreTrainedModel, processor: ProcessorMixin, scenes: list[Scene], strategy: str
) -> dict[str, float]:
    """Accuracy, F1 and share of yes of one of POPE's strategies, in percent."""
    objects = {number: scene.names for number, scene in enumerate(scenes)}
    asked = objects_to_ask(objects, OBJECT_NAMES, strategy)
    questions = [
        Question(number, str(scenes[index].seed), captions.question(name), "yes" if present else "no")
        for number, (index, name, present) in enumerate(asked)
    ]
    about = [scenes[index] for index, _, _ in asked]
    counts = pope(questions, answers(model, processor, about, [q.text for q in questions], ANSWER_TOKENS))
    found = scores(counts, POPE_METRICS)
    return {name: 100 * found[score] for name, score in (("accuracy", "accuracy"), ("f1", "f1"), ("yes", "yes_ratio"))}


def measure(model: PreTrainedModel, processor: ProcessorMixin, split: str) -> dict[str, Any]:
    """Captions and POPE of a model on a split, without steering."""
    scenes = split_scenes(split)
    texts = answers(model, processor, scenes, [captions.DETAIL_PROMPT] * len(scenes), CAPTION_TOKENS)
    strategies = ("random", "popular", "adversarial")
    pope_results = {strategy: pope_scores(model, processor, scenes, strategy) for strategy in strategies}
    return {**caption_scores(scenes, texts), "pope": pope_results}


def place(caption: str) -> str | None:
    """The place that a caption names first, or None."""
    found = re.search(r"\b(" + "|".join(map(re.escape, PLACES)) + r")\b", caption)
    return found[1] if found else None


def data_hash(scenes: list[Scene], split: str) -> str:
    """A SHA-256 over the pixels and both annotation files of these scenes."""
    digest = hashlib.sha256()
    for scene in scenes:
        digest.update(np.asarray(draw(scene)).tobytes())
    for content in (coco.instances(scenes, split), coco.captions(scenes, split)):
        digest.update(json.dumps(content, sort_keys=True).encode())
    return digest.hexdigest()


def data_hashes(seed: int) -> dict[str, str]:
    """Hash of every held-out split and of the first training scenes."""
    hashes = {s: data_hash(split_scenes(s), s) for s in SPLITS}
    return {**hashes, f"train, seed {seed}, first 200": data_hash([train_scene(seed, n) for n in range(200)], "train")}


def render(metrics: dict[str, Any]) -> str:
    """The model card that says what `metrics.json` holds."""
    shown, recipe = metrics["vanilla"]["evaluation"], metrics["recipe"]
    return CARD.format(
        **{key: metrics[key] for key in ("parameters", "layers", "model_class")},
        family=recipe["family"],
        seed=recipe["seed"],
        steps=recipe["steps"],
        minutes=metrics["training_seconds"] / 60,
        count=SPLITS["evaluation"][1],
        table=Table(list(COLUMNS.values()), [[number(shown[key], "percent") for key in COLUMNS]]).markdown(),
        pope=", ".join(f"{k} {v['accuracy']:.1f} / {v['f1']:.1f}" for k, v in shown["pope"].items()),
    )


def finish(
    model: PreTrainedModel, processor: ProcessorMixin, recipe: dict[str, Any], seconds: float, out: Path
) -> dict[str, Any]:
    """Measure the trained model and write `metrics.json` and `README.md`."""
    model.eval()  # type: ignore[no-untyped-call]
    decoder: Any = FAMILIES[recipe["family"]].decoder(model)
    metrics: dict[str, Any] = {
        "recipe": recipe,
        "model_class": type(model).__name__,
        "layers": len(decoder.layers),
        "parameters": model.num_parameters(),
        "training_seconds": round(seconds, 1),
        "threads": torch.get_num_threads(),
        "precision": "bfloat16" if BFLOAT16 else "float32",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "data_sha256": data_hashes(int(recipe["seed"])),
        "vanilla": {split: measure(model, processor, split) for split in ("calibration", "evaluation")},
    }
    (out / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n")
    (out / "README.md").write_text(render(metrics))
    return metrics
