"""The truncated control: equal to cutting one mention after the other, and fair to methods that are better or not."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rudder_hf.metrics.chair import ChairResult, chair
from rudder_hf.metrics.statistics import scores
from rudder_hf.metrics.truncation import CONTROL_METRICS, cut_to_recall
from rudder_hf.runtime.errors import InputError

OBJECTS = ("dog", "cat", "bench", "car", "person")
CAPTION = st.lists(st.sampled_from(OBJECTS), max_size=7)
CASES = st.lists(st.tuples(CAPTION, CAPTION, st.sets(st.sampled_from(OBJECTS))), min_size=1, max_size=7)


def scored(captions: list[list[str]], truth: dict[int, set[str]]) -> ChairResult:
    return chair([(number, " and a ".join(["look", *names])) for number, names in enumerate(captions)], truth)


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
@given(CASES)
def test_equal_to_a_slow_count(cases: list[tuple[list[str], list[str], set[str]]]) -> None:
    vanilla, method = [case[0] for case in cases], [case[1] for case in cases]
    truth = {number: case[2] for number, case in enumerate(cases)}
    true, most = slow_counts(method, truth)["true"], slow_counts(vanilla, truth)["true"]
    control = cut_to_recall(scored(vanilla, truth).details, scored(method, truth).counts)
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


def test_other_images_or_objects_are_refused() -> None:
    captions, truth = [["dog", "cat"]] * 3, {number: {"dog", "cat"} for number in range(3)}
    vanilla = scored(captions, truth).details
    with pytest.raises(InputError, match="same samples"):
        cut_to_recall(vanilla, scored(captions[:2], truth).counts)
    with pytest.raises(InputError, match="one lineage"):
        cut_to_recall(vanilla, scored(captions, {**truth, 1: {"dog"}}).counts)
