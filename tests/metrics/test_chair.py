"""CHAIR and its truncated control: equal to the published programs, to hand-worked cases, and to slow counts."""

from __future__ import annotations

import json
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rudder_hf.metrics.chair import COCO_CATEGORIES, LINEAGES, SYNONYMS, ChairResult, chair, ground_truth, parse
from rudder_hf.metrics.coco import Caption, CocoData, read_captions_file, read_coco
from rudder_hf.metrics.statistics import scores
from rudder_hf.metrics.truncation import CONTROL_METRICS, cut_to_recall
from rudder_hf.runtime.errors import InputError
from rudder_hf.scenes.captions import named_categories
from rudder_hf.scenes.images import split_scenes
from tests.support.evaluation_data import PUBLISHED, needs_published, skip_without_wordnet, wordnet_missing
from tools.train_scenes import coco as scene_files
from tools.train_scenes.drift import STRONG, drifting_caption

CAPTION_SETS = ("opera__llava-1.5__greedy", "opera__instructblip__beam5", "opera__minigpt4__greedy")
COUNTS = {
    "n_caps": "captions",
    "n_hallucinated_caps": "hallucinated_captions",
    "n_mentions": "mentions",
    "n_hallucinated_mentions": "hallucinated_mentions",
    "n_gt": "truth",
    "n_recalled": "found",
    "n_words": "words",
}


def published(name: str, lineage: Any) -> tuple[Any, dict[str, Any]]:
    folder = PUBLISHED / "chair"
    truth = ground_truth(read_coco(folder / f"instances_{lineage}.json"), lineage)
    result = chair(read_captions_file(folder / "captions" / f"{name}.jsonl"), truth, lineage)
    return result, json.loads((folder / "expected.json").read_text())[name][lineage]


@needs_published
@pytest.mark.parametrize("name", CAPTION_SETS)
@pytest.mark.parametrize("lineage", ["pattern", "wordnet"])
def test_equal_to_the_published_programs(name: str, lineage: str) -> None:
    skip_without_wordnet(lineage)
    result, expected = published(name, lineage)
    totals = result.counts.total()
    assert {key: totals[column] for key, column in COUNTS.items()} == {key: expected[key] for key in COUNTS}
    assert result.scores["chair_s"] == expected["CHAIRs"]
    assert result.scores["chair_i"] == expected["CHAIRi"]
    assert result.scores["recall"] == expected["Recall"]
    if lineage == "wordnet":
        assert result.scores["precision"] == pytest.approx(expected["Precision"], abs=1e-15)
        assert result.scores["f1"] == pytest.approx(expected["F1"], abs=1e-15)
        assert result.scores["length"] == pytest.approx(100 * expected["Len"])


@needs_published
@pytest.mark.parametrize("lineage", ["pattern", "wordnet"])
def test_edge_cases_of_the_published_programs(lineage: Any) -> None:
    skip_without_wordnet(lineage)
    for row in json.loads((PUBLISHED / "chair" / "edge_cases.json").read_text())["rows"]:
        parsed, expected = parse(row["caption"], lineage), row[lineage]
        assert [m.word for m in parsed.mentions] == expected["words"], row["caption"]
        assert list(parsed.categories) == expected["nodes"], row["caption"]
        assert len(parsed.tokens) == len(expected["tokens"]), row["caption"]


@needs_published
def test_the_table_of_words_is_the_published_one() -> None:
    lines = (PUBLISHED / "chair" / "synonyms.txt").read_text().splitlines()
    rows = [line.strip().split(", ") for line in lines]
    assert tuple(row[0] for row in rows) == COCO_CATEGORIES
    reachable = {word: row[0] for row in rows for word in row if word == word.strip().lower() and word.count(" ") < 2}
    assert reachable == SYNONYMS


