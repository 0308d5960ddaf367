"""POPE: yes/no questions about objects that are and are not in an image (Li et al., 2023).

```python
questions = read_questions("coco_pope_random.json")
result = pope(questions, {1: "Yes, there is a snowboard.", 2: "No", ...})
result.scores["accuracy"], result.scores["f1"], result.unclear
```

"Yes" is the positive class. `parse_answer` has two parsers: `official` is that of the published evaluation, to the
letter, so that its scores are comparable (whatever does not say no counts as yes, even an empty answer); `robust`, the
default, also understands "isn't", "NO" and whole sentences, and calls an answer that says neither *unclear*: it is
counted wrong and reported.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, cast

import numpy as np

from .coco import PathLike, read_json_rows
from .errors import InputError, listed
from .statistics import (
    Counts,
    Floats,
    Metric,
    Sums,
    ratio,
    scores,
)

Label = Literal["yes", "no"]
Reply = Literal["yes", "no", "unclear"]
Parser = Literal["robust", "official"]
PARSERS: tuple[Parser, ...] = ("robust", "official")
COLUMNS = ("questions", "right", "true_yes", "false_yes", "missed_yes", "said_yes", "unclear")


@dataclass(frozen=True)
class Question:
    """A question in the form of the published files; `image` is a file name."""

    question_id: int
    image: str
    text: str
    label: Label


@dataclass(frozen=True)
class Answered:
    """A question with its answer and what the parser made of it."""

    question: Question
    answer: str
    reply: Reply

    @property
    def right(self) -> bool:
        """Whether the answer is the label."""
        return self.reply == self.question.label


@dataclass(frozen=True)
class PopeResult:
    """Scores (fractions by metric name), sums of `COLUMNS`, every answer, and counts with one row per image."""

    parser: Parser
    scores: dict[str, float]
    totals: dict[str, int]
    details: tuple[Answered, ...]
    counts: Counts

    @property
    def unclear(self) -> int:
        """How many answers said neither yes nor no."""
        return self.totals["unclear"]


def _score(kind: str, sums: Sums, prefix: str = "") -> Floats:
    column = {name: sums[prefix + name] for name in COLUMNS}
    if kind == "accuracy":
        return ratio(column["right"], column["questions"])
    if kind == "precision":
        return ratio(column["true_yes"], column["said_yes"])
    if kind == "recall":
        return ratio(column["true_yes"], column["true_yes"] + column["missed_yes"])
    if kind == "f1":
        return ratio(2 * column["true_yes"], 2 * column["true_yes"] + column["false_yes"] + column["missed_yes"])
    return ratio(column[{"yes_ratio": "said_yes", "unclear": "unclear"}[kind]], column["questions"])


_KINDS: tuple[tuple[str, str, bool | None], ...] = (
    ("accuracy", "Accuracy", True),
    ("precision", "Precision", True),
    ("recall", "Recall", True),
    ("f1", "F1", True),
    ("yes_ratio", "Yes", None),
    ("unclear", "Unclear", False),
)


def pope_metrics(prefix: str = "", label: str = "") -> tuple[Metric, ...]:
    """The metrics of one split; `prefix` is put before the column and metric names, `label` before the headings."""
    return tuple(
        Metric(prefix + kind, label + heading, lambda sums, kind=kind: _score(kind, sums, prefix), better)  # type: ignore[misc]
        for kind, heading, better in _KINDS
    )


POPE_METRICS = pope_metrics()


def pope_mean(results: Mapping[str, PopeResult]) -> tuple[Counts, tuple[Metric, ...]]:
    """Counts over several splits with one row per image, and the metrics of each split and of their plain mean.

    The splits have to ask about the same objects that are there, as the published ones do: the older random split of
    2910 questions does not belong to the popular and adversarial ones.
    """
    if not results:
        raise InputError("no split to average")
    present = {
        split: {(a.question.image, a.question.text) for a in result.details if a.question.label == "yes"}
        for split, result in results.items()
    }
    first = next(iter(results))
    other = [split for split in results if present[split] != present[first]]
    if other:
        sizes = ", ".join(f"{split} {len(result.details)}" for split, result in results.items())
        raise InputError(
            f"the splits {first} and {listed(other)} do not ask about the same present objects (questions: {sizes}); "
            "use the files of one release"
        )
    ids = results[first].counts.ids
    tables = [result.counts.ordered(ids).values for result in results.values()]
    columns = tuple(f"{split}/{column}" for split in results for column in COLUMNS)
    prefixes = [f"{split}/" for split in results]
    means = tuple(
        Metric(kind, heading, lambda s, kind=kind: np.mean([_score(kind, s, p) for p in prefixes], axis=0), better)  # type: ignore[misc]
        for kind, heading, better in _KINDS
    )
    single = tuple(metric for split in results for metric in pope_metrics(f"{split}/", f"{split} "))
    return Counts(ids, columns, np.concatenate(tables, axis=1)), means + single


def pope(
    questions: Sequence[Question], answers: Mapping[int, str] | Sequence[str], parser: Parser = "robust"
) -> PopeResult:
    """Score answers, given by question id or in the order of the questions."""
    texts = _aligned(questions, answers)
    details = tuple(Answered(q, text, parse_answer(text, parser)) for q, text in zip(questions, texts, strict=True))
    rows: dict[str, Counter[str]] = {}
    for answered in details:
        row, present, yes = (
            rows.setdefault(answered.question.image, Counter()),
            answered.question.label == "yes",
            False,
        )
        yes = answered.reply == "yes"
        row.update({
            "questions": 1, "right": answered.right, "true_yes": present and yes, "false_yes": not present and yes,
            "missed_yes": present and not yes, "said_yes": yes, "unclear": answered.reply == "unclear",
        })  # fmt: skip
    values = np.asarray([[row[name] for name in COLUMNS] for row in rows.values()], dtype=np.float64)
    counts = Counts(tuple(rows), COLUMNS, values)
    totals = {name: int(value) for name, value in counts.total().items()}
    return PopeResult(parser, scores(counts, POPE_METRICS), totals, details, counts)


def _aligned(questions: Sequence[Question], answers: Mapping[int, str] | Sequence[str]) -> list[str]:
    if not questions:
        raise InputError("no question to score")
    if isinstance(answers, Mapping):
        asked = {q.question_id for q in questions}
        missing, extra = sorted(asked - set(answers)), sorted(set(answers) - asked)
        if missing or extra:
            raise InputError(
                f"answers do not match the questions: {len(missing)} without an answer ({listed(missing) or 'none'}), "
                f"{len(extra)} answers to no question ({listed(extra) or 'none'})"
            )
        texts = [answers[q.question_id] for q in questions]
    else:
        texts = list(answers)
        if len(texts) != len(questions):
            raise InputError(f"{len(texts)} answers were given for {len(questions)} questions")
    odd = [text for text in texts if not isinstance(text, str)]
    if odd:
        raise InputError(f"answers have to be text, not {listed(map(repr, odd), 3)}")
    return texts


_QUOTED = re.compile(r'"[^"]*(?:"|$)|“[^”]*(?:”|$)')
_STATED = re.compile(r"\banswer\b(?:\s+is|\s+would\s+be)?\s*[:,]?\s*(yes|no)\b")
_BOTH = re.compile(r"^\W*yes\s*(?:/|or)\s*no\b")
_YES_WORDS = frozenset({"yes", "yeah", "yep", "yup", "affirmative"})
_NO_WORDS = frozenset({"no", "nope", "nah", "negative", "incorrect", "false"})
_UNSURE = re.compile(
    r"(?:\b(?:not|cannot|difficult|hard|impossible|unable)\b|n't\b)[^.]{0,30}"
    r"\b(?:possible|sure|certain|clear|determine|tell|know|confirm)\b|"
    r"\b(?:unclear|unsure|uncertain|unknown|maybe|perhaps|possibly)\b"
)
_DENIAL = re.compile(r"\b(?:no|not|none|nothing|never|neither|nor|without|cannot|absent|lacks?)\b|n't\b")
_CLAIM = re.compile(
    r"\b(?:yes|sure|certainly|definitely|absolutely|indeed|correct|true)\b|\bthere(?: is| are|'s|'re)\b|"
    r"\bi (?:can |do )?see\b|\bcan be seen\b|"
    r"\b(?:image|picture|photo|scene) (?:shows|contains|features|depicts|includes|has|does)\b|"
    r"\b(?:is|are) (?:present|visible|shown|seen|depicted|in the (?:image|picture|photo|scene))\b"
)


def parse_answer(text: str, parser: Parser = "robust") -> Reply:
    """What an answer says."""
    if parser == "official":
        words = text.split(".")[0].replace(",", "").split(" ")
        return "no" if {"No", "not", "no"} & set(words) else "yes"
    if parser != "robust":
        raise InputError(f"unknown parser {parser!r}; choose {listed(PARSERS)}")
    plain = _QUOTED.sub(" ", text.lower().replace("\u2019", "'")).replace("no doubt", " ")
    words = re.findall(r"[a-z']+", plain)
    if not words or _BOTH.match(plain):
        return "unclear"
    if words[0] in _YES_WORDS or words[0] in _NO_WORDS:
        return "yes" if words[0] in _YES_WORDS else "no"
    if stated := _STATED.search(plain):
        return cast(Reply, stated[1])
    for sentence in re.split(r"[.!?\n]+", plain):
        if _UNSURE.search(sentence):
            return "unclear"
        if _DENIAL.search(sentence):
            return "no"
        if _CLAIM.search(sentence):
            return "yes"
    return "unclear"


def read_questions(path: PathLike) -> list[Question]:
    """Questions of a file in the published form: JSON lines of question_id, image, text and label."""
    questions = []
    for number, row in enumerate(read_json_rows(path), start=1):
        fields = ("question_id", "image", "text", "label")
        missing = [name for name in fields if not isinstance(row, dict) or name not in row]
        if missing:
            raise InputError(f"{path}: entry {number} lacks {listed(missing)}; each needs {listed(fields)}")
        label = str(row["label"]).strip().lower()
        if label not in ("yes", "no"):
            raise InputError(f"{path}: entry {number} has the label {row['label']!r}; allowed are yes and no")
        try:
            question_id = int(row["question_id"])
        except (TypeError, ValueError) as error:
            raise InputError(f"{path}: entry {number} has question_id {row['question_id']!r}, no number") from error
        questions.append(Question(question_id, str(row["image"]), str(row["text"]), cast(Label, label)))
    twice = [i for i, n in Counter(q.question_id for q in questions).items() if n > 1]
    if twice:
        raise InputError(f"{path}: question ids occur several times: {listed(twice)}")
    if not questions:
        raise InputError(f"{path} has no question")
    return questions


def write_questions(path: PathLike, questions: Sequence[Question]) -> None:
    """Write questions in the published form; an existing file is refused."""
    with Path(path).open("x", encoding="utf-8") as file:
        file.writelines(json.dumps(asdict(question)) + "\n" for question in questions)
