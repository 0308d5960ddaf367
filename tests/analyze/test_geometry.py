"""Angles between directions against slow, direct computations."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rudder_hf.analyze import geometry

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


def test_geometry_of_known_vectors() -> None:
    text = np.tile([[1.0, 0.0, 0.0]], (4, 1))
    image = np.asarray([[1.0, 1, 0], [1, 0, 1], [1, -1, 0], [1, 0, -1]])
    found = geometry.geometry_numbers(text, image)
    assert (found["rotation"]["mean"], found["rotation"]["n"]) == (pytest.approx(45), 4)
    assert found["rotation"]["interval"] == pytest.approx([45, 45])
    assert found["alignment_gain"] == pytest.approx(1 - math.sqrt(0.5))
    assert found["common_rotation"] == pytest.approx(0, abs=1e-6)
    pairs = [math.degrees(math.acos(a @ b / 2)) for a, b in combinations(image, 2)]
    assert found["between_images"]["mean"] == pytest.approx(np.mean(pairs))
    assert sum(found["between_images"]["histogram"]) == len(pairs) == 6
    assert sum(found["rotation"]["histogram"]) == 4
    without = geometry.geometry_numbers(None, image)
    assert "rotation" not in without
    assert without["between_images"]["n"] == 6
    assert "between_images" not in geometry.geometry_numbers(None, image[:1])
