"""Fluency: repetition within answers, and sentences that no template of the scenes makes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rudder_hf.metrics.statistics import scores
from rudder_hf.metrics.words import BROKEN_METRICS, FLUENCY_METRICS, broken, repetition
from rudder_hf.runtime.errors import InputError
from rudder_hf.scenes.images import train_scene
from tools.train_scenes.drift import STRONG, drifting_caption


def measured(*answers: str) -> dict[str, float]:
    return scores(repetition(answers, [str(n) for n in range(len(answers))]), FLUENCY_METRICS)


def test_known_texts() -> None:
    found = measured("A dog runs. A dog  runs. The cat!")
    assert found["repeated_sentences"] == pytest.approx(1 / 3)
    assert found["distinct_1"] == pytest.approx(5 / 8)
    assert found["distinct_2"] == pytest.approx(5 / 7)  # a dog, dog runs, runs a, runs the, the cat
    assert found["distinct_3"] == pytest.approx(5 / 6)
    assert measured("dog dog dog dog")["distinct_1"] == 0.25
    assert measured("", "a")["empty"] == 0.5
    again = measured(*["A dog runs. A cat sits."] * 2)  # other answers are no repetition
    assert again == pytest.approx(measured("A dog runs. A cat sits."))


@settings(deadline=None)
@given(st.lists(st.sampled_from(["a dog.", "a cat.", "it sits.", ""]), max_size=8))
def test_repeating_never_makes_a_text_look_better(parts: list[str]) -> None:
    text = " ".join(parts)
    found, longer = measured(text), measured(f"{text} {text}")
    for name in ("distinct_1", "distinct_2", "distinct_3"):
        assert 0 <= found[name] <= 1
        if len(text.split()) >= 3:
            assert longer[name] <= found[name]
    assert longer["repeated_sentences"] >= found["repeated_sentences"]


def test_broken_sentences_of_scenes() -> None:
    random = np.random.RandomState(0)
    good = [drifting_caption(train_scene(0, n), random, STRONG).text for n in range(20)]
    ids = [str(n) for n in range(20)]
    assert scores(broken(good, ids), BROKEN_METRICS) == {"broken_sentences": 0.0}
    bad = "There is is a cat. I can see a dog."
    assert scores(broken([bad], ["0"]), BROKEN_METRICS) == {"broken_sentences": 0.5}
    assert scores(broken([""], ["0"]), BROKEN_METRICS) == {"broken_sentences": 0.0}


def test_ids_have_to_fit() -> None:
    with pytest.raises(InputError, match="do not fit 1 samples"):
        repetition(["a", "b"], ["0"])
