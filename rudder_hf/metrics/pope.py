"""POPE: yes/no questions about objects that are and are not in an image (Li et al., 2023).

```python
questions = read_questions("coco_pope_random.json")
counts = pope(questions, ["Yes, there is a snowboard.", "No", ...])  # in the order of the questions
scores(counts, POPE_METRICS)["accuracy"], counts.total()["unclear"]
```

"Yes" is the positive class. `parse_answer` has three parsers. `official` is that of the published evaluation, to the
letter, and `opera` the one that OPERA and VISTA publish with their code, so that scores are comparable with theirs
(whatever does not say no counts as yes, even an empty answer). `robust`, the default, understands whole sentences, and
calls an answer that says neither *unclear*: it is counted wrong and reported.

- `official`: "No", "no" or "not" among the words of the first sentence;
- `opera`: these, "NO" or a word that ends in "n't" among all words of the answer.

`build_questions` makes questions from annotations: three objects of an image, each followed by one not in it.

- `random`: any object of the annotations' categories;
- `popular`: the object that is in most images;
- `adversarial`: the object that is most often in an image together with the one just asked for.

Within an image no object is asked for twice. Ties go to the object that the annotations name first. The same
annotations and seed always give the same questions, and each image its own whatever other images are asked about.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np

from ..runtime.errors import InputError, listed
from ..scenes.captions import question as question_text
from .coco import CocoData, PathLike, image_id, read_json_rows
from .statistics import Counts, Floats, Metric, Sums, check_same_samples, ratio

Label = Literal["yes", "no"]
Reply = Literal["yes", "no", "unclear"]
Parser = Literal["robust", "official", "opera"]
PARSERS: tuple[Parser, ...] = ("robust", "official", "opera")
Strategy = Literal["random", "popular", "adversarial"]
STRATEGIES: tuple[Strategy, ...] = ("random", "popular", "adversarial")
_PER_IMAGE = 3  # objects that are there, each followed by one that is not
POPE_COLUMNS = ("questions", "right", "true_yes", "false_yes", "missed_yes", "said_yes", "unclear")


@dataclass(frozen=True)
class Question:
    """A question of a published file; `image` is a file name."""

    question_id: int
    image: str
    text: str
    label: Label


_SCORES: dict[str, Callable[[Sums], Floats]] = {
    "accuracy": lambda sums: ratio(sums["right"], sums["questions"]),
    "precision": lambda sums: ratio(sums["true_yes"], sums["said_yes"]),
    "recall": lambda sums: ratio(sums["true_yes"], sums["true_yes"] + sums["missed_yes"]),
    "f1": lambda sums: ratio(2 * sums["true_yes"], 2 * sums["true_yes"] + sums["false_yes"] + sums["missed_yes"]),
    "yes_ratio": lambda sums: ratio(sums["said_yes"], sums["questions"]),
    "unclear": lambda sums: ratio(sums["unclear"], sums["questions"]),
}
_LABELS = {"f1": "F1", "yes_ratio": "Yes"}
_BETTER: dict[str, bool | None] = {"yes_ratio": None, "unclear": False}


def _metric(name: str, splits: Sequence[str] = (), prefix: str = "") -> Metric:
    """Return a score, or its plain mean over splits, whose columns begin with the split's name."""

    def compute(sums: Sums) -> Floats:
        if not splits:
            return _SCORES[name](sums)
        own = [{column: sums[f"{split}/{column}"] for column in POPE_COLUMNS} for split in splits]
        return cast(Floats, np.mean([_SCORES[name](part) for part in own], axis=0))

    label = f"{prefix} {_LABELS.get(name, name.capitalize())}".strip()
    return Metric(f"{prefix}/{name}" if prefix else name, label, compute, _BETTER.get(name, True))


POPE_METRICS = tuple(_metric(name) for name in _SCORES)


def pope_mean(results: Mapping[str, Counts]) -> tuple[Counts, tuple[Metric, ...]]:
    """Return counts over several splits with one row per image, and the metrics of each split and of their plain mean.

    The splits must ask about the same images, as those of one release do.
    """
    first = next(iter(results.values()))
    for counts in results.values():
        check_same_samples(first, counts)
    tables = [counts.ordered(first.ids).values for counts in results.values()]
    columns = tuple(f"{split}/{column}" for split in results for column in POPE_COLUMNS)
    means = tuple(_metric(name, list(results)) for name in _SCORES)
    single = tuple(_metric(name, [split], split) for split in results for name in _SCORES)
    return Counts(first.ids, columns, np.concatenate(tables, axis=1)), means + single


def pope(questions: Sequence[Question], answers: Sequence[str], parser: Parser = "robust") -> Counts:
    """Count what answers in the order of the questions say, in one row for each image."""
    check_answers(questions, answers)
    rows: dict[str, Counter[str]] = {}
    for question, text in zip(questions, answers, strict=True):
        reply, present = parse_answer(text, parser), question.label == "yes"
        yes = reply == "yes"
        rows.setdefault(question.image, Counter()).update({
            "questions": 1, "right": reply == question.label, "true_yes": present and yes,
            "false_yes": not present and yes, "missed_yes": present and not yes, "said_yes": yes,
            "unclear": reply == "unclear",
        })  # fmt: skip
    values = np.asarray([[row[name] for name in POPE_COLUMNS] for row in rows.values()], dtype=np.float64)
    return Counts(tuple(rows), POPE_COLUMNS, values)


