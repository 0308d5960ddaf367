"""AUC and its bootstrap against counting pairs; the detectors on answers that are known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rudder_hf.analyze.detector import Ordered, auc, bootstrap_auc, detector_numbers, mention_scores, roc
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
    wrong, right = roc(scores, positive)
    assert (wrong[0], right[0], wrong[-1], right[-1]) == (0, 0, 1, 1)
    assert np.trapezoid(right, wrong) == pytest.approx(auc(scores, positive))


@given(labelled, st.integers(0, 9))
def test_weights_are_repetitions(rows: list[tuple[int, bool]], seed: int) -> None:
    scores, positive = np.asarray([r[0] for r in rows], float), np.asarray([r[1] for r in rows])
    weights = np.random.default_rng(seed).integers(0, 3, len(rows))
    repeated = np.repeat(np.arange(len(rows)), weights)
    found = Ordered.of(scores, positive).auc(weights[None].astype(float))[0]
    if len(set(positive[repeated].tolist())) < 2:
        assert math.isnan(found)
    else:
        assert found == pytest.approx(pair_counting(scores[repeated], positive[repeated]))


def test_the_bootstrap_draws_whole_images() -> None:
    source = np.random.default_rng(0)
    images = [f"p{n}" for n in source.integers(0, 12, 80)]
    scores, positive = source.normal(size=80), source.random(80) < 0.6
    names = sorted(set(images))
    found = bootstrap_auc({"s": scores}, positive, images, 30, seed=5)["s"]
    (draws,) = bootstrap_weights(len(names), 30, seed=5)
    for row, value in zip(draws, found, strict=True):
        times = [int(row[names.index(image)]) for image in images]
        kept = np.repeat(np.arange(80), times)
        assert value == pytest.approx(pair_counting(scores[kept], positive[kept]))


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
    assert similarity["minus_probability"]["value"] == pytest.approx(0.25)
    assert detector_numbers(answers, draws=300) == found
    with pytest.raises(ValueError, match="no hallucinated mention"):
        detector_numbers([(i, w, answer_mentions(w, {"dog", "cat"})) for i, w, _ in answers])
