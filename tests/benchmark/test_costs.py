"""Costs of decoding methods against vanilla's: counts are exact, timing is fair; the report file and its table."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rudder_hf.benchmark import BenchmarkReport, CostSettings, run_benchmark
from rudder_hf.benchmark.costs import (
    Bench,
    Run,
    count_forwards,
    measure_costs,
    paired_ratios,
    round_orders,
    summarize,
)
from rudder_hf.benchmark.report import Case, check_new_file, cost_table, notes
from rudder_hf.core.backbones import find_backbone
from rudder_hf.methods import NAMES, get
from rudder_hf.runtime.errors import InputError
from rudder_hf.runtime.models import LoadedModel
from tests.support.evaluating import damage
from tests.support.helpers import OTHER_ROW, ROW
from tests.support.methods import IDS, batch, built, method
from tests.support.toy import random_prompt, toy_model

NEW = 5
TOY = toy_model()
# Decoder forwards for a token after the first: the main branch, and those that a second branch adds.
EXPECTED = {"vcd": 2.0, "pai": 2.0}
SETTINGS = CostSettings(new_tokens=3, rounds=2, warmup=1)


def test_costs_against_vanilla() -> None:
    methods = {name: method(name) for name in ("vanilla", "vcd", "rudder-beta")}
    inputs = batch("llava", [ROW, OTHER_ROW])
    costs, runs = measure_costs(built("llava"), methods, inputs, CostSettings(new_tokens=NEW, rounds=2, warmup=0))
    again, _ = measure_costs(built("llava"), methods, inputs, CostSettings(new_tokens=NEW, rounds=1, warmup=0))
    assert [cost.operators_per_token for cost in again] == [cost.operators_per_token for cost in costs]
    vanilla, vcd, rudder = costs
    assert [cost.method for cost in costs] == list(methods)
    assert (vanilla.forwards_per_token, vcd.forwards_per_token, rudder.forwards_per_token) == (1.0, 2.0, 1.0)
    assert (vanilla.prompt_forwards, vcd.prompt_forwards, rudder.prompt_forwards) == (1.0, 2.0, 1.0)
    assert rudder.operators_per_token - vanilla.operators_per_token == 12
    assert vcd.operators_per_token > 1.8 * vanilla.operators_per_token
    assert vcd.ratio is not None
    assert 0 < vcd.ratio.interval[0] <= vcd.ratio.median <= vcd.ratio.interval[1]
    assert vanilla.ratio is None
    assert vcd.peak_bytes is vcd.peak_ratio is None  # not on a CPU
    assert sorted((run.round, run.method) for run in runs) == sorted((n, name) for n in range(2) for name in methods)
    seconds = [run.seconds for run in runs if run.method == "vanilla"]
    assert vanilla.ms_per_token == pytest.approx(1e3 * sum(seconds) / 2 / (2 * NEW))  # of each of two rows
    with pytest.raises(ValueError, match="vanilla"):
        measure_costs(built("llava"), {"vcd": method("vcd")}, inputs)


@pytest.mark.parametrize(("name", "least"), [("new_tokens", 2), ("rounds", 1), ("warmup", 0)])
def test_settings_that_cannot_be_measured_are_refused(name: str, least: int) -> None:
    with pytest.raises(ValueError, match=f"`{name}` is {least - 1}"):
        CostSettings(**{name: least - 1})


# Counts


def counted_forwards(name: str, family: str, beams: int) -> tuple[int, int, int, int]:
    """Prompt and answer positions as counted; by an independent hook on the last layer all positions, and prefills."""
    model, inputs = built(family), batch(family)
    seen = [0, 0]

    def note(module: Any, args: Any, output: Any) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        seen[0] += hidden.shape[0] * hidden.shape[1]
        seen[1] += hidden.shape[1] > 1

    backbone = find_backbone(model)
    handle = backbone.layers[-1].register_forward_hook(note)
    try:
        with method(name).applied(model) as generate, count_forwards(backbone) as found:
            generate(
                **inputs, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, num_beams=beams, sample_ids=IDS
            )
    finally:
        handle.remove()
    return found["prompt"], found["answer"], seen[0], seen[1]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("beams", [1, 2])
def test_forwards_per_token_are_what_each_method_says(name: str, beams: int) -> None:
    prompt, answer, everything, prefills = counted_forwards(name, "llava", beams)
    rows = 2 * beams
    assert prompt + answer == everything
    assert answer == EXPECTED.get(name, 1.0) * rows * (NEW - 1)
    assert method(name).forwards_per_token == EXPECTED.get(name, 1.0)
    length = batch("llava")["input_ids"].shape[1]
    extra = method(name).extra_prefills
    assert prefills == 1 + extra
    # Side prompts may be shorter (without image), and VISTA's are not repeated for each beam.
    assert prompt >= rows * length
    assert (prompt > rows * length) == (extra > 0)
    if name == "vcd":
        assert prompt == 2 * rows * length


@pytest.mark.parametrize("family", ["instructblip", "qwen2_5_vl"])
def test_forwards_are_counted_where_another_module_runs_the_loop(family: str) -> None:
    for name, factor in (("vanilla", 1), ("vcd", 2)):
        prompt, answer, everything, _ = counted_forwards(name, family, 1)
        assert (answer, prompt + answer) == (factor * 2 * (NEW - 1), everything)


# Timing


def test_answers_have_the_length_that_is_timed() -> None:
    inputs = random_prompt(24)
    with Bench(TOY, inputs, 2).opened(get("vanilla")) as answer:
        first = int(answer()[0, 24])
    TOY.generation_config.eos_token_id = first
    try:
        with Bench(TOY, inputs, NEW).opened(get("vanilla")) as answer:
            assert answer().shape[1] == 24 + NEW
        assert TOY.generation_config.eos_token_id == first
    finally:
        TOY.generation_config.eos_token_id = None


def test_ratios_are_paired_by_round_and_summarized_with_their_spread() -> None:
    times = {"vanilla": [1.0, 2.0, 8.0], "rudder-beta": [2.0, 2.0, 10.0]}
    runs = [Run(index, name, seconds) for name, row in times.items() for index, seconds in enumerate(row)]
    assert paired_ratios(runs, "rudder-beta") == [0.5, 1.0, 0.8]
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


# The report


@functools.cache
def tiny_report() -> BenchmarkReport:
    """One whole benchmark of a tiny model, with every method."""
    return run_benchmark(LoadedModel("toy", TOY, None, {}, "none"), SETTINGS, NAMES, inputs=random_prompt(24))


def tiny_case() -> Case:
    return tiny_report().cases[0]


def test_every_method_is_measured_in_every_round() -> None:
    assert {cost.method for cost in tiny_case().costs} == set(NAMES)
    for index in range(SETTINGS.rounds):
        assert sorted(run.method for run in tiny_case().runs if run.round == index) == sorted(NAMES)
    assert len(tiny_case().runs) == SETTINGS.rounds * len(NAMES)


def test_report_survives_json_is_never_overwritten_and_damage_is_named(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "result.json"
    check_new_file(path)
    tiny_report().save(path)
    for refused in (check_new_file, tiny_report().save):
        with pytest.raises(FileExistsError, match="choose another name"):
            refused(path)
    with pytest.raises(InputError, match="is a file"):
        check_new_file(path / "inside.json")
    assert BenchmarkReport.load(path) == tiny_report()
    record = json.loads(path.read_text())
    assert record["versions"]["torch"] == torch.__version__
    assert record["hardware"]["cpu_count"] >= 1
    assert record["settings"]["rounds"] == SETTINGS.rounds
    damage(path, ["cases", 0, "costs", 1, "method"], 3)
    with pytest.raises(InputError, match=r"result.json is damaged: cases\[0\]\.costs\[1\]\.method is 3, .* a text"):
        BenchmarkReport.load(path)
    path.write_text('{"format": "rudder-benchmark-1"}')
    with pytest.raises(ValueError, match="not a report of rudder benchmark"):
        BenchmarkReport.load(path)


def test_the_table_has_a_row_for_each_method_and_memory_where_it_was_measured() -> None:
    table = cost_table(tiny_report())
    assert [row[1] for row in table.rows] == [cost.method for cost in tiny_case().costs]
    beta = dict(zip(table.headings, next(row for row in table.rows if row[1] == "rudder-beta"), strict=True))
    assert beta["Operators per token ↓"].endswith("(+12)")
    assert beta["Forwards per token ↓"] == "1.00"
    assert "prompt of 24 tokens" in "\n".join(notes(tiny_report()))
    # On a CPU there is no column; with the allocator's statistics there is.
    assert not [heading for heading in table.headings if "memory" in heading]
    costs = [replace(cost, peak_bytes=3_000_000, peak_ratio=1.5) for cost in tiny_case().costs]
    shown = cost_table(replace(tiny_report(), cases=[replace(tiny_case(), costs=costs)]))
    assert {row[shown.headings.index("Peak memory (/ vanilla) ↓")] for row in shown.rows} == {"3.0 MB (1.50)"}
