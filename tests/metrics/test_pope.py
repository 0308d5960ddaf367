"""POPE: parsers, scores, question files, and questions from annotations."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rudder_hf.metrics.coco import CocoData
from rudder_hf.metrics.pope import (
    POPE_METRICS,
    STRATEGIES,
    Question,
    askable_images,
    build_questions,
    parse_answer,
    pope,
    pope_mean,
    read_questions,
)
from rudder_hf.metrics.statistics import compare, scores
from rudder_hf.runtime.errors import InputError
from rudder_hf.scenes.captions import question as question_text
from tests.support.evaluation_data import PUBLISHED, needs_published


@needs_published
@pytest.mark.parametrize(("parser", "name"), [("official", "pope_official"), ("opera", "vista_pope")])
def test_the_parsers_are_the_published_ones(parser: Any, name: str) -> None:
    reference = json.loads((PUBLISHED / "pope" / "yesno_parser_reference.json").read_text())
    for row in reference["edge_cases"] + reference["disagreements"]:
        assert parse_answer(row["answer"], parser) == row[name], row["answer"]


@pytest.mark.parametrize(
    ("answer", "official", "opera", "robust"),
    [
        ("Yes", "yes", "yes", "yes"),
        ("NO", "yes", "no", "no"),
        ("A dog. There is no cat.", "yes", "no", "no"),  # the official one reads the first sentence alone
        ("no\n", "yes", "yes", "no"),
        ("", "yes", "yes", "unclear"),
        ("There isn't a dog.", "yes", "no", "no"),
        ("There isn\u2019t a dog.", "yes", "yes", "no"),
        ("I cannot see a dog.", "yes", "yes", "no"),
        ("Absolutely none.", "yes", "yes", "no"),
        ("Definitely not.", "no", "no", "no"),
        ("Definitely!", "yes", "yes", "yes"),
        ("Yes, there is a dog.", "yes", "yes", "yes"),
        ("Yes, but not a cat.", "no", "no", "yes"),
        ("No doubt, there is a dog.", "no", "no", "yes"),
        ("Without a doubt, yes.", "yes", "yes", "yes"),
        ("Without a doubt, no.", "no", "no", "no"),
        ("There is without any doubt a dog.", "yes", "yes", "yes"),
        ("The street is without a dog.", "yes", "yes", "no"),
        ("There is a dog in the image.", "yes", "yes", "yes"),
        ("A dog is visible.", "yes", "yes", "yes"),
        ("**Yes**", "yes", "yes", "yes"),
        ("Answer: No", "no", "no", "no"),
        ("The answer is yes.", "yes", "yes", "yes"),
        ("Yes or no?", "yes", "yes", "unclear"),
        ("It is not possible to determine.", "no", "no", "unclear"),
        ("I don't know.", "yes", "no", "unclear"),
        ("Maybe.", "yes", "yes", "unclear"),
        ('The image shows a sign that says "no smoking".', "yes", "yes", "yes"),
        ("The image shows nothing. No dog.", "yes", "no", "no"),
        ("...", "yes", "yes", "unclear"),
    ],
)
def test_parsers(answer: str, official: str, opera: str, robust: str) -> None:
    assert parse_answer(answer, "official") == official
    assert parse_answer(answer, "opera") == opera
    assert parse_answer(answer) == robust


def ask(labels: str, image: str = "a.jpg") -> list[Question]:
    return [
        Question(n + 1, image, f"Is there a thing {n} in the image?", "yes" if label == "y" else "no")
        for n, label in enumerate(labels)
    ]


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.sampled_from(["Yes", "No", ""]), st.integers(0, 2)), min_size=1))
def test_scores_equal_a_slow_count(cases: list[tuple[bool, str, int]]) -> None:
    questions = [
        Question(n, f"{image}.jpg", str(n), "yes" if there else "no") for n, (there, _, image) in enumerate(cases)
    ]
    result = pope(questions, [answer for _, answer, _ in cases])
    hits = sum(there and answer == "Yes" for there, answer, _ in cases)
    said = sum(answer == "Yes" for _, answer, _ in cases)
    there = sum(there for there, _, _ in cases)
    right = hits + sum(not there and answer == "No" for there, answer, _ in cases)
    precision, recall = hits / said if said else 0.0, hits / there if there else 0.0
    expected = {
        "accuracy": right / len(cases),
        "precision": precision,
        "recall": recall,
        "f1": 2 * precision * recall / (precision + recall) if hits else 0.0,
        "yes_ratio": said / len(cases),
        "unclear": sum(answer == "" for _, answer, _ in cases) / len(cases),
    }
    assert scores(result, POPE_METRICS) == pytest.approx(expected)
    assert result.ids == tuple(dict.fromkeys(question.image for question in questions))


def test_answers_that_do_not_match_are_refused() -> None:
    with pytest.raises(InputError, match="1 answers were given for 2 questions"):
        pope(ask("yn"), ["Yes"])
    with pytest.raises(InputError, match="no question"):
        pope([], [])
    with pytest.raises(InputError, match="robust, official, opera"):
        pope(ask("y"), ["Yes"], "strict")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"the same samples: 2 are in one only \(a.jpg, b.jpg\)"):
        pope_mean({"random": pope(ask("y"), ["Yes"]), "popular": pope(ask("y", "b.jpg"), ["Yes"])})


def test_the_mean_over_splits_is_plain_and_can_be_compared() -> None:
    questions = [*ask("yn"), Question(3, "b.jpg", "Is there a cat in the image?", "yes")]
    good, bad = pope(questions, ["Yes", "No", "Yes"]), pope(questions, ["Yes", "Yes", "No"])
    counts, metrics = pope_mean({"random": good, "popular": bad})
    found = scores(counts, metrics)
    assert found["accuracy"] == pytest.approx((1 + 1 / 3) / 2)
    assert found["f1"] == pytest.approx(sum(scores(each, POPE_METRICS)["f1"] for each in (good, bad)) / 2)
    assert (found["random/accuracy"], found["popular/accuracy"]) == (1, pytest.approx(1 / 3))
    other, _ = pope_mean({"random": bad, "popular": bad})
    assert compare(counts, other, metrics, samples=50)["accuracy"].value == pytest.approx(-1 / 3)
    assert compare(good, bad, POPE_METRICS, samples=50)["accuracy"].value == pytest.approx(-2 / 3)


def test_splits_may_have_their_images_in_different_orders() -> None:
    """Each image is one row of the counts: the bootstrap draws it with all its splits."""
    first, second = ask("yn", "a.jpg"), ask("yn", "b.jpg")
    one = pope([*first, *second], ["Yes", "No", "No", "Yes"])  # right about a.jpg, wrong about b.jpg
    other = pope([*second, *first], ["No", "Yes", "Yes", "No"])
    counts, _ = pope_mean({"random": one, "popular": other})
    assert counts.ids == ("a.jpg", "b.jpg")
    for split in ("random", "popular"):
        assert counts.only([f"{split}/right"]).values.tolist() == [[2.0], [0.0]]


@needs_published
def test_published_questions() -> None:
    results = {}
    for split in STRATEGIES:
        questions = read_questions(PUBLISHED / "pope" / f"coco_pope_{split}.json")
        assert Counter(q.label for q in questions) == {"yes": 1500, "no": 1500}
        results[split] = pope(questions, [q.label for q in questions], "official")
    counts, metrics = pope_mean(results)
    assert scores(counts, metrics)["accuracy"] == 1
    assert len(counts.ids) == 500


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": "maybe"}, "label 'maybe'; allowed are yes and no"),
        ({"question_id": "x"}, "question_id is 'x'"),
        ({"text": ...}, "lacks text"),
        ({}, "several times: 1"),
        (None, "no question"),
    ],
)
def test_question_files_with_faults(tmp_path: Path, change: dict[str, Any] | None, message: str) -> None:
    row = {"question_id": 1, "image": "a.jpg", "text": "Is there a dog in the image?", "label": "yes"}
    rows = [] if change is None else [row, {k: v for k, v in {**row, **change}.items() if v is not ...}]
    (tmp_path / "q.json").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(InputError, match=message):
        read_questions(tmp_path / "q.json")


CATEGORIES = ("dog", "cat", "bench", "car", "oven", "person", "apple", "kite")


def annotations(objects: dict[int, tuple[str, ...]]) -> CocoData:
    return CocoData({i: f"{i}.jpg" for i in objects}, objects, dict.fromkeys(objects, ()), CATEGORIES)


OBJECTS = st.lists(st.sampled_from(CATEGORIES), max_size=7, unique=True).map(tuple)


@settings(deadline=None)
@given(st.lists(OBJECTS, min_size=1, max_size=10), st.sampled_from(STRATEGIES), st.integers(0, 5))
def test_built_questions_are_balanced_true_and_never_repeated(lists: Any, strategy: Any, seed: int) -> None:
    data = annotations(dict(enumerate(lists)))
    fitting = [i for i in data.ids if 3 <= len(data.objects[i]) <= 5]
    if not fitting:
        with pytest.raises(InputError, match="no image has"):
            askable_images(data)
        return
    assert askable_images(data) == fitting
    questions = build_questions(data, strategy, fitting, seed)
    assert [q.question_id for q in questions] == list(range(1, 6 * len(fitting) + 1))
    assert questions == build_questions(data, strategy, fitting[::-1], seed)
    for number, image in enumerate(fitting):
        asked = questions[6 * number : 6 * number + 6]
        assert {q.image for q in asked} == {data.files[image]}
        assert [q.label for q in asked] == ["yes", "no"] * 3
        assert [q.text for q in asked[::2]] == [question_text(name) for name in data.objects[image][:3]]
        present = {question_text(name) for name in data.objects[image]}
        assert not present & {q.text for q in asked[1::2]}
        assert len({q.text for q in asked}) == 6
        alone = build_questions(data, strategy, [image], seed)
        assert [(q.text, q.label) for q in alone] == [(q.text, q.label) for q in asked]


def test_popular_and_adversarial_objects() -> None:
    data = annotations({
        1: ("dog", "cat", "bench"), 2: ("car", "person", "oven"), 3: ("car", "person"), 4: ("car",),
        5: ("dog", "kite"), 6: ("dog", "kite"), 7: ("cat", "apple"),
    })  # fmt: skip

    def absent(strategy: Any) -> list[str]:
        return [q.text for q in build_questions(data, strategy, [1]) if q.label == "no"]

    assert absent("popular") == [question_text(name) for name in ("car", "person", "kite")]
    assert absent("adversarial") == [question_text(name) for name in ("kite", "apple", "car")]


def test_images_to_ask_about_are_checked() -> None:
    data = annotations({1: ("dog", "cat", "bench"), 2: ("dog",)})
    with pytest.raises(InputError, match="1 images have no annotation or fewer than 3 objects: 2"):
        build_questions(data, "random", [1, 2])
    with pytest.raises(InputError, match="random, popular, adversarial"):
        build_questions(data, "hard", [1])  # type: ignore[arg-type]
