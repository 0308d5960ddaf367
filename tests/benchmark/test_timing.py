"""Timing is fair: paired by round, in orders that favour no method."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rudder_hf.benchmark.timing import Run, paired_ratios, round_orders, summarize


def test_ratios_are_paired_by_round() -> None:
    times = {"vanilla": [1.0, 2.0, 8.0], "rudder-beta": [2.0, 2.0, 10.0]}
    runs = [
        Run(index, name, "greedy", seconds, 1.0 + index)
        for name, row in times.items()
        for index, seconds in enumerate(row)
    ]
    assert paired_ratios(runs, "rudder-beta") == [0.5, 1.0, 0.8]
    assert paired_ratios(runs, "rudder-beta", "cpu_seconds") == [1.0, 1.0, 1.0]


def test_ratios_are_summarized_with_their_spread() -> None:
    ratio = summarize([0.5, 1.0, 0.8])
    assert (ratio.median, ratio.low, ratio.high) == pytest.approx((0.8, 0.53, 0.98))
    assert 0.5 <= ratio.interval[0] <= ratio.median <= ratio.interval[1] <= 1.0
    assert summarize([0.5, 1.0, 0.8]) == ratio
    assert summarize([0.9]).interval == (0.9, 0.9)


@given(st.integers(1, 30), st.integers(0, 100), st.integers(1, 17))
def test_orders_are_fair(rounds: int, seed: int, count: int) -> None:
    names = [f"method {number}" for number in range(count)]
    orders = round_orders(rounds, seed, names)
    assert len(orders) == rounds
    assert all(sorted(order) == sorted(names) for order in orders)
    # Over two rounds every method has the same mean place.
    assert all(orders[n + 1] == orders[n][::-1] for n in range(0, rounds - 1, 2))
    assert orders == round_orders(rounds, seed, names)
