"""MME: two yes/no questions about each image, in 14 subtasks."""

from __future__ import annotations

import os
from collections import Counter

from ...metrics.errors import InputError
from ...metrics.mme import SUBTASKS, read_mme
from .base import DataOptions, Task, images_in, question_sample

PROMPT = "{question}"


def mme_task(options: DataOptions) -> Task:
    """MME's questions, by subtask. Without a limit all of them, else the score is not MME's.

    Images that are wanted are named `SUBTASK/NAME`.
    """
    data = options.data
    if data is None or not data.is_dir():
        raise InputError(f"there is no folder {data}: give MME's folder with one folder per subtask")
    there = [name for name in SUBTASKS if (data / name).is_dir()]
    questions = read_mme(data, there or None)
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
