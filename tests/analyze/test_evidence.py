"""What CARD knows of an image, against brute force."""

from __future__ import annotations

import numpy as np
import pytest

from rudder_hf.analyze.evidence import (
    by_category,
    category_evidence,
    nearest,
    neighbour_evidence,
    object_table,
    probe,
    probe_evidence,
    shared_objects,
)
from rudder_hf.analyze.geometry import rotated
from tests.support.analyzing import pair_counting, slow_silhouette

pytest.importorskip("sklearn", reason="scikit-learn, of the extra plots, is not installed")


def test_neighbours_by_brute_force() -> None:
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


def test_probe_is_a_logistic_regression_in_the_original_space() -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold

    source = np.random.default_rng(4)
    cards, label = source.normal(size=(60, 200)), source.random(60) < 0.4
    scale = rotated(cards).std()
    slow = []
    for train, test in StratifiedKFold(5, shuffle=True, random_state=7).split(cards, label):
        model = LogisticRegression(max_iter=5000, tol=1e-10).fit(cards[train] / scale, label[train])
        slow.append(pair_counting(model.decision_function(cards[test] / scale), label[test]))
    assert probe(cards, label[:, None], seed=7)[0] == pytest.approx(np.mean(slow), abs=0.02)

    present = [["cat"] if yes else ["dog"] for yes in label]
    told = probe_evidence(cards + 4 * np.outer(label, np.eye(200)[0]), np.ones((60, 200)), present, seed=0)
    assert told["mean_auc"] > 0.85
    assert told["text_only_mean_auc"] == 0.5
    assert abs(np.mean(told["shuffled_mean_auc"]) - 0.5) < 0.15
    with pytest.raises(ValueError, match="no object"):
        probe_evidence(cards[:9], None, present[:9], seed=0)


def test_categories_against_shuffled_labels() -> None:
    present = [["cat"]] * 12 + [["dog"]] * 10 + [["cat", "dog"]] * 5 + [["cup"]] * 2
    names, rows, labels = by_category(present, categories=2)
    assert names == ["cat", "dog"]
    assert rows.tolist() == list(range(22))
    source = np.random.default_rng(5)
    cards = source.normal(size=(29, 8))
    cards[:12, 0] += 3
    found = category_evidence(cards, present, 0, permutations=99)
    rows, labels = found["rows"], found["labels"]
    unit = cards[rows] / np.linalg.norm(cards[rows], axis=1, keepdims=True)
    assert found["silhouette"] == pytest.approx(slow_silhouette(1 - unit @ unit.T, labels))
    assert found["p_value"] == pytest.approx(0.01)
    with pytest.raises(ValueError, match="fewer than two"):
        by_category([["cat"]] * 30)
