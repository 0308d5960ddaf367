"""Every statistic of the analysis against a slow, direct computation."""

from __future__ import annotations

import math
from functools import cache
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rudder_hf.analyze import detector as detectors
from rudder_hf.analyze import geometry
from rudder_hf.analyze.detector import detector
from rudder_hf.analyze.drawing import detector as drawn_detector
from rudder_hf.analyze.drawing.tokens import COLUMNS, lay_out, shade
from rudder_hf.analyze.ranks import Ordered, auc, bootstrap_auc, clustered_draws, roc
from rudder_hf.analyze.tokens import Written, mentioned, token_spans, view
from rudder_hf.metrics.mention_spans import mentions
from tests.support.toy import toy_processor

needs_sklearn = pytest.mark.usefixtures("sklearn")


@pytest.fixture
def sklearn() -> Any:
    return pytest.importorskip("sklearn", reason="scikit-learn, of the extra plots, is not installed")


def pair_counting(scores: Any, positive: Any) -> float:
    won = total = 0.0
    for one, is_one in zip(scores, positive, strict=True):
        for other, is_other in zip(scores, positive, strict=True):
            if is_one and not is_other:
                total += 1
                won += 1 if one > other else 0.5 if one == other else 0
    return won / total


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


def test_the_bootstrap_draws_whole_pictures() -> None:
    source = np.random.default_rng(0)
    pictures = [f"p{n}" for n in source.integers(0, 12, 80)]
    scores, positive = source.normal(size=80), source.random(80) < 0.6
    draws = clustered_draws(pictures, 30, seed=5)
    first = {picture: pictures.index(picture) for picture in pictures}
    for row, picture in enumerate(pictures):
        assert (draws[:, row] == draws[:, first[picture]]).all()
    assert (draws[:, list(first.values())].sum(1) == len(first)).all()
    found = bootstrap_auc({"s": scores}, positive, pictures, 30, seed=5)["s"]
    for row, value in zip(draws, found, strict=True):
        kept = np.repeat(np.arange(80), row.astype(int))
        assert value == pytest.approx(pair_counting(scores[kept], positive[kept]))


vectors = st.lists(st.floats(-5, 5), min_size=4, max_size=4).filter(lambda v: sum(x * x for x in v) > 0.01)


@given(vectors, vectors)
def test_rotation_is_the_arc_cosine(one: list[float], other: list[float]) -> None:
    a, b = np.asarray([one]), np.asarray([other])
    cosine = float((a @ b.T)[0, 0] / np.linalg.norm(a) / np.linalg.norm(b))
    # The arc cosine itself is only that exact near its ends.
    assert geometry.rotation(a, b)[0] == pytest.approx(math.degrees(math.acos(max(-1, min(1, cosine)))), abs=1e-5)


def test_small_rotations_keep_their_digits() -> None:
    a = np.asarray([[1.0, 0.0]])
    for degrees in (1e-7, 1e-3, 40.5, 179.9999):
        angle = math.radians(degrees)
        b = np.asarray([[math.cos(angle), math.sin(angle)]])
        assert geometry.rotation(a, b)[0] == pytest.approx(degrees, rel=1e-9)


@given(st.integers(0, 50), st.floats(0.1, 50))
def test_alignment_gain_follows_from_the_rotation(seed: int, strength: float) -> None:
    source = np.random.default_rng(seed)
    text, image = source.normal(size=(7, 5)), source.normal(size=(7, 5))
    gain = geometry.alignment_gain(text, image, strength * image)
    assert gain == pytest.approx(1 - np.cos(np.radians(geometry.rotation(text, image))), abs=1e-12)
    elsewhere = source.normal(size=(7, 5))
    by_hand = [
        image[i] @ elsewhere[i] / np.linalg.norm(image[i]) / np.linalg.norm(elsewhere[i])
        - text[i] @ elsewhere[i] / np.linalg.norm(text[i]) / np.linalg.norm(elsewhere[i])
        for i in range(7)
    ]
    assert geometry.alignment_gain(text, image, elsewhere) == pytest.approx(by_hand)


