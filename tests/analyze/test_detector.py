"""AUC and its bootstrap against counting pairs; the detectors on answers that are known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rudder_hf.analyze.detector import auc, bootstrap_auc, detector_numbers, mention_scores
from rudder_hf.analyze.tokens import answer_mentions
from rudder_hf.metrics.statistics import bootstrap_weights
from tests.support.analyzing import pair_counting, traced

labelled = st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=30).filter(
    lambda rows: len({label for _, label in rows}) == 2
)


@given(labelled)
def test_auc_counts_pairs(rows: list[tuple[int, bool]]) -> None:
    scores, positive = np.asarray([r[0] for r in rows], float), np.asarray([r[1] for r in rows])
    assert auc(scores, positive) == pytest.approx(pair_counting(scores, positive))
    assert math.isnan(auc(scores, np.ones(len(rows), dtype=bool)))


def test_the_bootstrap_draws_whole_images() -> None:
    source = np.random.default_rng(0)
    images = source.integers(0, 5, 30)
    # Positives in two images alone, so that some draws have none.
    scores, positive = source.integers(0, 9, 30).astype(float), (images < 2) & (source.random(30) < 0.6)
    found = bootstrap_auc({"s": scores}, positive, images, 60, seed=5)["s"]
    (draws,) = bootstrap_weights(5, 60, seed=5)
    for row, value in zip(draws, found, strict=True):
        kept = np.repeat(np.arange(30), row[images].astype(int))
        if positive[kept].any() and not positive[kept].all():
            assert value == pytest.approx(pair_counting(scores[kept], positive[kept]))
        else:
            assert math.isnan(value)
    assert 0 < np.isnan(found).sum() < len(found)


def test_scores_of_a_mention_of_two_tokens() -> None:
    answer = traced("a dog and a traffic light", [0.1, 0.2, 0.3, 0.4, 0.5, 0.7], [0.1, 0.2, 0.3, 0.4, 0.5, 0.02])
    _, light = answer_mentions(answer, {"dog"})
    scores = mention_scores(answer, light)
    assert scores["similarity"] == pytest.approx(0.6)
    assert scores["probability"] == pytest.approx(math.sqrt(0.5 * 0.02))
    assert scores["earliness"] == -4


def test_detector_on_answers_that_are_known() -> None:
    answers = []
    for number in range(20):
        low = -0.5 if number % 4 else 0.9  # one in four is where the similarity errs
        answer = traced("a dog and a cat", [0, 0.5, 0, 0, low], [1, 0.9, 1, 1, 0.9])
        answers.append((str(number), answer, answer_mentions(answer, {"dog"})))
    found = detector_numbers(answers, draws=300)
    assert found["mentions"] == {"grounded": 20, "hallucinated": 20}
    similarity = found["scores"]["similarity"]
    assert similarity["auc"] == pytest.approx(0.75)
    assert similarity["interval"][0] < 0.75 < similarity["interval"][1] <= 1
    assert found["scores"]["gate"]["auc"] == similarity["auc"]
    assert found["scores"]["probability"]["auc"] == 0.5
    assert found["scores"]["earliness"]["auc"] == 1
    wrong, right = similarity["roc"]
    assert (wrong[0], right[0], wrong[-1], right[-1]) == (0, 0, 1, 1)
    assert np.trapezoid(right, wrong) == pytest.approx(0.75)
    assert similarity["minus_probability"]["value"] == pytest.approx(0.25)
    assert detector_numbers(answers, draws=300) == found
    with pytest.raises(ValueError, match="no hallucinated mention"):
        detector_numbers([(i, w, answer_mentions(w, {"dog", "cat"})) for i, w, _ in answers])
