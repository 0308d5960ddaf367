"""MME: scores, and the benchmark's two folder layouts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rudder_hf.metrics.mme import (
    COGNITION,
    PERCEPTION,
    SUBTASKS,
    MmeQuestion,
    mme,
    mme_metrics,
    parse_mme_answer,
    read_mme,
)
from rudder_hf.metrics.statistics import scores
from rudder_hf.runtime.errors import InputError
from tests.support.evaluation_data import PUBLISHED, needs_published


@needs_published
def test_the_parser_is_the_published_one() -> None:
    reference = json.loads((PUBLISHED / "pope" / "yesno_parser_reference.json").read_text())
    for row in reference["edge_cases"] + reference["disagreements"]:
        assert parse_mme_answer(row["answer"]) == row["mme_official"], row["answer"]


def test_parser() -> None:
    for reply, answers in {
        "yes": ("YES", "   yes", "Yes, it is"),
        "no": (" no", "\n\n\nNo.", "Nope", "Not at all"),
        "other": ("", "It is", "The answer is yes", "1. No"),
    }.items():
        assert {parse_mme_answer(answer) for answer in answers} == {reply}


def questions(subtasks: tuple[str, ...] = SUBTASKS, images: int = 2) -> list[MmeQuestion]:
    return [
        MmeQuestion(subtask, Path(f"{image}.jpg"), f"Is it {label}?", label)  # type: ignore[arg-type]
        for subtask in subtasks
        for image in range(images)
        for label in ("yes", "no")
    ]


@settings(deadline=None)
@given(st.lists(st.sampled_from(["yes", "no", "what"]), min_size=12, max_size=12))
def test_scores_equal_a_slow_count(answers: list[str]) -> None:
    subtasks = ("existence", "OCR", "code_reasoning")
    asked = questions(subtasks)
    found = scores(mme(asked, answers), mme_metrics(subtasks))
    total = 0.0
    for number, subtask in enumerate(subtasks):
        right = [a == q.label for a, q in zip(answers, asked, strict=True)][4 * number : 4 * number + 4]
        points = 100 * sum(right) / 4 + 100 * ((right[0] and right[1]) + (right[2] and right[3])) / 2
        assert found[subtask] == pytest.approx(points)
        total += points
    assert found["total"] == pytest.approx(total)
    assert found["perception"] + found["cognition"] == pytest.approx(total)


def test_answers_and_pairs_are_checked() -> None:
    with pytest.raises(InputError, match="1 answers were given for 56 questions"):
        mme(questions(), ["yes"])
    with pytest.raises(InputError, match=r"existence/0.jpg has 1 neighbouring questions"):
        mme(questions()[::2], ["yes"] * 28)


def write_benchmark(root: Path, subtasks: tuple[str, ...] = SUBTASKS) -> None:
    for subtask in subtasks:
        nested = subtask in ("posters", "artwork")
        images = root / subtask / "images" if nested else root / subtask
        texts = root / subtask / "questions_answers_YN" if nested else root / subtask
        images.mkdir(parents=True)
        texts.mkdir(parents=True, exist_ok=True)
        for stem, suffix in (("b", ".jpg"), ("a", ".png")):
            (images / f"{stem}{suffix}").touch()
            (texts / f"{stem}.txt").write_text(f"Is this {stem}?\tYes\nIs this c?\tNo\n")


def test_both_folder_layouts(tmp_path: Path) -> None:
    write_benchmark(tmp_path)
    asked = read_mme(tmp_path)
    assert len(asked) == 14 * 4
    assert tuple(dict.fromkeys(q.subtask for q in asked)) == PERCEPTION + COGNITION
    assert all(q.image.is_file() for q in asked)
    assert [q.image.name for q in asked[:4]] == ["a.png", "a.png", "b.jpg", "b.jpg"]
    assert {q.sample_id for q in asked if q.subtask == "posters"} == {"posters/a.png", "posters/b.jpg"}
    found = scores(mme(asked, [q.label for q in asked]), mme_metrics())
    assert (found["perception"], found["cognition"], found["total"]) == (2000, 800, 2800)


def test_subtasks_that_are_there_are_read_and_faults_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not MME's folder, which has one folder per subtask: existence, count"):
        read_mme(tmp_path / "none")
    write_benchmark(tmp_path, ("existence", "posters"))
    assert {question.subtask for question in read_mme(tmp_path)} == {"existence", "posters"}
    (tmp_path / "existence" / "b.jpg").unlink()
    with pytest.raises(InputError, match=r"no image for b.txt"):
        read_mme(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("Is this a?\tYes\n", "has 1 questions"),
        ("Is this a? Yes\nIs this c?\tNo\n", "is not a question, a tab"),
        ("Is this a?\tPerhaps\nIs this c?\tNo\n", "label 'Perhaps'"),
    ],
)
def test_question_files_with_faults(tmp_path: Path, content: str, message: str) -> None:
    write_benchmark(tmp_path, ("existence",))
    (tmp_path / "existence" / "a.txt").write_text(content)
    with pytest.raises(InputError, match=message):
        read_mme(tmp_path)
