"""Bootstrap and permutation: equal to slow loops over drawn rows, right in size, indifferent to order."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rudder_hf.metrics import statistics
from rudder_hf.metrics.statistics import (
    Counts,
    Metric,
    compare,
    f1,
    interval,
    ratio,
    share,
)
from rudder_hf.runtime.errors import InputError

RATE = Metric("rate", "Rate", share("hits", "tries"), True)
HARMONIC = Metric("f1", "F1", lambda s: f1(ratio(s["hits"], s["tries"]), ratio(s["hits"], s["hits"] + 1)), True)
METRICS = (RATE, HARMONIC)


def table(values: np.ndarray) -> Counts:
    return Counts(tuple(f"image {n}" for n in range(len(values))), ("hits", "tries"), values.astype(float))


def random_table(seed: int, size: int = 12) -> Counts:
    random = np.random.default_rng(seed)
    tries = random.integers(0, 5, size)
    return table(np.stack([random.integers(0, tries + 1), tries], axis=1))


def slow_rate(rows: list[np.ndarray]) -> float:
    hits, tries = sum(row[0] for row in rows), sum(row[1] for row in rows)
    return hits / tries if tries else 0.0


def test_intervals_equal_a_loop_over_drawn_samples() -> None:
    left, right = random_table(0), random_table(1)
    drawn = np.random.default_rng(7).integers(12, size=(300, 12))  # one block: the same draws
    rates = [slow_rate([left.values[i] for i in rows]) for rows in drawn]
    found = interval(left, METRICS, samples=300, seed=7)["rate"]
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(rates, (0.025, 0.975))))
    order = sorted(left.ids)  # draws do not depend on the order in which a run has its samples
    first, second = ([run.values[run.ids.index(name)] for name in order] for run in (left, right))
    differences = [slow_rate([second[i] for i in rows]) - slow_rate([first[i] for i in rows]) for rows in drawn]
    both = compare(left, right, METRICS, samples=300, seed=7)["rate"]
    assert (both.low, both.high) == pytest.approx(tuple(np.quantile(differences, (0.025, 0.975))))


def test_p_values_approach_the_exact_permutation_test() -> None:
    left, right = random_table(2, 8), random_table(3, 8)
    observed = abs(slow_rate(list(right.values)) - slow_rate(list(left.values)))
    extreme = 0
    for swaps in product((False, True), repeat=8):
        one = [b if swap else a for a, b, swap in zip(left.values, right.values, swaps, strict=True)]
        two = [a if swap else b for a, b, swap in zip(left.values, right.values, swaps, strict=True)]
        extreme += abs(slow_rate(two) - slow_rate(one)) >= observed - 1e-12
    found = compare(left, right, METRICS, samples=20_000)["rate"].p_value
    assert found == pytest.approx(extreme / 2**8, abs=0.015)


def test_blocks_bound_the_memory_and_every_draw_has_all_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "_BLOCK_ENTRIES", 50)
    blocks = list(statistics.bootstrap_weights(12, 101, seed=0))
    assert all(block.size <= 50 for block in blocks)
    weights = np.concatenate(blocks)
    assert weights.shape == (101, 12)
    assert (weights.sum(1) == 12).all()


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10_000), st.randoms())
def test_order_changes_nothing_and_swapping_changes_the_sign(seed: int, random: object) -> None:
    left, right = random_table(seed), random_table(seed + 1)
    ids = list(left.ids)
    random.shuffle(ids)  # type: ignore[attr-defined]
    found = compare(left, right, METRICS, samples=200)
    assert compare(left.ordered(ids), right, METRICS, samples=200) == found
    back = compare(right, left, METRICS, samples=200)
    for name, difference in found.items():
        assert back[name].value == pytest.approx(-difference.value)
        assert (back[name].low, back[name].high) == pytest.approx((-difference.high, -difference.low))
        assert 1 / 201 <= difference.p_value <= 1
        assert difference.low <= difference.high


def test_a_p_value_is_never_0() -> None:
    """No permutation drawn is as extreme as what was observed, which counts as one all the same."""
    never, always = (table(np.stack([np.full(40, hit), np.ones(40)], axis=1)) for hit in (0, 1))
    assert compare(never, always, METRICS, samples=200)["rate"].p_value == pytest.approx(1 / 201)


def test_joined_counts_follow_the_samples() -> None:
    left = random_table(0)
    other = Counts(left.ids[::-1], ("length",), np.arange(12.0)[:, None])
    assert left.joined(other).values[:, 2].tolist() == list(range(11, -1, -1))
    with pytest.raises(InputError, match="both counts have the columns hits"):
        left.joined(random_table(1))


def test_what_cannot_be_compared_is_refused() -> None:
    left = random_table(0)
    with pytest.raises(InputError, match=r"do not have the same samples: 1 are in one only \(image 11\)"):
        compare(left, random_table(0, 11), METRICS)
    with pytest.raises(InputError, match="different things"):
        compare(left, Counts(left.ids, ("hits", "runs"), left.values), METRICS)
    with pytest.raises(InputError, match="samples counted twice: a"):
        Counts(("a", "a"), ("hits",), np.zeros((2, 1)))
    with pytest.raises(InputError, match="do not fit"):
        Counts(("a",), ("hits",), np.zeros((2, 1)))
    with pytest.raises(InputError, match="no sample"):
        interval(table(np.zeros((0, 2))), METRICS)
    with pytest.raises(InputError, match="at least one"):
        interval(left, METRICS, samples=0)
