"""Directions and clusters against slow, direct computations."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rudder_hf.analyze import geometry
from tests.support.analyzing import slow_silhouette


@pytest.fixture
def sklearn() -> Any:
    return pytest.importorskip("sklearn", reason="scikit-learn, of the extra plots, is not installed")


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
    found = geometry.rotation_numbers(text, image, np.full(4, 2.0))
    assert found["rotation_degrees"]["values"] == pytest.approx([45] * 4, abs=1e-4)
    assert found["alignment_gain"]["mean"] == pytest.approx(1 - math.sqrt(0.5), abs=1e-6)
    assert found["gain_minus_one_minus_cos"] < 1e-12
    assert found["distinct_text_only"] == 1
    assert found["common_rotation_degrees"] == pytest.approx(0, abs=1e-4)
    pairs = [math.degrees(math.acos(a @ b / 2)) for a, b in combinations(image, 2)]
    assert sorted(found["between_images_degrees"]["values"]) == pytest.approx(sorted(pairs))


@pytest.mark.usefixtures("sklearn")
def test_silhouette_and_distances() -> None:
    source = np.random.default_rng(1)
    points, labels = source.normal(size=(25, 60)), source.integers(0, 3, 25)
    slow, turned = (
        np.asarray([[np.linalg.norm(a - b) for b in rows] for a in rows])
        for rows in (points, geometry.rotated(points))
    )
    assert turned == pytest.approx(slow, abs=1e-6)
    assert geometry.rotated(points).shape[1] <= 25
    assert geometry.silhouette(slow, labels) == pytest.approx(slow_silhouette(slow, labels.tolist()))


@pytest.mark.usefixtures("sklearn")
def test_clusters_are_found_where_there_are_some() -> None:
    source = np.random.default_rng(2)
    sizes, middles = (30, 20, 10), 8 * np.eye(3, 20)
    points = np.concatenate([m + source.normal(size=(n, 20)) for n, m in zip(sizes, middles, strict=True)])
    scores, labels = geometry.best_clusters(points)
    assert max(scores, key=scores.get) == 3  # type: ignore[arg-type]
    assert np.bincount(labels).tolist() == list(sizes)
    assert max(scores.values()) > max(geometry.without_clusters(points)) + 0.1
    found = geometry.cluster_numbers(points, {"gate": np.arange(60.0)})
    assert [c["n"] for c in found["clusters"]] == list(sizes)
    assert found["clusters"][1]["gate"]["mean"] == pytest.approx(np.arange(30, 50).mean())
    with pytest.raises(ValueError, match="too few"):
        geometry.best_clusters(np.zeros((10, 4)))


@pytest.mark.usefixtures("sklearn")
def test_tsne_is_seeded() -> None:
    points = np.random.default_rng(6).normal(size=(12, 30))
    assert np.array_equal(geometry.tsne(points, 3), geometry.tsne(points, 3))
    assert geometry.tsne(points, 3).shape == (12, 2)
    with pytest.raises(ValueError, match="too few"):
        geometry.tsne(np.ones((12, 30)))