# Captions, and the objects that the programs find in them: the original one, its lineage with WordNet, and ours.
CAPTIONS = [
    ("A hot dog on a plate.", ["hot dog"], ["hot dog"], ["hot dog"]),  # double words are one
    ("hot-dog stand, people\u2014two men", ["person"], ["person"], ["hot dog", "person", "person"]),
    ("The seat of the toilet", ["toilet"], ["toilet"], ["toilet"]),  # no chair
    ("a seat", ["chair"], ["chair"], ["chair"]),
    ("A passenger train and passengers", ["train", "person"], ["train", "person"], ["train", "person"]),
    ("baby bears, adult cubs", ["bear"], ["bear"], ["bear"]),
    ("he wears ties", [], ["tie"], ["tie"]),  # by rule "ty"
    ("a bus and two buses", ["bus"], ["bus", "bus"], ["bus", "bus"]),  # by rule "bu"
    # Written with a capital or a blank too many in the published table.
    ("a motor bike, a cheesecake, an iPhone", [], [], ["motorcycle", "cake", "cell phone"]),
    ("a tennis racket", ["tennis racket"], ["tennis racket"], ["tennis racket"]),
    ("home plate and train tracks", [], [], []),  # double words that swallow an object
    ("wine glasses and a wine glass", ["wine glass"] * 2, ["wine glass"] * 2, ["wine glass"] * 2),
    ("MEN and WOMEN", ["person"] * 2, ["person"] * 2, ["person"] * 2),
    ("the dog's bowl, knives, a desk", *[["dog", "bowl", "knife", "dining table"]] * 3),
    ("a dog.A cat", ["cat"], ["cat"], ["cat"]),
    ("1. dog. 2. dogs", ["dog"] * 2, ["dog"] * 2, ["dog"] * 2),
    ("a potted\nplant", ["potted plant"], ["potted plant"], ["potted plant"]),
    ("an air plane plane", ["airplane"] * 2, ["airplane"] * 2, ["airplane"] * 2),
    ("", [], [], []),
]


@pytest.mark.parametrize("lineage", ["pattern", "wordnet", "strict"])
def test_mentions_of_known_captions(lineage: Any) -> None:
    skip_without_wordnet(lineage)
    for caption, *found in CAPTIONS:
        assert list(parse(caption, lineage).categories) == found[LINEAGES.index(lineage)], caption


def test_every_synonym_is_found_by_the_strict_lineage() -> None:
    for word, category in SYNONYMS.items():
        assert parse(f"there is one {word} here", "strict").categories == (category,)


@pytest.mark.parametrize("lineage", ["pattern", "strict"])
def test_mentions_say_where_they_stand(lineage: Any) -> None:
    text = 'He said: "A Hot  Dog", the seat of a toilet, baby elephants, passenger trains and a DOG\'s bowl.'
    mentions = parse(text, lineage).mentions
    assert [text[m.start : m.stop].lower() for m in mentions] == [
        "hot  dog", "toilet", "baby elephants", "passenger trains", "dog", "bowl",
    ]  # fmt: skip
    assert [m.word for m in mentions][:2] == ["hot dog", "toilet"]


def slow_counts(captions: list[list[str]], truth: dict[int, set[str]]) -> dict[str, int]:
    """Counted one by one, from lists of names."""
    named = [(set(names), truth[number]) for number, names in enumerate(captions)]
    return {
        "wrong captions": sum(bool(names - there) for names, there in named),
        "wrong": sum(name not in truth[number] for number, names in enumerate(captions) for name in names),
        "mentions": sum(map(len, captions)),
        "true": sum(len(names & there) for names, there in named),
        "objects": sum(len(names) for names, _ in named),
    }


def slow_scores(counts: dict[str, Fraction], truth: dict[int, set[str]]) -> dict[str, float]:
    """Scores from counts; a share of nothing is 0."""
    there, true, objects = sum(map(len, truth.values())), counts["true"], counts["objects"]
    return {
        "chair_s": float(counts["wrong captions"] / len(truth)),
        "chair_i": float(counts["wrong"] / (counts["mentions"] or 1)),
        "chair_i_distinct": float((objects - true) / (objects or 1)),
        "recall": float(Fraction(true) / max(there, 1)),
        "precision": float(true / (objects or 1)),
        "f1": float(2 * true / ((objects + there) or 1)),
    }


NAMES = st.sampled_from(["dog", "cat", "bench", "wine glass", "person", "car"])
TEXTS = st.lists(st.sampled_from(["a dog", "two cats", "wine glasses", "people", "a seat", "grass", ".", ","]))
CASES = st.lists(st.tuples(TEXTS.map(" ".join), st.sets(NAMES)), min_size=1, max_size=8)