def test_geometry_of_known_vectors() -> None:
    text = np.tile([[1.0, 0.0, 0.0]], (4, 1)) + 1e-7 * np.random.default_rng(0).normal(size=(4, 3))
    image = np.asarray([[1.0, 1, 0], [1, 0, 1], [1, -1, 0], [1, 0, -1]])
    found = geometry.geometry(text, image, np.full(4, 2.0))
    assert found["rotation_degrees"]["values"] == pytest.approx([45] * 4, abs=1e-4)
    assert found["alignment_gain"]["mean"] == pytest.approx(1 - math.sqrt(0.5), abs=1e-6)
    assert found["gain_minus_one_minus_cos"] < 1e-12
    assert found["distinct_text_only"] == 1
    assert found["common_rotation_degrees"] == pytest.approx(0, abs=1e-4)
    pairs = [math.degrees(math.acos(a @ b / 2)) for a, b in combinations(image, 2)]
    assert sorted(found["between_pictures_degrees"]["values"]) == pytest.approx(sorted(pairs))


def slow_silhouette(apart: Any, labels: Any) -> float:
    values = []
    for i in range(len(labels)):
        same = [apart[i, j] for j in range(len(labels)) if labels[j] == labels[i] and j != i]
        if not same:
            values.append(0.0)
            continue
        a = sum(same) / len(same)
        b = min(
            np.mean([apart[i, j] for j in range(len(labels)) if labels[j] == k]) for k in set(labels) - {labels[i]}
        )
        values.append((b - a) / max(a, b))
    return float(np.mean(values))


@needs_sklearn
def test_silhouette_and_distances() -> None:
    from rudder_hf.analyze.clusters import distances, rotated, silhouette

    source = np.random.default_rng(1)
    points, labels = source.normal(size=(25, 60)), source.integers(0, 3, 25)
    slow = np.asarray([[np.linalg.norm(a - b) for b in points] for a in points])
    assert distances(points) == pytest.approx(slow, abs=1e-6)
    assert distances(rotated(points)) == pytest.approx(slow, abs=1e-6)
    assert rotated(points).shape[1] <= 25
    assert silhouette(slow, labels) == pytest.approx(slow_silhouette(slow, labels.tolist()))


@needs_sklearn
def test_clusters_are_found_where_there_are_some() -> None:
    from rudder_hf.analyze.clusters import best_clusters, clusters, without_clusters

    source = np.random.default_rng(2)
    sizes, middles = (30, 20, 10), 8 * np.eye(3, 20)
    points = np.concatenate([m + source.normal(size=(n, 20)) for n, m in zip(sizes, middles, strict=True)])
    scores, labels = best_clusters(points)
    assert max(scores, key=scores.get) == 3  # type: ignore[arg-type]
    assert np.bincount(labels).tolist() == list(sizes)
    assert max(scores.values()) > max(without_clusters(points)) + 0.1
    present = [["cat"]] * 30 + [["dog"]] * 20 + [["cat", "dog"]] * 10
    found = clusters(points, points, {"gate": np.arange(60.0)}, present)
    assert [c["n"] for c in found["clusters"]] == list(sizes)
    assert found["clusters"][1]["gate"]["mean"] == pytest.approx(np.arange(30, 50).mean())
    assert found["clusters"][0]["typical_objects"][0]["object"] == "cat"
    with pytest.raises(ValueError, match="too few"):
        best_clusters(np.zeros((10, 4)))


@needs_sklearn
def test_neighbours_by_brute_force() -> None:
    from rudder_hf.analyze.evidence import nearest, neighbour_evidence, object_table, shared_objects

    source = np.random.default_rng(3)
    cards = source.normal(size=(40, 6))
    present = [[n for n in "abcdef" if source.random() < 0.3] for _ in range(40)]
    slow = []
    for i in range(40):
        cosines = {
            j: cards[i] @ cards[j] / np.linalg.norm(cards[i]) / np.linalg.norm(cards[j]) for j in range(40) if j != i
        }
        slow.append(sorted(cosines, key=lambda j: -cosines[j])[:5])
    assert nearest(cards).tolist() == slow
    overlap = shared_objects(object_table(present)[1])

    def jaccard(i: int, j: int) -> float:
        one, two = set(present[i]), set(present[j])
        return len(one & two) / len(one | two) if one | two else 0.0

    assert all(overlap[i, j] == pytest.approx(jaccard(i, j)) for i in range(40) for j in range(40))
    found = neighbour_evidence(cards, present, 0, permutations=99)
    assert found["shared"] == pytest.approx(np.mean([jaccard(i, j) for i in range(40) for j in slow[i]]))
    assert found["chance"] == pytest.approx(np.mean([jaccard(i, j) for i in range(40) for j in range(40) if i != j]))
    table = object_table(present)[1].astype(float)
    told = neighbour_evidence(table + 0.01 * source.normal(size=table.shape), present, 0, permutations=99)
    assert told["p_value"] == pytest.approx(0.01)
    assert found["p_value"] > 0.01


