"""POPE: is there an object in the picture? From the published question files, or built from COCO annotations."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from ...metrics.coco import read_coco
from ...metrics.errors import InputError, listed
from ...metrics.pope import Question, read_questions
from ...metrics.pope_questions import STRATEGIES, build_questions
from .base import FolderTask, Sample, choose_ids

PROMPT = "{question}"
IMAGES = 500  # as in the published files


class PopeTask(FolderTask):
    """Yes/no questions, by split."""

    kind: ClassVar[str] = "pope"
    max_new_tokens: ClassVar[int] = 16

    @classmethod
    def from_data(
        cls, data: Path, images: Path, prompt: str = PROMPT, limit: int | None = None, seed: int = 0,
        wanted: Sequence[int | str] | None = None,
    ) -> PopeTask:  # fmt: skip
        """From question files or annotations.

        Args:
            data: A folder with one question file per split, one such file, or COCO's `instances_*.json`, from which
                the questions of all three strategies are built.
            images: Folder of the pictures.
            prompt: What to ask, with {question} in it.
            limit: How many pictures to draw.
            seed: Of the draw and of the building.
            wanted: Only questions about these pictures: their file names, or ids where questions are built.
        """
        built = data.is_file() and _is_coco(data)
        splits = _built(data, limit, seed, wanted) if built else _read(data)
        sizes = {split: len(questions) for split, questions in splits.items()}
        if len(set(sizes.values())) > 1:
            raise InputError(
                f"the splits have different numbers of questions ({', '.join(f'{k} {v}' for k, v in sizes.items())}): "
                "an old random split has 2910 and must not be mixed with the current files of 3000"
            )
        names = dict.fromkeys(question.image for questions in splits.values() for question in questions)
        chosen = set(choose_ids(names, None if built else limit, seed, None if built else wanted))
        samples = [
            pope_sample(split, question, prompt)
            for split, questions in splits.items()
            for question in questions
            if question.image in chosen
        ]
        record = {"source": data.name, "built_from_annotations": built, "questions": sizes}
        return cls("pope", samples, record, images)


def pope_sample(split: str, question: Question, prompt: str) -> Sample:
    """A question of a split."""
    return Sample(
        id=f"{split}:{question.question_id}",
        image_id=question.image,
        image=question.image,
        prompt=prompt.replace("{question}", question.text),
        reference={"split": split, "label": question.label, "question": question.text},
    )


def _is_coco(path: Path) -> bool:
    """Whether a file is one JSON object with annotations, and not one question per line."""
    with path.open(encoding="utf-8", errors="replace") as file:
        head = file.readline()
    try:
        content = json.loads(head)
    except ValueError:
        return True  # An object over several lines; the reader says what is wrong with it if it is none.
    return isinstance(content, dict) and "question_id" not in content


def _built(data: Path, limit: int | None, seed: int, wanted: Sequence[int | str] | None) -> dict[str, list[Question]]:
    annotations = read_coco(data)
    images = limit or IMAGES if wanted is None else choose_ids(annotations.ids, None, seed, wanted)
    return {s: build_questions(annotations, s, images=images, seed=seed) for s in STRATEGIES}


def _read(data: Path) -> dict[str, list[Question]]:
    """Questions by split, in the order random, popular, adversarial."""
    if not data.exists():
        raise InputError(f"there is no {data}: give a folder of POPE question files, or one of them")
    files = [data] if data.is_file() else sorted(p for p in data.iterdir() if p.suffix in (".json", ".jsonl"))
    found: dict[str, Path] = {}
    for path in files:
        split: str | None = next((s for s in STRATEGIES if s in path.stem.lower()), None)
        if split is None and data.is_file():
            split = path.stem
        if split is None:
            continue
        if split in found:
            raise InputError(f"{data} has two files of the split {split}: {found[split].name} and {path.name}")
        found[split] = path
    if not found:
        names = listed(path.name for path in files) or "nothing"
        raise InputError(f"{data} has no question file named for {', '.join(STRATEGIES)}; it has {names}")
    order = [split for split in STRATEGIES if split in found] + [split for split in found if split not in STRATEGIES]
    return {split: read_questions(found[split]) for split in order}