@settings(deadline=None, max_examples=50)
@given(CASES, st.randoms())
def test_scores_equal_a_slow_count_in_any_order(cases: list[tuple[str, set[str]]], random: Any) -> None:
    captions = [(number, text) for number, (text, _) in enumerate(cases)]
    truth = {number: names for number, (_, names) in enumerate(cases)}
    result = chair(captions, truth)
    expected = slow_scores(slow_counts([list(parse(text).categories) for _, text in captions], truth), truth)
    for name, value in expected.items():
        assert result.scores[name] == pytest.approx(value, abs=1e-12)
        assert 0 <= result.scores[name] <= 1
    assert result.silent == sum(not parse(text).mentions for _, text in captions)
    random.shuffle(captions)
    assert chair(captions, truth).counts.total() == result.counts.total()


@pytest.mark.parametrize("bad", ["abc", "1.5", "", 1.0, True, None, "-1", "²"])
def test_ids_are_whole_numbers_or_their_digits(bad: Any) -> None:
    assert chair([("007", "a dog")], {7: {"dog"}}).counts.ids == ("7",)
    with pytest.raises(InputError, match="whole number"):
        chair([(bad, "a dog")], {1: {"dog"}})


def test_what_cannot_be_scored_is_refused_with_the_reason() -> None:
    truth = {1: {"dog"}}
    with pytest.raises(InputError, match=r"2 captioned images have no annotation: 8, 9"):
        chair([(1, "a dog"), (9, "a cat"), (8, "a cat")], truth)
    with pytest.raises(InputError, match=r"1 images have several captions: 1"):
        chair([(1, "a dog"), (1, "a cat")], truth)
    with pytest.raises(InputError, match="no caption"):
        chair([], truth)
    with pytest.raises(InputError, match="pattern, wordnet, strict"):
        chair([(1, "a dog")], truth, "lemma")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="unicorn"):
        ground_truth(CocoData({}, {}, {}, ("unicorn",)))


def test_without_nltk_the_error_says_what_to_run() -> None:
    if wordnet_missing() is None:
        pytest.skip("nltk and its data are here")
    with pytest.raises(InputError, match=r"pip install nltk.*averaged_perceptron_tagger_eng wordnet"):
        parse("a dog", "wordnet")


def test_ground_truth_unites_instances_and_reference_captions_in_the_lineage_asked_for() -> None:
    data = CocoData(
        {1: "1.jpg", 2: "2.jpg"},
        {1: ("dog",), 2: ()},
        {1: ("A puppy in a taxi.", "Two men wear ties."), 2: ()},
        ("dog",),
    )
    assert ground_truth(data) == {1: {"dog", "car", "person"}, 2: frozenset()}
    assert ground_truth(data, "strict")[1] == {"dog", "car", "person", "tie"}


def test_scene_captions_score_as_their_exact_grammar_does(tmp_path: Path) -> None:
    """The strict lineage finds in template English what plain look-up finds."""
    scenes = split_scenes("evaluation")[:60]
    random = np.random.RandomState(0)
    texts = [drifting_caption(scene, random, STRONG).text for scene in scenes]
    for kind in ("instances", "captions"):
        content = getattr(scene_files, kind)(scenes, "evaluation")
        (tmp_path / f"{kind}.json").write_text(json.dumps(content))
    data = read_coco(tmp_path / "instances.json", tmp_path / "captions.json")
    assert {len(references) for references in data.references.values()} == {2}
    truth = ground_truth(data, "strict")
    captions = [Caption(scene.seed, text) for scene, text in zip(scenes, texts, strict=True)]
    result = chair(captions, truth, "strict").scores
    named = [named_categories(text) for text in texts]
    wrong = [[name for name in found if name not in scene.names] for found, scene in zip(named, scenes, strict=True)]
    objects = sum(len(set(found)) for found in named)
    recalled = sum(len(set(found) & set(scene.names)) for found, scene in zip(named, scenes, strict=True))
    assert result["chair_s"] == pytest.approx(sum(map(bool, wrong)) / len(scenes))
    assert result["chair_i"] == pytest.approx(sum(map(len, wrong)) / sum(map(len, named)))
    assert result["chair_i_distinct"] == pytest.approx(sum(len(set(names)) for names in wrong) / objects)
    assert result["recall"] == pytest.approx(recalled / sum(len(scene.names) for scene in scenes))
    assert result["distinct_objects"] == pytest.approx(objects / len(scenes))


