"""The truncated control: equal to cutting one mention after the other, and fair to methods that are better or not."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rudder_hf.metrics.chair import ChairResult, chair
from rudder_hf.metrics.errors import InputError
from rudder_hf.metrics.statistics import Difference, compare, scores
from rudder_hf.metrics.truncation import CONTROL_METRICS, Truncated, cut_to_recall

OBJECTS = ("dog", "cat", "bench", "car", "person")
CAPTION = st.lists(st.sampled_from(OBJECTS), max_size=7)
CASES = st.lists(st.tuples(CAPTION, CAPTION, st.sets(st.sampled_from(OBJECTS))), min_size=1, max_size=7)


def scored(captions: list[list[str]], truth: dict[int, set[str]]) -> ChairResult:
    return chair([(number, " and a ".join(["look", *names])) for number, names in enumerate(captions)], truth)


def slow_scores(captions: list[list[str]], truth: dict[int, set[str]]) -> dict[str, Fraction]:
    """Counted one by one, from lists of names."""
    named = [(set(names), truth[number]) for number, names in enumerate(captions)]
    wrong = sum(name not in truth[number] for number, names in enumerate(captions) for name in names)
    true = sum(len(names & there) for names, there in named)
    objects, there = sum(len(names) for names, _ in named), sum(len(there) for _, there in named)
    return {
        "chair_s": Fraction(sum(bool(names - there) for names, there in named), len(captions)),
        "chair_i": Fraction(wrong, max(sum(map(len, captions)), 1)),
        "chair_i_distinct": Fraction(objects - true, max(objects, 1)),
        "recall": Fraction(true, max(there, 1)),
        "precision": Fraction(true, max(objects, 1)),
        "f1": Fraction(2 * true, max(objects + there, 1)),
    }


def slow_control(vanilla: list[list[str]], truth: dict[int, set[str]], recall: Fraction, seed: int) -> list[list[str]]:
    """One mention after the other is taken from the longest captions; the first that comes nearest is kept."""
    order = np.random.default_rng(seed).permutation(len(vanilla))
    now = [list(names) for names in vanilla]
    best, distance = now, abs(slow_scores(now, truth)["recall"] - recall)
    for length in range(max(map(len, vanilla)), 0, -1):
        for place in order:
            if len(now[place]) == length:
                now = [names[:-1] if number == place else names for number, names in enumerate(now)]
                far = abs(slow_scores(now, truth)["recall"] - recall)
                if far < distance:
                    best, distance = now, far
    return best


@settings(deadline=None, max_examples=150)
@given(CASES, st.integers(0, 3))
def test_equal_to_cutting_one_mention_after_the_other(
    cases: list[tuple[list[str], list[str], set[str]]], seed: int
) -> None:
    vanilla, method = [case[0] for case in cases], [case[1] for case in cases]
    truth = {number: case[2] for number, case in enumerate(cases)}
    recall = slow_scores(method, truth)["recall"]
    control = cut_to_recall(scored(vanilla, truth).details, scored(method, truth).counts, seed)
    expected = slow_control(vanilla, truth, recall, seed)
    slow, found = slow_scores(expected, truth), scores(control.counts, CONTROL_METRICS)
    assert {name: found[name] for name in slow} == pytest.approx({name: float(v) for name, v in slow.items()})
    assert found["recall"] == pytest.approx(float(min(recall, slow_scores(vanilla, truth)["recall"])))
    assert (control.mentions is None) == (expected == vanilla)


@settings(deadline=None, max_examples=20)
@given(CASES, st.randoms())
def test_the_order_of_captions_does_not_matter(
    cases: list[tuple[list[str], list[str], set[str]]], random: Any
) -> None:
    truth = {number: case[2] for number, case in enumerate(cases)}
    vanilla = scored([case[0] for case in cases], truth)
    method = scored([case[1] for case in cases], truth).counts
    shuffled = sorted(method.ids, key=lambda _: random.random())
    one, two = (cut_to_recall(vanilla.details, counts) for counts in (method, method.ordered(shuffled)))
    assert one.counts.total() == two.counts.total()


# Vanilla names five objects; "cat" is absent from every third image, "person" from four of five.
TRUTH = {
    number: {"dog", "bench", "car"} | ({"cat"} if number % 3 else set()) | ({"person"} if number % 5 == 0 else set())
    for number in range(60)
}
VANILLA = [["dog", "cat", "bench", "car", "person"] for _ in TRUTH]


def against_the_control(method: list[list[str]]) -> tuple[Truncated, dict[str, Difference]]:
    vanilla, steered = scored(VANILLA, TRUTH), scored(method, TRUTH)
    control = cut_to_recall(vanilla.details, steered.counts)
    own = steered.counts.only(control.counts.columns)
    return control, compare(control.counts, own, CONTROL_METRICS, samples=500)


def test_a_method_that_only_stops_earlier_is_not_better_than_the_control() -> None:
    """Against vanilla it has less CHAIR and less recall."""
    cut = [names[:3] for names in VANILLA]
    before, after = scored(VANILLA, TRUTH).scores, scored(cut, TRUTH).scores
    assert after.chair_s < before.chair_s
    assert after.chair_i < before.chair_i
    control, found = against_the_control(cut)
    assert (control.mentions, control.shorter) == (4, 60)
    assert all((change.value, change.low, change.high) == (0, 0, 0) for change in found.values())


def test_a_method_that_leaves_out_what_is_absent_is_better_than_the_control() -> None:
    """It gives up some true objects too, so that recall falls."""
    steered = [
        [name for name in names if name in TRUTH[number] and (name != "car" or number % 4)]
        for number, names in enumerate(VANILLA)
    ]
    control, found = against_the_control(steered)
    assert control.mentions is not None
    assert found["recall"].value == 0
    for name in ("chair_s", "chair_i", "chair_i_distinct"):
        assert found[name].high < 0, name
    assert found["f1"].low > 0
    assert found["precision"].low > 0


def test_a_method_that_recalls_more_meets_vanilla_uncut() -> None:
    control, found = against_the_control([sorted(names) for names in TRUTH.values()])
    assert control.mentions is None
    assert found["recall"].value == 0
    more, _ = against_the_control([list(OBJECTS)] * 60)
    assert more.mentions is None
    assert more.counts.total() == scored(VANILLA, TRUTH).counts.only(more.counts.columns).total()


def test_other_images_or_objects_are_refused() -> None:
    vanilla = scored(VANILLA, TRUTH).details
    with pytest.raises(InputError, match="same samples"):
        cut_to_recall(vanilla, scored(VANILLA[:9], TRUTH).counts)
    with pytest.raises(InputError, match="one lineage"):
        cut_to_recall(vanilla, scored(VANILLA, {key: {"dog"} for key in TRUTH}).counts)
