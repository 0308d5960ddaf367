"""MME: two yes/no questions about each picture, in 14 subtasks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from ...metrics.errors import InputError
from ...metrics.mme import SUBTASKS, read_mme
from .base import FolderTask, Sample, choose_ids

PROMPT = "{question}"


class MmeTask(FolderTask):
    """MME's questions, by subtask."""

    kind: ClassVar[str] = "mme"
    max_new_tokens: ClassVar[int] = 16

    @classmethod
    def from_folder(
        cls, data: Path, prompt: str = PROMPT, limit: int | None = None, seed: int = 0,
        wanted: Sequence[int | str] | None = None,
    ) -> MmeTask:  # fmt: skip
        """From the benchmark's folder.

        Args:
            data: Folder with one folder per subtask.
            prompt: What to ask, with {question} in it.
            limit: How many pictures to draw; None is all of them, without which the score is not MME's.
            seed: Of the draw.
            wanted: Only these pictures (`SUBTASK/NAME`).
        """
        if not data.is_dir():
            raise InputError(f"there is no folder {data}: give MME's folder with one folder per subtask")
        samples = []
        seen: dict[str, int] = {}
        there = [name for name in SUBTASKS if (data / name).is_dir()]
        for question in read_mme(data, there or None):
            picture = question.sample_id
            seen[picture] = seen.get(picture, 0) + 1
            samples.append(
                Sample(
                    id=f"{picture}:{seen[picture]}",
                    image_id=picture,
                    image=os.path.relpath(question.image, data),
                    prompt=prompt.replace("{question}", question.text),
                    reference={
                        "subtask": question.subtask,
                        "image": question.image.name,
                        "label": question.label,
                        "question": question.text,
                    },
                )
            )
        chosen = set(choose_ids(seen, limit, seed, wanted))
        samples = [sample for sample in samples if sample.image_id in chosen]
        notes = []
        absent = [name for name in SUBTASKS if name not in {sample.reference["subtask"] for sample in samples}]
        if absent:
            notes.append(f"the score is not MME's: {len(absent)} subtasks are missing ({', '.join(absent)})")
        return cls("mme", samples, {"source": data.name, "questions": len(samples)}, data, notes)