def check_answers(questions: Sequence[object], answers: Sequence[str]) -> None:
    """Check that there are questions, and one answer to each."""
    if not questions:
        raise InputError("no question to score")
    if len(answers) != len(questions):
        raise InputError(f"{len(answers)} answers were given for {len(questions)} questions")


_QUOTED = re.compile(r'"[^"]*(?:"|$)|“[^”]*(?:”|$)')
# Words of denial that confirm what is said.
_NO_DOUBT = re.compile(r"\b(?:no|without(?: a| any)?(?: shadow of a)?) (?:doubt|question)\b")
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
    """Return what an answer says."""
    if parser == "official":
        words = text.split(".")[0].replace(",", "").split(" ")
        return "no" if {"No", "not", "no"} & set(words) else "yes"
    if parser == "opera":
        words = text.replace(".", "").replace(",", "").split(" ")
        return "no" if {"No", "not", "no", "NO"} & set(words) or any(w.endswith("n't") for w in words) else "yes"
    if parser != "robust":
        raise InputError(f"unknown parser {parser!r}; choose {listed(PARSERS)}")
    plain = _NO_DOUBT.sub(" ", _QUOTED.sub(" ", text.lower().replace("\u2019", "'")))
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
    """Read questions in the published form: JSON lines of question_id, image, text and label."""
    questions = []
    for number, row in enumerate(read_json_rows(path, ("question_id", "image", "text", "label")), start=1):
        where = f"{path}: entry {number}"
        label, question_id = read_label(row["label"], where), image_id(row["question_id"], f"{where}.question_id")
        questions.append(Question(question_id, str(row["image"]), str(row["text"]), label))
    twice = [i for i, n in Counter(q.question_id for q in questions).items() if n > 1]
    if twice:
        raise InputError(f"{path}: question ids occur several times: {listed(twice)}")
    if not questions:
        raise InputError(f"{path} has no question")
    return questions


def read_label(value: object, where: str) -> Label:
    """Return "yes" or "no", in whatever case it is written; `where` says where it stands, for errors."""
    label = str(value).strip().lower()
    if label not in ("yes", "no"):
        raise InputError(f"{where} has the label {value!r}; allowed are yes and no")
    return cast(Label, label)


def build_questions(data: CocoData, strategy: Strategy, images: Collection[int], seed: int = 0) -> list[Question]:
    """Return balanced questions about images, three about objects that are there and three about absent ones.

    Args:
        data: Annotations; objects are counted, and drawn, over all of its images.
        strategy: How the absent objects are chosen.
        images: Ids of images, from `askable_images`.
        seed: Of the drawing of objects, for `random`.
    """
    if unfit := sorted(set(images) - set(askable_images(data))):
        raise InputError(f"{len(unfit)} images have no annotation or fewer than {_PER_IMAGE} objects: {listed(unfit)}")
    asked = objects_to_ask({image: data.objects[image] for image in data.ids}, data.categories, strategy, seed)
    chosen = (question for question in asked if question[0] in images)
    return [
        Question(number, data.files[image], question_text(name), "yes" if present else "no")
        for number, (image, name, present) in enumerate(chosen, start=1)
    ]


def askable_images(data: CocoData) -> list[int]:
    """Return the images that have a file name and enough kinds of objects that are there and that are not."""
    fitting = [
        i
        for i in data.ids
        if _PER_IMAGE <= len(data.objects[i]) <= len(data.categories) - _PER_IMAGE and data.files[i]
    ]
    if not fitting:
        raise InputError(
            f"no image has a file name, at least {_PER_IMAGE} kinds of objects and {_PER_IMAGE} kinds that are absent"
        )
    return fitting


def objects_to_ask(
    objects: Mapping[int, Sequence[str]], categories: Sequence[str], strategy: str, seed: int = 0
) -> list[tuple[int, str, bool]]:
    """Return what to ask (image, object, whether it is there): an image's first objects, each before an absent one.

    Args:
        objects: What is in each image, by its number. Images with too few or too many objects are left out.
        categories: All objects that there are.
        strategy: How the absent objects are chosen.
        seed: Of the drawing of objects, for `random`.
    """
    if strategy not in STRATEGIES:
        raise InputError(f"unknown POPE strategy {strategy!r}; choose {listed(STRATEGIES)}")
    random = np.random.RandomState(seed)
    popular = [name for name, _ in Counter(name for names in objects.values() for name in names).most_common()]
    together: dict[str, Counter[str]] = {name: Counter() for name in categories}
    for names in objects.values():
        for name in names:
            together[name].update(other for other in names if other != name)
    partners = {name: [*(other for other, _ in found.most_common()), *popular] for name, found in together.items()}
    asked = []
    for image, names in objects.items():
        if not _PER_IMAGE <= len(names) <= len(categories) - _PER_IMAGE:
            continue
        used = set(names)
        for name in names[:_PER_IMAGE]:
            order = partners[name] if strategy == "adversarial" else popular
            if strategy == "random":
                order = [categories[place] for place in random.permutation(len(categories))]
            # Few images have few popular objects.
            absent = next(other for other in (*order, *categories) if other not in used)
            used.add(absent)
            asked += [(image, name, True), (image, absent, False)]
    return asked
