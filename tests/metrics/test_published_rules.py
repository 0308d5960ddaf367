"""Counts of a corpus of our own, worked out by hand from the rules of the published CHAIR, POPE and MME programs.

It is here in every checkout, unlike the published captions and the published programs' counts of them.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rudder_hf.metrics.chair import chair, ground_truth
from rudder_hf.metrics.coco import CocoData
from rudder_hf.metrics.mme import MmeQuestion, mme
from rudder_hf.metrics.pope import Question, pope
from tests.support.evaluation_data import skip_without_wordnet


class Phrase(NamedTuple):
    """Words of a caption, the objects that the two published programs find in them, and how many words they count."""

    text: str
    pattern: list[str]
    wordnet: list[str]
    words: int


PHRASES = [
    Phrase("a puppy", ["dog"], ["dog"], 2),
    Phrase("a hot dog", ["hot dog"], ["hot dog"], 2),  # double words are one
    Phrase("hot-dog stands", [], [], 2),  # a hyphen is no blank
    Phrase("two buses", ["bus"], ["bus"], 2),
    Phrase("a bus", [], ["bus"], 2),  # whose singular by rule is "bu"
    Phrase("some ties", [], ["tie"], 2),  # by rule "ty"
    Phrase("a wine glass", ["wine glass"], ["wine glass"], 2),
    Phrase("train tracks", [], [], 1),  # a double word that swallows the train
    Phrase("home plate", [], [], 1),
    Phrase("a baby bear", ["bear"], ["bear"], 2),
    Phrase("a passenger train", ["train"], ["train"], 2),
    Phrase("the dog's bowl", ["dog", "bowl"], ["dog", "bowl"], 4),
    Phrase("a cheesecake", [], [], 2),  # has a blank before it in the published table
    Phrase("an iPhone", [], [], 2),  # is written so there, and captions are lower-cased
    Phrase("a desk", ["dining table"], ["dining table"], 2),
    Phrase("knives", ["knife"], ["knife"], 1),
    Phrase("a cell phone", ["cell phone"], ["cell phone"], 2),
    Phrase("green grass", [], [], 2),
    Phrase("the seat", ["chair"], ["chair"], 2),
    Phrase("a toilet", ["toilet"], ["toilet"], 2),
]
CATEGORIES = sorted({name for phrase in PHRASES for name in (*phrase.pattern, *phrase.wordnet)})


def found_in(phrases: list[Phrase], lineage: str) -> list[str]:
    """Beside a toilet every seat is the toilet's."""
    hidden = {"the seat"} if any(phrase.text == "a toilet" for phrase in phrases) else set()
    return [name for phrase in phrases if phrase.text not in hidden for name in getattr(phrase, lineage)]


@pytest.mark.parametrize("lineage", ["pattern", "wordnet"])
def test_chair_counts_as_its_published_rules_do(lineage: Any) -> None:
    skip_without_wordnet(lineage)
    draw = random.Random(0)
    described = [[draw.choice(PHRASES) for _ in range(draw.randint(0, 6))] for _ in range(200)]
    references = [[draw.choice(PHRASES) for _ in range(2)] for _ in described]
    instances = [draw.sample(CATEGORIES, 3) for _ in described]
    captions = [(n, "There: " + ", and ".join(p.text for p in phrases) + ".") for n, phrases in enumerate(described)]
    data = CocoData(
        files={n: f"{n}.jpg" for n, _ in captions},
        objects={n: tuple(instances[n]) for n, _ in captions},
        references={n: (f"{references[n][0].text} and {references[n][1].text}",) for n, _ in captions},
        categories=tuple(CATEGORIES),
    )
    result = chair(captions, ground_truth(data, lineage), lineage)
    truth = [set(instances[n]) | set(found_in(references[n], lineage)) for n, _ in captions]
    named = [found_in(phrases, lineage) for phrases in described]
    wrong = [[name for name in names if name not in there] for names, there in zip(named, truth, strict=True)]
    assert result.totals == {
        "captions": 200,
        "hallucinated_captions": sum(map(bool, wrong)),
        "mentions": sum(map(len, named)),
        "hallucinated_mentions": sum(map(len, wrong)),
        "objects": sum(len(set(names)) for names in named),
        "hallucinated_objects": sum(len(set(names)) for names in wrong),
        "truth": sum(map(len, truth)),
        "found": sum(len(set(names) & there) for names, there in zip(named, truth, strict=True)),
        # "There", ":", the phrases, ", and" between them, "."
        "words": sum(3 + sum(p.words for p in phrases) + 2 * max(len(phrases) - 1, 0) for phrases in described),
    }
    assert 50 < result.totals["hallucinated_captions"] < 200
    # The original program's formulas.
    totals = result.totals
    assert result.scores["chair_s"] == totals["hallucinated_captions"] / 200
    assert result.scores["chair_i"] == totals["hallucinated_mentions"] / totals["mentions"]
    assert result.scores["recall"] == totals["found"] / totals["truth"]


