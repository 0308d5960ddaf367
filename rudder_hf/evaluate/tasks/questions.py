"""Yes/no questions: POPE, from the published files or built from COCO annotations or from the scenes, and MME."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from ...metrics.coco import read_coco
from ...metrics.mme import SUBTASKS, MmeQuestion, mme, mme_metrics, parse_mme_answer, read_mme
from ...metrics.pope import (
    STRATEGIES,
    Parser,
    Question,
    askable_images,
    build_questions,
    objects_to_ask,
    pope,
    pope_mean,
    read_questions,
)
from ...runtime.errors import InputError, listed
from ...scenes.captions import question as scene_question
from ...scenes.images import file_name
from ...scenes.world import OBJECT_NAMES
from ..result import Rows, Scored, Scoring
from . import DataOptions, Sample, Task, images_in, question_sample
from .captions import choose_scenes, coco_annotations, coco_images, has_annotations, task_of_scenes

PROMPT = "{question}"
IMAGES = 500  # as in the published files


def pope_task(options: DataOptions) -> Task:
    """Yes/no questions by split: of the question files in `data`, or built from the annotations there."""
    assert options.data is not None
    data, images = options.data, options.images
    built = has_annotations(data) if data.is_dir() else data.is_file()
    if built:
        data, _ = coco_annotations(options)
        images = coco_images(options, data)
    if images is None:
        raise InputError("the task pope needs --images, the folder of the images that the questions name")
    splits = _build(data, options) if built else _read(data)
    sizes = {split: len(questions) for split, questions in splits.items()}
    if len(set(sizes.values())) > 1:
        raise InputError(
            f"the splits have different numbers of questions ({', '.join(f'{k} {v}' for k, v in sizes.items())}): "
            "an old random split has 2910 and must not be mixed with the current files of 3000"
        )
    if not built:
        chosen = set(options.choose(question.image for questions in splits.values() for question in questions))
        splits = {split: [q for q in questions if q.image in chosen] for split, questions in splits.items()}
    prompt = PROMPT if options.prompt is None else options.prompt
    samples = [
        question_sample(f"{split}:{q.question_id}", q.image, q.image, prompt, q.text, split=split, label=q.label)
        for split, questions in splits.items()
        for q in questions
    ]
    record = {"source": data.name, "built_from_annotations": built, "questions": sizes}
    return Task("pope", "pope", samples, record, images_in(images), 16, prompt)


def _build(data: Path, options: DataOptions) -> dict[str, list[Question]]:
    annotations = read_coco(data)
    images = options.choose(askable_images(annotations), IMAGES)
    return {s: build_questions(annotations, s, images, options.seed) for s in STRATEGIES}


def _read(folder: Path) -> dict[str, list[Question]]:
    """Questions by split, in the order random, popular, adversarial."""
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}: give one of POPE's question files, or COCO's")
    files = sorted(path for path in folder.iterdir() if path.suffix in (".json", ".jsonl"))
    found = {split: [path for path in files if split in path.stem.lower()] for split in STRATEGIES}
    for split, paths in found.items():
        if len(paths) > 1:
            raise InputError(f"{folder} has two files of the split {split}: {paths[0].name} and {paths[1].name}")
    if not any(found.values()):
        names = listed(path.name for path in files) or "nothing"
        raise InputError(f"{folder} has no question file named for {', '.join(STRATEGIES)}; it has {names}")
    return {split: read_questions(paths[0]) for split, paths in found.items() if paths}


def scenes_pope_task(options: DataOptions) -> Task:
    """Yes/no questions about the scenes by POPE's three strategies, scored as POPE."""
    split, scenes = choose_scenes(options)
    prompt = PROMPT if options.prompt is None else options.prompt
    samples, objects = [], {number: scene.names for number, scene in enumerate(scenes)}
    for strategy in STRATEGIES:
        for number, name, present in objects_to_ask(objects, OBJECT_NAMES, strategy, options.seed):
            scene, label = scenes[number], "yes" if present else "no"
            sample_id, file = f"{strategy}:{scene.seed}:{name}", file_name(scene, split)
            question = scene_question(name)
            samples.append(question_sample(sample_id, scene.seed, file, prompt, question, split=strategy, label=label))
    return task_of_scenes("scenes-pope", "pope", samples, split, scenes, 8, prompt)


def mme_task(options: DataOptions) -> Task:
    """MME's questions, by subtask. Without a limit all of them, else the score is not MME's."""
    data = options.data
    assert data is not None
    questions = read_mme(data)
    chosen = set(options.choose(question.sample_id for question in questions))
    prompt = PROMPT if options.prompt is None else options.prompt
    samples, seen = [], Counter[str]()
    for question in questions:
        image = question.sample_id
        if image not in chosen:
            continue
        seen[image] += 1
        file = os.path.relpath(question.image, data)
        samples.append(
            question_sample(
                f"{image}:{seen[image]}", image, file, prompt, question.text,
                subtask=question.subtask, image=question.image.name, label=question.label,
            )
        )  # fmt: skip
    notes = []
    absent = [name for name in SUBTASKS if name not in {sample.reference["subtask"] for sample in samples}]
    if absent:
        notes.append(f"the score is not MME's: {len(absent)} subtasks are missing ({', '.join(absent)})")
    record = {"source": data.name, "questions": len(samples)}
    return Task("mme", "mme", samples, record, images_in(data), 16, prompt, notes)


# Scores


def score_pope(samples: Sequence[Sample], rows: Rows, scoring: Scoring) -> Scored:
    """POPE by split and their plain mean."""
    splits: dict[str, list[tuple[Question, str]]] = {}
    for number, (sample, row) in enumerate(zip(samples, rows, strict=True)):
        reference = sample.reference
        question = Question(number, str(sample.image_id), reference["question"], reference["label"])
        splits.setdefault(reference["split"], []).append((question, row["answer"]))
    results = {
        split: pope([question for question, _ in asked], [answer for _, answer in asked], cast(Parser, scoring.parser))
        for split, asked in splits.items()
    }
    counts, metrics = pope_mean(results)
    unclear = sum(int(result.total()["unclear"]) for result in results.values())
    note = f"{unclear} of {len(rows)} answers say neither yes nor no: they count as wrong"
    return Scored(counts, metrics, [note] if unclear else [])


def score_mme(samples: Sequence[Sample], rows: Rows, scoring: Scoring) -> Scored:
    """MME by subtask and in sum."""
    questions = [
        MmeQuestion(r["subtask"], Path(r["image"]), r["question"], r["label"]) for r in (s.reference for s in samples)
    ]
    answers = [row["answer"] for row in rows]
    metrics = mme_metrics(tuple(dict.fromkeys(question.subtask for question in questions)))
    other = sum(parse_mme_answer(answer) == "other" for answer in answers)
    note = f"{other} of {len(rows)} answers are neither yes nor no: they count as wrong"
    return Scored(mme(questions, answers), metrics, [note] if other else [])
