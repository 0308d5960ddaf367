"""Costs of decoding methods against vanilla's: counts are exact, timing is fair."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rudder_hf.benchmark.costs import CostSettings, measure_costs
from rudder_hf.benchmark.timing import Run, paired_ratios, round_orders, summarize
from tests.support.helpers import OTHER_ROW, ROW
from tests.support.methods import batch, built, method

NEW = 5


def test_costs_against_vanilla() -> None:
    methods = {name: method(name) for name in ("vanilla", "vcd", "rudder-beta")}
    inputs = {name: value[:1] for name, value in batch("llava", [ROW, OTHER_ROW]).items()}
    settings = CostSettings(new_tokens=NEW, rounds=2, warmup=0, num_beams=2)
    wanted = {"greedy": list(methods), "beam": ["rudder-beta"]}
    costs, runs = measure_costs(built("llava"), methods, inputs, wanted, settings)
    found = {(cost.decoding, cost.method): cost for cost in costs}
    assert list(found) == [
        *(("greedy", name) for name in methods),
        *(("beam", "vanilla"), ("beam", "rudder-beta")),
    ]
    vanilla, vcd, rudder = (found["greedy", name] for name in ("vanilla", "vcd", "rudder-beta"))
    assert (vanilla.forwards_per_token, vcd.forwards_per_token, rudder.forwards_per_token) == (1.0, 2.0, 1.0)
    assert (vanilla.prompt_forwards, vcd.prompt_forwards, rudder.prompt_forwards) == (1.0, 2.0, 1.0)
    assert rudder.operators_per_token - vanilla.operators_per_token == len(rudder.added_operators) == 12
    assert vcd.operators_per_token > 1.8 * vanilla.operators_per_token
    assert 0 < vcd.ratio.interval[0] <= vcd.ratio.median <= vcd.ratio.interval[1]
    assert vanilla.ratio is None
    assert vcd.peak_bytes is vcd.peak_ratio is None  # not on a CPU
    assert {(run.round, run.decoding) for run in runs} == {(n, d) for n in range(2) for d in ("greedy", "beam")}
    assert len(runs) == 2 * 3 + 2 * 2


def test_counts_are_the_same_in_every_run_and_the_model_is_as_before() -> None:
    model, inputs = built("llava"), batch("llava")
    before = model.generate(**inputs, max_new_tokens=4, do_sample=False)
    hooks = sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())
    end = model.generation_config.eos_token_id
    methods = {name: method(name) for name in ("vanilla", "pai", "vista")}
    few = CostSettings(new_tokens=3, rounds=1, warmup=0)
    counts = []
    for _ in range(2):
        costs, _ = measure_costs(model, methods, inputs, {"greedy": ["pai", "vista"]}, few)
        counts.append([(cost.operators_per_token, cost.prompt_forwards) for cost in costs])
    assert counts[0] == counts[1]
    assert model.generation_config.eos_token_id == end
    assert hooks == sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
    torch.testing.assert_close(model.generate(**inputs, max_new_tokens=4, do_sample=False), before)


def test_time_per_token_counts_all_rows() -> None:
    settings = CostSettings(new_tokens=NEW, rounds=1, warmup=0)
    (cost,), (run,) = measure_costs(
        built("llava"), {"vanilla": method("vanilla")}, batch("llava"), {"greedy": []}, settings
    )
    assert cost.ms_per_token == pytest.approx(1e3 * run.seconds / (2 * NEW))


def test_vanilla_is_needed_and_decodings_are_known() -> None:
    with pytest.raises(ValueError, match="vanilla"):
        measure_costs(built("llava"), {"vcd": method("vcd")}, batch("llava"), {"greedy": ["vcd"]})
    with pytest.raises(ValueError, match="nucleus"):
        measure_costs(built("llava"), {"vanilla": method("vanilla")}, batch("llava"), {"nucleus": []})


@pytest.mark.parametrize(("name", "least"), [("new_tokens", 2), ("rounds", 1), ("num_beams", 2)])
def test_settings_that_cannot_be_measured_are_refused(name: str, least: int) -> None:
    with pytest.raises(ValueError, match=f"`{name}` is {least - 1}"):
        CostSettings(**{name: least - 1})


# Timing


def test_ratios_are_paired_by_round() -> None:
    times = {"vanilla": [1.0, 2.0, 8.0], "rudder-beta": [2.0, 2.0, 10.0]}
    runs = [Run(index, name, "greedy", seconds) for name, row in times.items() for index, seconds in enumerate(row)]
    assert paired_ratios(runs, "rudder-beta") == [0.5, 1.0, 0.8]


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