@needs_sklearn
def test_probe_is_a_logistic_regression_in_the_original_space() -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold

    from rudder_hf.analyze.evidence import in_span, probe, probe_evidence

    source = np.random.default_rng(4)
    cards, label = source.normal(size=(60, 200)), source.random(60) < 0.4
    slow = []
    for train, test in StratifiedKFold(5, shuffle=True, random_state=7).split(cards, label):
        scale = in_span(cards[train], cards[test])[0].std()
        one, middle = cards[train], cards[train].mean(0)
        turned = np.linalg.svd(one - middle, full_matrices=False)[2]
        assert np.linalg.norm(((one - middle) @ turned.T) @ turned - (one - middle)) < 1e-8  # nothing is lost
        model = LogisticRegression(max_iter=5000, tol=1e-10).fit((one - middle) / scale, label[train])
        slow.append(pair_counting(model.decision_function((cards[test] - middle) / scale), label[test]))
    assert probe(cards, label[:, None], seed=7)[0] == pytest.approx(np.mean(slow), abs=0.02)

    present = [["cat"] if yes else ["dog"] for yes in label]
    told = probe_evidence(cards + 4 * np.outer(label, np.eye(200)[0]), np.ones((60, 200)), present, seed=0)
    assert told["mean_auc"] > 0.85
    assert told["text_only_mean_auc"] == 0.5
    assert abs(np.mean(told["shuffled_mean_auc"]) - 0.5) < 0.15
    with pytest.raises(ValueError, match="no object"):
        probe_evidence(cards[:9], None, present[:9], seed=0)


@needs_sklearn
def test_categories_against_shuffled_labels() -> None:
    from rudder_hf.analyze.evidence import by_category, semantic_evidence

    present = [["cat"]] * 12 + [["dog"]] * 10 + [["cat", "dog"]] * 5 + [["cup"]] * 2
    names, rows, labels = by_category(present, categories=2)
    assert names == ["cat", "dog"]
    assert rows.tolist() == list(range(22))
    source = np.random.default_rng(5)
    cards = source.normal(size=(29, 8))
    cards[:12, 0] += 3
    found = semantic_evidence(cards, present, 0, permutations=99)
    rows, labels = found["rows"], found["labels"]
    unit = cards[rows] / np.linalg.norm(cards[rows], axis=1, keepdims=True)
    assert found["silhouette"] == pytest.approx(slow_silhouette(1 - unit @ unit.T, labels))
    assert found["p_value"] == pytest.approx(0.01)
    with pytest.raises(ValueError, match="fewer than two"):
        by_category([["cat"]] * 30)


@needs_sklearn
def test_tsne_is_seeded() -> None:
    from rudder_hf.analyze.embedding import tsne

    points = np.random.default_rng(6).normal(size=(12, 30))
    assert np.array_equal(tsne(points, 3), tsne(points, 3))
    assert tsne(points, 3).shape == (12, 2)
    with pytest.raises(ValueError, match="too few"):
        tsne(np.ones((12, 30)))