ANSWERS = [  # label, answer, and whether the official and OPERA's program take it for yes
    ("yes", "Yes", True, True),
    ("yes", "Yes, there is a dog.", True, True),
    ("yes", "No", False, False),
    ("yes", "Yes, but it is not a dog.", False, False),
    ("yes", "A dog. There is no cat.", True, False),  # the official one reads the first sentence alone
    ("yes", "", True, True),
    ("no", "No.", False, False),
    ("no", "There is no dog", False, False),
    ("no", "NO", True, False),
    ("no", "There isn't a dog.", True, False),
    ("no", "Nope", True, True),
    ("no", "I do not see one.", False, False),
]


@pytest.mark.parametrize(("parser", "hits", "alarms"), [("official", 4, 3), ("opera", 3, 1)])
def test_pope_counts_as_its_published_rules_do(parser: Any, hits: int, alarms: int) -> None:
    """Six questions about what is there and six about what is not: `hits` yes to the first, `alarms` to the others."""
    place = 2 if parser == "official" else 3
    assert sum(row[place] for row in ANSWERS[:6]) == hits
    assert sum(row[place] for row in ANSWERS[6:]) == alarms
    questions = [Question(n, f"{n // 6}.jpg", f"{n}?", row[0]) for n, row in enumerate(ANSWERS)]  # type: ignore[arg-type]
    found = pope(questions, [row[1] for row in ANSWERS], parser)
    precision, recall = hits / (hits + alarms), hits / 6
    assert found.unclear == 0
    assert found.scores == pytest.approx({
        "accuracy": (hits + 6 - alarms) / 12,
        "precision": precision,
        "recall": recall,
        "f1": 2 * precision * recall / (precision + recall),
        "yes_ratio": (hits + alarms) / 12,
        "unclear": 0.0,
    })  # fmt: skip


def test_mme_counts_as_its_published_rules_do() -> None:
    """Two questions about each image, the first with yes as its answer: the first four letters decide."""
    replies = {
        "existence": [("Yes", "No"), ("yes, it is", "No, it is not"), ("Yes", "Yes"), ("It is", "Nothing")],
        "OCR": [("Yes.", "no"), ("No", "Yes"), ("Of course yes", "Not at all")],
        "code_reasoning": [("YES", "NO"), ("1. Yes", "I say no")],
    }
    questions = [
        MmeQuestion(subtask, Path(f"{n}.jpg"), f"Is it {label}?", label)  # type: ignore[arg-type]
        for subtask, pairs in replies.items()
        for n in range(len(pairs))
        for label in ("yes", "no")
    ]
    found = mme(questions, [answer for pairs in replies.values() for pair in pairs for answer in pair])
    # Right answers of all, images with both right of all.
    existence, ocr, code = 100 * 6 / 8 + 100 * 2 / 4, 100 * 3 / 6 + 100 * 1 / 3, 100 * 2 / 4 + 100 * 1 / 2
    expected = {"existence": existence, "OCR": ocr, "code_reasoning": code, "perception": existence + ocr}
    assert found.scores == pytest.approx({**expected, "cognition": code, "total": existence + ocr + code})
    assert found.other == 4
