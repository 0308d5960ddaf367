"""The benchmark measures what it says: operators, forwards and bytes exactly, ratios by the book."""

from __future__ import annotations

import dataclasses
import functools
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from rudder_hf import RudderConfig, attach
from rudder_hf.benchmark import (
    SHAPES,
    BenchmarkReport,
    BenchmarkSettings,
    CaseResult,
    Subject,
    new_result_file,
    random_prompt,
    report_tables,
    run_benchmark,
    shape_subject,
)
from rudder_hf.benchmark.memory import StorageLedger, extra_memory
from rudder_hf.benchmark.operators import added_operators, count_operators
from rudder_hf.benchmark.runner import judge, ratio_verdict, variant_result
from rudder_hf.benchmark.timing import Ratio, Run, paired_ratios, round_orders, summarize
from rudder_hf.benchmark.variants import VARIANTS
from rudder_hf.core.generate import HANDLE_NAME
from rudder_hf.core.steering import POOL_CHUNK

SETTINGS = BenchmarkSettings(new_tokens=3, rounds=2, warmup=1, prompt_tokens=24, memory_prompts=(520, 600))
WIDTH = SHAPES["tiny"].hidden_size


@functools.cache
def tiny() -> Subject:
    """One tiny model for all tests of this file; none of them changes it."""
    return shape_subject(SHAPES["tiny"], SETTINGS)


@functools.cache
def tiny_report() -> BenchmarkReport:
    """One whole benchmark of the tiny model."""
    return run_benchmark([tiny], SETTINGS)


def tiny_case() -> CaseResult:
    return tiny_report().cases[0]


