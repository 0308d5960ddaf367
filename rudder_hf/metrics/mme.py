"""MME: 14 subtasks of yes/no questions, two per image (Fu et al., 2023).

```python
questions = read_mme("MME_Benchmark_release_version")
counts = mme(questions, answers)  # answers in the order of the questions
scores(counts, mme_metrics())["total"]  # or "perception", "cognition" and each subtask
```

A subtask scores 100 times the share of right answers plus 100 times the share of images with both answers right;
perception is the sum of ten subtasks (at most 2000), cognition of four (at most 800).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Literal

import numpy as np

from ..runtime.errors import InputError, listed
from .coco import IMAGE_SUFFIXES, PathLike
from .pope import Label, check_answers, read_label
from .statistics import Counts, Floats, Metric, Sums, ratio

PERCEPTION = (
    "existence", "count", "position", "color", "posters", "celebrity", "scene", "landmark", "artwork", "OCR",
)  # fmt: skip
COGNITION = ("commonsense_reasoning", "numerical_calculation", "text_translation", "code_reasoning")
SUBTASKS = PERCEPTION + COGNITION
_KINDS = ("questions", "right", "images", "both_right")

MmeReply = Literal["yes", "no", "other"]


@dataclass(frozen=True)
class MmeQuestion:
    """A question about an image."""

    subtask: str
    image: Path
    text: str
    label: Label

    @property
    def sample_id(self) -> str:
        """Name the image among those of all subtasks."""
        return f"{self.subtask}/{self.image.name}"


def parse_mme_answer(text: str) -> MmeReply:
    """Parse as the official program does: yes or no if the first four characters hold it, otherwise other, a mistake.

    White space around the answer does not count: a tokenizer's leading spaces must not cost a right answer.
    """
    answer = text.strip().lower()
    if answer in ("yes", "no"):
        return answer  # type: ignore[return-value]
    start = answer[:4]
    return "yes" if "yes" in start else "no" if "no" in start else "other"


def _sum_of(names: Sequence[str]) -> Callable[[Sums], Floats]:
    """Return the function that sums the scores of subtasks."""

    def score(sums: Sums) -> Floats:
        right = sum(ratio(sums[f"{name}/right"], sums[f"{name}/questions"]) for name in names)
        both = sum(ratio(sums[f"{name}/both_right"], sums[f"{name}/images"]) for name in names)
        return np.asarray(100 * right + 100 * both, dtype=np.float64)

    return score


def mme_metrics(subtasks: Sequence[str] = SUBTASKS) -> tuple[Metric, ...]:
    """Return the metrics total, perception, cognition and each subtask.

    Sums run over the given subtasks; over fewer than all 14 they do not compare with published numbers.
    """
    groups = [
        ("total", "MME", list(subtasks)),
        ("perception", "Perception", [name for name in subtasks if name in PERCEPTION]),
        ("cognition", "Cognition", [name for name in subtasks if name in COGNITION]),
        *((name, name, [name]) for name in subtasks),
    ]
    return tuple(Metric(name, label, _sum_of(parts), True, "points") for name, label, parts in groups if parts)


def mme(questions: Sequence[MmeQuestion], answers: Sequence[str]) -> Counts:
    """Count right answers, in one row for each image.

    Answers are in the order of the questions; the two questions of an image must be neighbours.
    """
    check_answers(questions, answers)
    subtasks = tuple(dict.fromkeys(question.subtask for question in questions))
    columns = tuple(f"{subtask}/{kind}" for subtask in subtasks for kind in _KINDS)
    ids, rows = [], []
    for sample, group in groupby(zip(questions, answers, strict=True), key=lambda pair: pair[0].sample_id):
        asked = list(group)
        if len(asked) != 2:
            raise InputError(f"{sample} has {len(asked)} neighbouring questions; MME asks two about every image")
        right = [parse_mme_answer(answer) == question.label for question, answer in asked]
        subtask = asked[0][0].subtask
        row = dict(zip((f"{subtask}/{k}" for k in _KINDS), (2, sum(right), 1, all(right)), strict=True))
        ids.append(sample)
        rows.append([row.get(column, 0) for column in columns])
    return Counts(tuple(ids), columns, np.asarray(rows, dtype=np.float64))


def read_mme(folder: PathLike) -> list[MmeQuestion]:
    """Read the questions of the benchmark's folder: one folder per subtask with images and a text file per image.

    Both published layouts are read: images beside their text files, and `images/` with `questions_answers_YN/`.
    """
    folders = [Path(folder) / name for name in SUBTASKS if (Path(folder) / name).is_dir()]
    if not folders:
        raise InputError(f"{folder} is not MME's folder, which has one folder per subtask: {', '.join(SUBTASKS)}")
    return [question for subtask in folders for question in _read_subtask(subtask)]


def _read_subtask(folder: Path) -> list[MmeQuestion]:
    nested = (folder / "questions_answers_YN").is_dir()
    texts, images = (folder / "questions_answers_YN", folder / "images") if nested else (folder, folder)
    by_stem: dict[str, Path] = {}
    if images.is_dir():
        by_stem = {p.stem: p for p in sorted(images.iterdir()) if p.suffix.lower() in IMAGE_SUFFIXES}
    files = sorted(texts.glob("*.txt"))
    lacking = [file.name for file in files if file.stem not in by_stem]
    if lacking:
        raise InputError(f"{folder}: no image for {listed(lacking)}; expected one of {listed(IMAGE_SUFFIXES)}")
    if not files:
        raise InputError(f"{texts} has no text files with questions")
    questions = []
    for file in files:
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
        if len(lines) != 2:
            raise InputError(f"{file} has {len(lines)} questions; MME asks two about every image")
        for line in lines:
            fields = line.split("\t")
            if len(fields) != 2:
                raise InputError(f"{file}: {line!r} is not a question, a tab and Yes or No")
            label = read_label(fields[1], str(file))
            questions.append(MmeQuestion(folder.name, by_stem[file.stem], fields[0], label))
    return questions
