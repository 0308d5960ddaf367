"""Costs of decoding methods: forwards are counted exactly, bytes include side branches, ratios are paired."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rudder_hf.benchmark import SHAPES, BenchmarkSettings, shape_subject
from rudder_hf.benchmark.costs import (
    CostReport,
    CostRun,
    CostSettings,
    measure_costs,
    ratios_to_vanilla,
    shuffled_orders,
)
from rudder_hf.benchmark.forwards import count_forwards
from rudder_hf.benchmark.methods import method_costs
from rudder_hf.compare.table import costs_markdown
from rudder_hf.core.backbones import find_backbone
from rudder_hf.methods import NAMES
from tests.support.helpers import OTHER_ROW, ROW
from tests.support.methods import IDS, batch, built, method

NEW = 5
# Decoder forwards for a token after the first: the main branch, and those that a second branch adds.
EXPECTED = {"vcd": 2.0, "pai": 2.0}


def counted(name: str, family: str, beams: int, **changes: Any) -> tuple[int, int, int]:
    """Prompt and answer positions as counted, and all positions by an independent hook: outputs of the last layer."""
    model, inputs = built(family), batch(family)
    seen = [0]

    def note(module: Any, args: Any, output: Any) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        seen[0] += hidden.shape[0] * hidden.shape[1]

    backbone = find_backbone(model)
    handle = backbone.layers[-1].register_forward_hook(note)
    try:
        with method(name, **changes).applied(model) as generate, count_forwards(backbone) as count:
            generate(
                **inputs, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, num_beams=beams, sample_ids=IDS
            )
    finally:
        handle.remove()
    return count.prompt, count.answer, seen[0]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "opera"])
@pytest.mark.parametrize("beams", [1, 2])
def test_forwards_per_token_are_what_each_method_says(name: str, beams: int) -> None:
    prompt, answer, everything = counted(name, "llava", beams)
    rows = 2 * beams
    assert prompt + answer == everything
    assert answer == EXPECTED.get(name, 1.0) * rows * (NEW - 1)
    assert method(name).forwards_per_token == EXPECTED.get(name, 1.0)
    length = batch("llava")["input_ids"].shape[1]
    extra = method(name).extra_prefills
    # Side prompts may be shorter (without image), and VISTA's are not repeated for each beam.
    assert prompt >= rows * length
    assert (prompt > rows * length) == (extra > 0)
    if name == "vcd":
        assert prompt == 2 * rows * length


@pytest.mark.parametrize("family", ["instructblip", "qwen2_5_vl"])
def test_forwards_are_counted_where_another_module_runs_the_loop(family: str) -> None:
    for name, factor in (("vanilla", 1), ("vcd", 2)):
        prompt, answer, everything = counted(name, family, 1)
        assert (answer, prompt + answer) == (factor * 2 * (NEW - 1), everything)


def test_opera_forwards_each_candidate_of_each_beam() -> None:
    candidates, beams = 3, 2
    _, answer, everything = counted("opera", "llava", beams, candidates=candidates, threshold=None)
    # Candidates before each token, and every token but the last.
    assert answer == 2 * beams * (candidates * NEW + NEW - 1)
    assert everything > answer


def test_costs_against_vanilla() -> None:
    methods = {name: method(name) for name in ("vanilla", "vcd", "rudder-beta", "opera")}
    inputs = {name: value[:1] for name, value in batch("llava", [ROW, OTHER_ROW]).items()}
    settings = CostSettings(new_tokens=NEW, rounds=2, warmup=0, num_beams=2)
    wanted = {"greedy": list(methods), "beam": ["opera"]}
    costs, runs = measure_costs(built("llava"), methods, inputs, wanted, settings)
    found = {(cost.decoding, cost.method): cost for cost in costs}
    assert list(found) == [
        *(("greedy", name) for name in methods),
        *(("beam", "vanilla"), ("beam", "opera")),
    ]
    assert "beam search" in found["greedy", "opera"].refusal
    assert found["greedy", "opera"].ratio is None
    vanilla, vcd, rudder = (found["greedy", name] for name in ("vanilla", "vcd", "rudder-beta"))
    assert (vanilla.forwards_per_token, vcd.forwards_per_token, rudder.forwards_per_token) == (1.0, 2.0, 1.0)
    assert (vanilla.prompt_forwards, vcd.prompt_forwards, rudder.prompt_forwards) == (1.0, 2.0, 1.0)
    # The second branch keeps keys and values of all positions but the last, of four layers, in float32.
    config = built("llava").config.get_text_config()
    positions = inputs["input_ids"].shape[1] + NEW - 1
    head = config.hidden_size // config.num_attention_heads
    cache = 2 * 4 * positions * config.num_hidden_layers * config.num_key_value_heads * head
    assert vcd.peak_bytes - vanilla.peak_bytes >= cache
    assert 0 < vcd.ratio.interval[0] <= vcd.ratio.median <= vcd.ratio.interval[1]
    assert {(run.round, run.decoding) for run in runs} == {(n, d) for n in range(2) for d in ("greedy", "beam")}
    assert len(runs) == 2 * 3 + 2 * 2


def test_memory_is_the_same_in_every_run() -> None:
    methods = {name: method(name) for name in ("vanilla", "pai")}
    settings = CostSettings(new_tokens=3, rounds=1, warmup=0)
    peaks = [
        [
            c.peak_bytes
            for c in measure_costs(built("llava"), methods, batch("llava"), {"greedy": ["pai"]}, settings)[0]
        ]
        for _ in range(2)
    ]
    assert peaks[0] == peaks[1]


def test_vanilla_is_needed_and_decodings_are_known() -> None:
    with pytest.raises(ValueError, match="vanilla"):
        measure_costs(built("llava"), {"vcd": method("vcd")}, batch("llava"), {"greedy": ["vcd"]})
    with pytest.raises(ValueError, match="nucleus"):
        measure_costs(built("llava"), {"vanilla": method("vanilla")}, batch("llava"), {"nucleus": []})
    with pytest.raises(ValueError, match="new_tokens"):
        CostSettings(new_tokens=1)


@given(st.integers(1, 30), st.integers(0, 100), st.integers(1, 17))
def test_orders_are_fair(rounds: int, seed: int, count: int) -> None:
    names = [f"method {number}" for number in range(count)]
    orders = shuffled_orders(rounds, seed, names)
    assert len(orders) == rounds
    assert all(sorted(order) == sorted(names) for order in orders)
    # Over two rounds everyone has the same mean place.
    assert all(orders[n + 1] == orders[n][::-1] for n in range(0, rounds - 1, 2))


def test_ratios_are_taken_within_rounds() -> None:
    times = {"vanilla": [1.0, 10.0], "vcd": [2.0, 25.0]}
    runs = [CostRun(n, name, "greedy", value, 1.0) for name, row in times.items() for n, value in enumerate(row)]
    assert ratios_to_vanilla(runs, "vcd") == [0.5, 0.4]
    assert ratios_to_vanilla(runs, "vcd", "cpu_seconds") == [1.0, 1.0]


def test_every_method_has_costs_on_a_benchmark_shape(tmp_path: Any) -> None:
    settings = BenchmarkSettings(new_tokens=3, rounds=1, warmup=0, prompt_tokens=24)
    report = method_costs(NAMES, shape_subject(SHAPES["tiny"], settings), settings)
    assert {cost.method for cost in report.costs} == set(NAMES)
    assert not [cost for cost in report.costs if cost.refusal]
    assert {cost.method for cost in report.costs if cost.decoding == "beam"} == {"vanilla", "opera"}
    path = tmp_path / "costs.json"
    path.write_text(report.to_json())
    assert CostReport.load(path) == report
    table = costs_markdown(report)
    assert all(f"| {name} |" in table for name in NAMES)
    path.write_text("{}")
    with pytest.raises(ValueError, match="no costs"):
        CostReport.load(path)


def test_the_model_is_as_before() -> None:
    model, inputs = built("llava"), batch("llava")
    before = model.generate(**inputs, max_new_tokens=4, do_sample=False)
    hooks = sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())
    end = model.generation_config.eos_token_id
    methods = {name: method(name) for name in ("vanilla", "vista")}
    measure_costs(model, methods, inputs, {"greedy": ["vista"]}, CostSettings(3, 1, 0))
    assert model.generation_config.eos_token_id == end
    assert hooks == sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
    torch.testing.assert_close(model.generate(**inputs, max_new_tokens=4, do_sample=False), before)