class Counter(TorchDispatchMode):
    """Counts all operators, by a way of its own: no hooks, no splitting."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def operators_of_one_token(mode: str | None) -> int:
    """What the last token of an answer of seven takes more than an answer of six."""
    model, totals = tiny().model, []
    for length in (6, 7):
        handle = None if mode is None else attach(model, RudderConfig(layer=3, alpha_max=1.0, mode=mode))
        with Counter() as counter:
            model.generate(**random_prompt(model, 24), max_new_tokens=length, do_sample=False)
        if handle is not None:
            handle.remove()
        totals.append(counter.count)
    return totals[1] - totals[0]


@pytest.mark.parametrize("variant", VARIANTS)
def test_operator_count_equals_an_independent_one(variant: str) -> None:
    counted = count_operators(tiny(), variant, random_prompt(tiny().model, 24))
    assert counted.per_token == operators_of_one_token(None if variant == "vanilla" else variant)
    assert len(counted.token) == counted.per_token


def test_added_operators_are_listed_and_within_the_target() -> None:
    vanilla, beta, add = tiny_case().variants
    assert vanilla.added_operators == []
    for result in (beta, add):
        assert len(result.added_operators) == result.operators_per_token - vanilla.operators_per_token
        assert 1 <= len(result.added_operators) <= 16


def test_added_operators_keep_order_and_mark_removed_ones() -> None:
    assert added_operators(["mm", "add", "mm"], ["mm", "norm", "bmm", "add", "mm"]) == ["norm", "bmm"]
    assert added_operators(["mm", "add"], ["mm", "mul"]) == ["-add", "mul"]


def test_no_variant_needs_more_forwards() -> None:
    assert [result.forwards_per_token for result in tiny_case().variants] == [1.0, 1.0, 1.0]
    assert {run.forwards for run in tiny_case().runs} == {SETTINGS.new_tokens}


def runs_of(times: dict[str, list[float]]) -> list[Run]:
    return [
        Run(index, place, variant, seconds, 0.5 * seconds, 0.1 * seconds, seconds, 4)
        for place, (variant, row) in enumerate(times.items())
        for index, seconds in enumerate(row)
    ]


def test_ratios_are_paired_by_round() -> None:
    runs = runs_of({"vanilla": [1.0, 2.0, 8.0], "beta": [2.0, 2.0, 10.0]})
    assert paired_ratios(runs, "beta") == [0.5, 1.0, 0.8]
    assert paired_ratios(runs, "beta", "step_seconds") == pytest.approx([0.5, 1.0, 0.8])
    ratio = summarize([0.5, 1.0, 0.8])
    assert (ratio.median, ratio.low, ratio.high) == pytest.approx((0.8, 0.53, 0.98))
    assert 0.5 <= ratio.interval[0] <= ratio.median <= ratio.interval[1] <= 1.0
    assert summarize([0.5, 1.0, 0.8]) == ratio
    assert summarize([0.9]).interval == (0.9, 0.9)


def test_variant_result_counts_tokens_of_all_rows() -> None:
    runs = runs_of({"vanilla": [1.0, 3.0, 2.0], "beta": [1.0, 3.0, 2.0]})
    operators = {name: count_operators(tiny(), name, random_prompt(tiny().model, 24)) for name in ("vanilla", "beta")}
    result = variant_result("beta", runs, operators, [], new_tokens=4, batch_size=2)
    assert result.ms_per_token == pytest.approx(1e3 * 2.0 / 8)
    assert result.decode_ms_per_token == pytest.approx(1e3 * 1.0 / 6)
    assert result.forwards_per_token == 1.0
    assert result.ratio is not None
    assert result.ratio.median == 1.0


def test_every_order_comes_equally_often() -> None:
    orders = round_orders(12, seed=3)
    assert len(set(orders)) == 6
    assert all(orders.count(order) == 2 for order in orders)
    assert orders == round_orders(12, seed=3) != round_orders(12, seed=4)


def test_every_round_runs_every_variant_once() -> None:
    runs = tiny_case().runs
    assert len(runs) == SETTINGS.rounds * len(VARIANTS)
    for index in range(SETTINGS.rounds):
        assert sorted(run.variant for run in runs if run.round == index) == sorted(VARIANTS)
    assert all(0 < run.step_seconds <= run.decode_seconds < run.seconds for run in runs)


def test_ledger_counts_what_lives() -> None:
    outside = torch.zeros(1000)
    with StorageLedger() as ledger:
        kept = outside + 1.0
        view = kept[:10].t()
        assert ledger.live == ledger.peak == 4000
        assert outside[:5].shape == view[:5].shape
        assert ledger.live == 4000
        passing = (kept * 2.0).double()
        assert (ledger.live, ledger.peak) == (12000, 16000)
        del passing
        assert ledger.live == 4000
        ledger.restart_peak()
        del kept
        assert (ledger.live, ledger.peak) == (4000, 4000)
        del view
        assert ledger.live == 0


def test_rudder_keeps_a_few_vectors_whatever_the_prompt() -> None:
    for result in tiny_case().variants[1:]:
        short, long = result.extra_memory
        assert long.prompt_tokens - short.prompt_tokens == 80
        assert (short.kept, short.prefill, short.peak) == (long.kept, long.prefill, long.peak)
        assert WIDTH * 4 <= short.kept <= 4 * WIDTH * 4 + 256
        # For a moment as much as the positions that are pooled at a time, not as the whole prompt.
        assert long.prefill < 1.2 * POOL_CHUNK * WIDTH * 4


class Hoarder(Subject):
    """A stand-in for a method that keeps the updates of all prompt positions."""

    @contextmanager
    def variant(self, name: str) -> Iterator[None]:
        hoard = []

        def keep(module: nn.Module, args: Any, output: Any) -> None:
            hoard.append(output[0] * 1.0)

        layers = self.model.get_decoder().layers
        handle = None if name == "vanilla" else layers[3].self_attn.register_forward_hook(keep)
        yield
        if handle is not None:
            handle.remove()


def test_memory_that_grows_with_the_prompt_is_seen() -> None:
    fields = {field.name: getattr(tiny(), field.name) for field in dataclasses.fields(Subject)}
    short, long = (extra_memory(Hoarder(**fields), ["beta"], length)["beta"] for length in (24, 30))
    assert long.kept - short.kept == long.prefill - short.prefill == 6 * WIDTH * 4


def test_targets_are_judged_by_what_was_measured() -> None:
    verdicts = {(target.variant, target.name): target.verdict for target in tiny_case().targets}
    assert verdicts[("beta", "no forward more than vanilla")] == "met"
    assert verdicts[("add", "operators added <= 16")] == "met"
    vanilla, beta, _ = tiny_case().variants
    ratio = Ratio(median=0.98, low=0.9, high=1.0, interval=(0.97, 0.984))
    slow = dataclasses.replace(beta, ratio=ratio, forwards_per_token=1.5)
    judged = judge("deep", "float32", [vanilla, slow])
    missed = {target.name: target.measured for target in judged if target.verdict == "missed"}
    assert missed["throughput ratio >= 0.985"] == 0.98
    assert missed["no forward more than vanilla"] == 0.5
    assert not any("operators" in target.name for target in judge("deep", "bfloat16", [vanilla, slow]))


@pytest.mark.parametrize(
    ("interval", "verdict"), [((0.99, 1.0), "met"), ((0.95, 0.98), "missed"), ((0.98, 1.0), "undecided")]
)
def test_noise_does_not_meet_a_target(interval: tuple[float, float], verdict: str) -> None:
    assert ratio_verdict(Ratio(0.99, 0.9, 1.1, interval), 0.985) == verdict


def test_nothing_stays_on_the_model() -> None:
    tiny_report()
    for module in tiny().model.modules():
        hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
        assert not [hook for hook in hooks if hook.__module__.startswith("rudder_hf")]
        assert HANDLE_NAME not in vars(module)


def test_answers_have_the_length_that_is_timed() -> None:
    model = tiny().model
    inputs = random_prompt(model, 24)
    first = int(tiny().answer(inputs, 2)[0, 24])
    model.generation_config.eos_token_id = first
    try:
        assert tiny().answer(inputs, 5).shape[1] == 29
        assert model.generation_config.eos_token_id == first
    finally:
        model.generation_config.eos_token_id = None
    with pytest.raises(ValueError, match="18 are the least"):
        random_prompt(model, 17)


def test_report_survives_json(tmp_path: Path) -> None:
    path = tiny_report().save(tmp_path / "new folder" / "result.json")
    assert BenchmarkReport.load(path) == tiny_report()
    record = json.loads(path.read_text())
    assert record["versions"]["torch"] == torch.__version__
    assert record["hardware"]["cpu_count"] >= 1
    assert record["settings"]["rounds"] == SETTINGS.rounds
    path.write_text("{}")
    with pytest.raises(ValueError, match="not a RUDDER benchmark report"):
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
    with pytest.raises(NotADirectoryError, match="is a file"):
        new_result_file(path / "inside.json")
    numbered = [tiny_report().save(new_result_file(tmp_path)).name for _ in range(2)]
    assert numbered == ["rudder-benchmark-001.json", "rudder-benchmark-002.json"]


def test_tables_tell_what_counts() -> None:
    text, added = io.StringIO(), len(tiny_case().variants[1].added_operators)
    Console(file=text, width=200).print(report_tables(tiny_report()))
    for word in ("vanilla", "RUDDER-Beta", "RUDDER-Add", f"(+{added})", "throughput ratio", "adds per token"):
        assert word in text.getvalue()


@pytest.mark.parametrize("name", ["new_tokens", "rounds", "batch_size", "prompt_tokens"])
def test_settings_that_cannot_be_measured_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"`{name}` is 0"):
        BenchmarkSettings(**{name: 0})