@cache
def byte_tokenizer() -> Any:
    """Every byte a token, so that an emoji takes four of them."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made)


@given(st.text(max_size=12))
@settings(max_examples=50, deadline=None)
def test_spans_cover_the_text(text: str) -> None:
    tokenizer = byte_tokenizer()
    ids = tokenizer(text).input_ids
    decoded, spans = token_spans(tokenizer, ids)
    assert decoded == text
    assert len(spans) == len(ids)
    assert "".join(text[start:stop] for start, stop in spans) == text
    assert all(one[1] == two[0] for one, two in pairwise(spans))


def test_spans_of_characters_of_several_tokens() -> None:
    tokenizer = byte_tokenizer()
    text, spans = token_spans(tokenizer, tokenizer("a🐻b").input_ids)
    assert [text[start:stop] for start, stop in spans] == ["a", "", "", "", "🐻", "b"]
    toy = toy_processor().tokenizer
    text, spans = token_spans(toy, toy("a dog near the chair").input_ids)
    assert [text[a:b].strip() for a, b in spans] == ["a", "dog", "near", "the", "chair"]


def written(words: str, similarity: list[float], probability: list[float] | None = None) -> Written:
    """An answer of one token per word."""
    spans, start = [], 0
    for word in words.split(" "):
        stop = start + len(word) + (start > 0)
        spans.append((start, stop))
        start = stop
    chances = probability or [0.5] * len(spans)
    return Written(words, spans, similarity, [s / 2 for s in similarity], [0.0] * len(spans), chances)


def test_mentions_and_their_tokens() -> None:
    answer = written("a dog and a traffic light", [0.1, 0.2, 0.3, 0.4, 0.5, 0.7], [0.1, 0.2, 0.3, 0.4, 0.5, 0.02])
    dog, light = mentioned(answer, {"dog"})
    assert (dog.tokens, dog.absent, light.tokens, light.absent) == ([1], False, [4, 5], True)
    scores = detectors.mention_scores(answer, light)
    assert scores["similarity"] == pytest.approx(0.6)
    assert scores["probability"] == pytest.approx(math.sqrt(0.5 * 0.02))
    assert scores["earliness"] == -4
    assert mentioned(answer, None)[0].absent is None
    shown = view(answer, {"dog"})
    assert [t["text"] for t in shown["tokens"] if t["absent"]] == [" traffic", " light"]
    assert [t["last"] for t in shown["tokens"]] == [False, True, False, False, False, True]
    assert shown["absent"] == ["traffic light"]


def test_places_of_joined_words() -> None:
    text = "Two baby elephants, a hot-dog and passenger trains."
    assert [text[s.start : s.stop] for s in mentions(text)] == ["baby elephants", "passenger trains"]
    assert [text[s.start : s.stop] for s in mentions(text, "strict")] == [
        "baby elephants", "hot-dog", "passenger trains",
    ]  # fmt: skip


def test_detector_on_answers_that_are_known() -> None:
    answers = []
    for number in range(20):
        low = -0.5 if number % 4 else 0.9  # one in four is where the similarity errs
        answer = written("a dog and a cat", [0, 0.5, 0, 0, low], [1, 0.9, 1, 1, 0.9])
        answers.append((str(number), answer, mentioned(answer, {"dog"})))
    found = detector(answers, draws=300)
    assert found["mentions"] == {"grounded": 20, "hallucinated": 20}
    similarity = found["scores"]["similarity"]
    assert similarity["auc"] == pytest.approx(0.75)
    assert similarity["interval"][0] < 0.75 < similarity["interval"][1] <= 1
    assert found["scores"]["gate"]["auc"] == similarity["auc"]
    assert found["scores"]["probability"]["auc"] == 0.5
    assert found["scores"]["earliness"]["auc"] == 1
    assert similarity["minus_probability"]["value"] == pytest.approx(0.25)
    assert detector(answers, draws=300) == found
    with pytest.raises(ValueError, match="no hallucinated mention"):
        detector([(i, w, mentioned(w, {"dog", "cat"})) for i, w, _ in answers])
    assert set(drawn_detector.LABELS) == set(found["scores"])


def luminance(colour: tuple[float, float, float]) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_shades_are_told_apart_in_grey_and_leave_text_readable() -> None:
    greys = [luminance(shade(value, [-0.2, 0.6])) for value in np.linspace(-0.3, 0.7, 50)]
    assert all(one >= two for one, two in pairwise(greys))
    assert (greys[-1] + 0.05) / 0.05 > 4.5  # contrast of black text, WCAG AA
    assert greys[0] - greys[-1] > 0.5


def test_token_view_breaks_lines_between_words() -> None:
    shown = view(written("a dog and a cat " * 9 + "end", [0.1] * 46), {"dog"})
    placed = lay_out(shown["tokens"])
    assert "".join(text for _, _, text, _ in placed).count("cat✗") == 9
    for line in {line for line, _, _, _ in placed}:
        inside = sorted((column, text) for at, column, text, _ in placed if at == line)
        assert inside[-1][0] + len(inside[-1][1]) <= COLUMNS
        assert all(c + len(t) < d for (c, t), (d, _) in pairwise(inside))
