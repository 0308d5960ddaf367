"""A whole benchmark: the goals that RUDDER meets on every machine, the report file, its table."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rudder_hf.benchmark import (
    BenchmarkModel,
    BenchmarkReport,
    BenchmarkSettings,
    new_result_file,
    run_benchmark,
)
from rudder_hf.benchmark.report import Case
from rudder_hf.benchmark.table import cost_table, notes
from rudder_hf.core.generate import HANDLE_NAME
from rudder_hf.methods import NAMES
from rudder_hf.metrics.errors import InputError
from tests.support.evaluating import damage
from tests.support.toy import random_prompt, toy_model

SETTINGS = BenchmarkSettings(new_tokens=3, rounds=2, warmup=1, prompt_tokens=24)


@functools.cache
def tiny() -> BenchmarkModel:
    """One tiny model for all tests of this file; none of them changes it."""
    return BenchmarkModel.of("toy", toy_model(), random_prompt(24), SETTINGS)


@functools.cache
def tiny_report() -> BenchmarkReport:
    """One whole benchmark of the tiny model, with every method."""
    return run_benchmark(tiny(), SETTINGS, NAMES)


def tiny_case() -> Case:
    return tiny_report().cases[0]


@pytest.mark.slow
def test_every_method_has_costs() -> None:
    assert {cost.method for cost in tiny_case().costs} == set(NAMES)


def test_rudder_adds_few_operators_and_no_forward() -> None:
    vanilla = tiny_case().cost("vanilla")
    for name, most in (("rudder-beta", 12), ("rudder-add", 1)):
        cost = tiny_case().cost(name)
        assert 1 <= cost.operators_per_token - vanilla.operators_per_token == len(cost.added_operators) <= most
        assert cost.forwards_per_token == cost.prompt_forwards == 1.0
    assert vanilla.added_operators == []


def test_every_round_runs_every_method_once() -> None:
    runs = [run for run in tiny_case().runs if run.decoding == "greedy"]
    for index in range(SETTINGS.rounds):
        assert sorted(run.method for run in runs if run.round == index) == sorted(NAMES)
    assert len(runs) == SETTINGS.rounds * len(NAMES)


def test_nothing_stays_on_the_model() -> None:
    tiny_report()
    for module in tiny().model.modules():
        hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
        assert not [hook for hook in hooks if hook.__module__.startswith("rudder_hf")]
        assert HANDLE_NAME not in vars(module)


def test_report_survives_json(tmp_path: Path) -> None:
    path = tiny_report().save(tmp_path / "new folder" / "result.json")
    assert BenchmarkReport.load(path) == tiny_report()
    record = json.loads(path.read_text())
    assert record["versions"]["torch"] == torch.__version__
    assert record["hardware"]["cpu_count"] >= 1
    assert record["settings"]["rounds"] == SETTINGS.rounds
    path.write_text('{"format": "rudder-benchmark-1"}')
    with pytest.raises(ValueError, match="not a report of rudder benchmark"):
        BenchmarkReport.load(path)


def test_a_damaged_report_is_named(tmp_path: Path) -> None:
    path = tiny_report().save(tmp_path / "result.json")
    damage(path, ["cases", 0, "costs", 1, "method"], 3)
    with pytest.raises(InputError, match=r"result.json is damaged: cases\[0\]\.costs\[1\]\.method is 3, .* a text"):
        BenchmarkReport.load(path)


def test_results_are_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    assert new_result_file(path) == path
    path.write_text("precious")
    with pytest.raises(FileExistsError, match="choose another name"):
        tiny_report().save(path)
    with pytest.raises(FileExistsError, match="choose another name"):
        new_result_file(path)
    assert path.read_text() == "precious"
    for inside in (path / "inside.json", path / "inside"):
        with pytest.raises(InputError, match="is a file"):
            new_result_file(inside)
    numbered = [tiny_report().save(new_result_file(tmp_path)).name for _ in range(2)]
    assert numbered == ["rudder-benchmark-001.json", "rudder-benchmark-002.json"]


def test_the_table_has_a_row_for_each_method() -> None:
    table = cost_table(tiny_report())
    assert [row[2] for row in table.rows] == [cost.method for cost in tiny_case().costs]
    beta = dict(zip(table.headings, next(row for row in table.rows if row[2] == "rudder-beta"), strict=True))
    assert beta["Operators per token ↓"].endswith("(+12)")
    assert beta["Forwards per token ↓"] == "1.00"
    assert "rudder-add adds per token: add.Tensor" in "\n".join(notes(tiny_report()))


def test_memory_is_shown_where_it_was_measured() -> None:
    """On a CPU there is no column; with the allocator's statistics there is."""
    assert not [heading for heading in cost_table(tiny_report()).headings if "memory" in heading]
    (case,) = tiny_report().cases
    costs = [replace(cost, peak_bytes=3_000_000, peak_ratio=1.5) for cost in case.costs]
    shown = cost_table(replace(tiny_report(), cases=[replace(case, costs=costs)]))
    assert [row[shown.headings.index("Peak memory (/ vanilla) ↓")] for row in shown.rows] == ["3.0 MB (1.50)"] * len(
        costs
    )


@pytest.mark.parametrize("name", ["batch_size", "prompt_tokens"])
def test_settings_that_cannot_be_measured_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"`{name}` is 0"):
        BenchmarkSettings(**{name: 0})
