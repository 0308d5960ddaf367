"""MME: 14 subtasks of yes/no questions, two per image (Fu et al., 2023).

```python
questions = read_mme("MME_Benchmark_release_version")
result = mme(questions, answers)  # answers in the order of the questions
result.scores["perception"], result.scores["cognition"], result.scores["total"]
```

A subtask scores 100 times the share of right answers plus 100 times the share of images with both answers right;
perception is the sum of ten subtasks (at most 2000), cognition of four (at most 800).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Literal, cast

import numpy as np

from .coco import PathLike
from .errors import InputError, listed
from .pope import Label, check_answers
from .statistics import Counts, Floats, Metric, Sums, ratio, scores

PERCEPTION = (
    "existence", "count", "position", "color", "posters", "celebrity", "scene", "landmark", "artwork", "OCR",
)  # fmt: skip
COGNITION = ("commonsense_reasoning", "numerical_calculation", "text_translation", "code_reasoning")
SUBTASKS = PERCEPTION + COGNITION
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")
_KINDS = ("questions", "right", "images", "both_right", "other")

Reply = Literal["yes", "no", "other"]


@dataclass(frozen=True)
class MmeQuestion:
    """A question about an image."""

    subtask: str
    image: Path
    text: str
    label: Label

    @property
    def sample_id(self) -> str:
        """The image among all subtasks."""
        return f"{self.subtask}/{self.image.name}"


@dataclass(frozen=True)
class MmeResult:
    """Scores in points by metric name (subtasks, perception, cognition, total), and counts with a row per image.

    `subtasks` are those that were asked; perception and cognition sum the ones that are there, so they compare with
    published numbers only if these are all 14. `other` counts answers that were neither yes nor no.
    """

    scores: dict[str, float]
    subtasks: tuple[str, ...]
    counts: Counts
    other: int


def parse_mme_answer(text: str) -> Reply:
    """The official parser: yes or no if the first four characters hold it, otherwise other, which is wrong.

    White space around the answer is no part of it: a tokenizer's leading spaces are not to cost a right answer.
    """
    answer = text.strip().lower()
    if answer in ("yes", "no"):
        return answer  # type: ignore[return-value]
    start = answer[:4]
    return "yes" if "yes" in start else "no" if "no" in start else "other"


def _sum_of(names: Sequence[str]) -> Callable[[Sums], Floats]:
    """The sum of the scores of subtasks."""

    def score(sums: Sums) -> Floats:
        right = sum(ratio(sums[f"{name}/right"], sums[f"{name}/questions"]) for name in names)
        both = sum(ratio(sums[f"{name}/both_right"], sums[f"{name}/images"]) for name in names)
        return np.asarray(100 * right + 100 * both, dtype=np.float64)

    return score


def mme_metrics(subtasks: Sequence[str] = SUBTASKS) -> tuple[Metric, ...]:
    """The total, perception, cognition and each subtask; sums run over the subtasks given."""
    groups = [
        ("total", "MME", list(subtasks)),
        ("perception", "Perception", [name for name in subtasks if name in PERCEPTION]),
        ("cognition", "Cognition", [name for name in subtasks if name in COGNITION]),
        *((name, name, [name]) for name in subtasks),
    ]
    return tuple(Metric(name, label, _sum_of(parts), True, "points") for name, label, parts in groups if parts)


def mme(questions: Sequence[MmeQuestion], answers: Sequence[str]) -> MmeResult:
    """Score answers in the order of the questions; the two questions of an image have to be neighbours."""
    check_answers(questions, answers)
    replies = tuple(parse_mme_answer(answer) for answer in answers)
    subtasks = tuple(dict.fromkeys(question.subtask for question in questions))
    columns = tuple(f"{subtask}/{kind}" for subtask in subtasks for kind in _KINDS)
    ids, rows = [], []
    pairs = zip(questions, replies, strict=True)
    for sample, group in groupby(pairs, key=lambda pair: pair[0].sample_id):
        asked = list(group)
        if len(asked) != 2:
            raise InputError(f"{sample} has {len(asked)} neighbouring questions; MME asks two about every image")
        right = [reply == question.label for question, reply in asked]
        other = sum(reply == "other" for _, reply in asked)
        subtask = asked[0][0].subtask
        row = dict(zip((f"{subtask}/{k}" for k in _KINDS), (2, sum(right), 1, all(right), other), strict=True))
        ids.append(sample)
        rows.append([row.get(column, 0) for column in columns])
    counts = Counts(tuple(ids), columns, np.asarray(rows, dtype=np.float64))
    return MmeResult(scores(counts, mme_metrics(subtasks)), subtasks, counts, replies.count("other"))


def read_mme(folder: PathLike, subtasks: Collection[str] | None = None) -> list[MmeQuestion]:
    """Questions of the benchmark's folder: one folder per subtask with images and a text file per image.

    Both published layouts are read: images beside their text files, and `images/` with `questions_answers_YN/`.
    All 14 subtasks have to be there unless `subtasks` names the ones to read.
    """
    root = Path(folder)
    if not root.is_dir():
        raise InputError(f"{folder} is no folder; give MME's folder, which has one folder per subtask")
    unknown = [name for name in subtasks or () if name not in SUBTASKS]
    if unknown:
        raise InputError(f"unknown MME subtasks {listed(unknown)}; choose among {listed(SUBTASKS, len(SUBTASKS))}")
    wanted = [name for name in SUBTASKS if subtasks is None or name in subtasks]
    missing = [name for name in wanted if not (root / name).is_dir()]
    if missing:
        raise InputError(f"{folder} lacks the subtasks {listed(missing, 14)}; name the ones to read, or add them")
    return [question for name in wanted for question in _read_subtask(root / name)]


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
            label = fields[1].strip().lower()
            if label not in ("yes", "no"):
                raise InputError(f"{file} has the label {fields[1]!r}; allowed are Yes and No")
            questions.append(MmeQuestion(folder.name, by_stem[file.stem], fields[0], cast(Label, label)))
    return questions