# The truncated control: equal to cutting one mention after the other

OBJECTS = ("dog", "cat", "bench", "car", "person")
CAPTION = st.lists(st.sampled_from(OBJECTS), max_size=7)
CUTS = st.lists(st.tuples(CAPTION, CAPTION, st.sets(st.sampled_from(OBJECTS))), min_size=1, max_size=7)


def scored(captions: list[list[str]], truth: dict[int, set[str]]) -> ChairResult:
    return chair([(number, " and a ".join(["look", *names])) for number, names in enumerate(captions)], truth)


def slow_control(vanilla: list[list[str]], truth: dict[int, set[str]], true: int) -> dict[str, Fraction]:
    """The mean counts over every choice of captions that lose one more mention, for as many as recall asks for."""
    for length in range(max(map(len, vanilla)), 0, -1):
        longer, shorter = ([names[:n] for names in vanilla] for n in (length, length - 1))
        more, fewer = slow_counts(longer, truth)["true"], slow_counts(shorter, truth)["true"]
        if fewer <= true < more:
            # Each mention that may go is gone in this share of the choices.
            gone = Fraction(more - true, more - fewer)
            each = [[slow_counts([names], {0: truth[n]}) for n, names in enumerate(own)] for own in (longer, shorter)]
            return {
                name: sum((1 - gone) * one[name] + gone * two[name] for one, two in zip(*each, strict=True))
                for name in each[0][0]
            }
    return {name: Fraction(count) for name, count in slow_counts(vanilla, truth).items()}


@settings(deadline=None, max_examples=150)
@given(CUTS, st.randoms())
def test_the_control_equals_a_slow_count_in_any_order(
    cases: list[tuple[list[str], list[str], set[str]]], random: Any
) -> None:
    vanilla, method = [case[0] for case in cases], [case[1] for case in cases]
    truth = {number: case[2] for number, case in enumerate(cases)}
    true, most = slow_counts(method, truth)["true"], slow_counts(vanilla, truth)["true"]
    details, counts = scored(vanilla, truth).details, scored(method, truth).counts
    control = cut_to_recall(details, counts)
    shuffled = counts.ordered(sorted(counts.ids, key=lambda _: random.random()))
    assert cut_to_recall(details, shuffled).counts.total() == control.counts.total()
    expected = slow_scores(slow_control(vanilla, truth, true), truth)
    found = scores(control.counts, CONTROL_METRICS)
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert found["recall"] == pytest.approx(min(true, most) / max(sum(map(len, truth.values())), 1))
    assert (control.mentions is None) == (true >= most)


def test_counts_are_the_mean_over_all_choices_of_captions() -> None:
    """Four captions, of which half lose their last mention: every pair of them is tried."""
    truth = {number: {"dog", "cat"} for number in range(4)}
    vanilla = [["dog", "bench", "cat"], ["dog", "cat"], ["car", "dog", "cat"], ["dog", "cat", "cat"]]
    choices = [
        [names[:2] if number in pair else names for number, names in enumerate(vanilla)]
        for pair in combinations(range(4), 2)
    ]
    mean = {
        name: sum(scored(choice, truth).counts.total()[name] for choice in choices) / len(choices)
        for name in ("hallucinated_captions", "mentions", "found")
    }
    control = cut_to_recall(scored(vanilla, truth).details, scored([["dog", "cat"]] * 3 + [["dog"]], truth).counts)
    assert (control.mentions, control.shorter) == (3, 0.5)
    assert {name: control.counts.total()[name] for name in mean} == mean


def test_other_images_or_objects_are_refused() -> None:
    captions, truth = [["dog", "cat"]] * 3, {number: {"dog", "cat"} for number in range(3)}
    vanilla = scored(captions, truth).details
    with pytest.raises(InputError, match="same samples"):
        cut_to_recall(vanilla, scored(captions[:2], truth).counts)
    with pytest.raises(InputError, match="one lineage"):
        cut_to_recall(vanilla, scored(captions, {**truth, 1: {"dog"}}).counts)
