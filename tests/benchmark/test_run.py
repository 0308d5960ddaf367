"""A whole benchmark: the goals that RUDDER meets on every machine, the report file, its table."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rudder_hf.benchmark import (
    SHAPES,
    BenchmarkModel,
    BenchmarkReport,
    BenchmarkSettings,
    benchmark_model,
    new_result_file,
    run_benchmark,
)
from rudder_hf.benchmark.counting import Ledger, count
from rudder_hf.benchmark.models import random_prompt
from rudder_hf.benchmark.report import Case
from rudder_hf.benchmark.table import cost_table, notes
from rudder_hf.benchmark.timing import Bench, garbage_collector_off
from rudder_hf.core.backbones import attention_update, find_backbone
from rudder_hf.core.generate import HANDLE_NAME
from rudder_hf.core.steering import POOL_CHUNK
from rudder_hf.methods import NAMES, Generate, Method, get
from rudder_hf.metrics.errors import InputError
from tests.support.evaluating import damage

SETTINGS = BenchmarkSettings(new_tokens=3, rounds=2, warmup=1, prompt_tokens=24)
WIDTH = SHAPES["tiny"].hidden_size


@functools.cache
def tiny() -> BenchmarkModel:
    """One tiny model for all tests of this file; none of them changes it."""
    return benchmark_model(SHAPES["tiny"], SETTINGS)


@functools.cache
def tiny_report() -> BenchmarkReport:
    """One whole benchmark of the tiny model, with every method."""
    return run_benchmark([tiny], SETTINGS, NAMES)


def tiny_case() -> Case:
    return tiny_report().cases[0]


@pytest.mark.slow
def test_every_method_has_costs() -> None:
    assert {cost.method for cost in tiny_case().costs} == set(NAMES)
    assert not [cost for cost in tiny_case().costs if cost.refusal]
    assert [cost.method for cost in tiny_case().costs if cost.decoding == "beam"] == ["vanilla", "opera"]


def test_rudder_adds_few_operators_and_no_forward() -> None:
    vanilla = tiny_case().cost("vanilla")
    for name, most in (("rudder-beta", 12), ("rudder-add", 1)):
        cost = tiny_case().cost(name)
        assert cost.operators_per_token is not None
        assert vanilla.operators_per_token is not None
        assert 1 <= cost.operators_per_token - vanilla.operators_per_token == len(cost.added_operators) <= most
        assert cost.forwards_per_token == cost.prompt_forwards == 1.0
    assert vanilla.added_operators == []


def test_every_round_runs_every_method_once() -> None:
    runs = [run for run in tiny_case().runs if run.decoding == "greedy"]
    for index in range(SETTINGS.rounds):
        assert sorted(run.method for run in runs if run.round == index) == sorted(set(NAMES) - {"opera"})
    assert len(runs) == SETTINGS.rounds * (len(NAMES) - 1)


def padded_bench(length: int) -> Bench:
    """A prompt whose first positions are masked, as in a batch: without a mask RUDDER has less to do."""
    inputs = random_prompt(tiny().model, length)
    inputs["attention_mask"][:, :4] = 0
    return Bench(tiny().model, inputs, new_tokens=4)


def extra_memory(method: Method, length: int) -> tuple[int, int]:
    """Bytes kept and bytes at the peak, beyond vanilla's."""
    with garbage_collector_off():
        own, vanilla = (count(padded_bench(length), each) for each in (method, get("vanilla")))
    return own.kept - vanilla.kept, own.peak - vanilla.peak


@pytest.mark.parametrize("name", ["rudder-beta", "rudder-add"])
def test_rudder_keeps_a_few_vectors_whatever_the_prompt(name: str) -> None:
    # Both prompts are longer than the span that is pooled at a time.
    short, long = (extra_memory(get(name, config=tiny().config), length) for length in (520, 600))
    assert short == long
    assert WIDTH * 4 <= short[0] <= 4 * WIDTH * 4 + 256
    assert tiny_case().cost(name).kept_bytes == short[0]


def test_rudder_reads_the_prompt_in_pieces() -> None:
    """For a moment it needs as much as the positions that are pooled at a time, not as the whole prompt."""
    model, ledger, seen = tiny().model, Ledger(), []
    update = attention_update(find_backbone(model).layers[tiny().config.layer]).module

    def before(module: nn.Module, args: Any, output: Any) -> None:
        seen.append(ledger.live)
        ledger.peak = ledger.live

    def after(module: nn.Module, args: Any, output: Any) -> None:
        seen.append(ledger.peak)

    # Hooks run in the order in which they were registered: RUDDER's comes between these two.
    first = update.register_forward_hook(before)
    with get("rudder-beta", config=tiny().config).applied(model) as generate:
        second = update.register_forward_hook(after)
        with ledger:
            generate(**random_prompt(model, 4 * POOL_CHUNK), max_new_tokens=1, do_sample=False)
    first.remove()
    second.remove()
    assert 0 < seen[1] - seen[0] < 1.2 * POOL_CHUNK * WIDTH * 4


@dataclass(frozen=True)
class Hoarder(Method):
    """A stand-in for a method that keeps the updates of all prompt positions."""

    name = "hoarder"

    @contextmanager
    def applied(self, model: Any) -> Iterator[Generate]:
        hoard = []

        def keep(module: nn.Module, args: Any, output: Any) -> None:
            hoard.append(output[0] * 1.0)

        handle = model.get_decoder().layers[3].self_attn.register_forward_hook(keep)
        yield lambda sample_ids, **kwargs: model.generate(**kwargs)
        handle.remove()


def test_memory_that_grows_with_the_prompt_is_seen() -> None:
    (short, _), (long, _) = (extra_memory(Hoarder(), length) for length in (24, 30))
    assert long - short == 6 * WIDTH * 4


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


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (["cases"], None, "cases is null, but has to be a list"),
        (["cases", 0, "costs", 1, "method"], 3, r"cases\[0\]\.costs\[1\]\.method is 3, but has to be a text"),
        (["cases", 0, "costs", 1, "ratio"], 0.9, "ratio is 0.9, but has to be an object or null"),
        (["cases", 0, "runs", 0, "seconds"], ..., r"runs\[0\] lacks seconds"),
    ],
)
def test_a_damaged_report_is_named(tmp_path: Path, place: list[str | int], value: object, words: str) -> None:
    path = tiny_report().save(tmp_path / "result.json")
    damage(path, place, value)
    with pytest.raises(InputError, match=f"result.json is damaged: .*{words}"):
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


@pytest.mark.parametrize("name", ["batch_size", "prompt_tokens"])
def test_settings_that_cannot_be_measured_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"`{name}` is 0"):
        BenchmarkSettings(**{name: 0})
