"""What decoding methods cost beside vanilla on one model: throughput, forwards, operators and, on CUDA, memory.

Timing is interleaved: in each round every method runs once, in an order that changes from round to round. What
disturbs a machine (other processes, clock frequency) changes slowly against a round, so it hits all methods of a round
alike and cancels in their ratio. Only these paired ratios are compared; absolute times are for orientation.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LogitsProcessorList, PreTrainedModel

from ..core.backbones import Backbone, find_backbone
from ..methods import Generate, Method
from ..runtime.errors import check_least
from ..runtime.report import Progress, followed, no_progress

VANILLA = "vanilla"
RESAMPLES = 2000


@dataclass(frozen=True)
class CostSettings:
    """How to measure."""

    new_tokens: int = 64  # length of every answer, at least 2
    rounds: int = 10  # timed rounds
    warmup: int = 1  # rounds before them that do not count
    seed: int = 0  # of the order within rounds

    def __post_init__(self) -> None:
        check_least(self, new_tokens=2, rounds=1, warmup=0)


@dataclass(frozen=True)
class Cost:
    """What one method costs under greedy search, as in the paper's speed table."""

    method: str
    ms_per_token: float  # median wall time of `generate` per new token and prompt
    forwards_per_token: float  # positions forwarded after the prompt, relative to vanilla's
    prompt_forwards: float  # positions forwarded of prompts, relative to vanilla's
    operators_per_token: float  # of decoded tokens, without the prefill
    ratio: Ratio | None = None  # throughput relative to vanilla; None for vanilla
    peak_bytes: int | None = None  # most bytes that CUDA's allocator gave out, weights left out; None on other devices
    peak_ratio: float | None = None  # the same relative to vanilla's


def measure_costs(
    model: PreTrainedModel,
    methods: Mapping[str, Method],
    inputs: dict[str, Any],
    settings: CostSettings | None = None,
    progress: Progress = no_progress,
) -> tuple[list[Cost], list[Run]]:
    """Measure methods on one batch of prompts: counts first, which are exact, then the time.

    Args:
        model: The stock model.
        methods: By name; "vanilla" is what the others are compared with.
        inputs: Of `generate`.
        settings: How to measure.
        progress: Is called with each count and each round.

    Raises:
        ValueError: There is no vanilla.
    """
    settings = settings or CostSettings()
    if VANILLA not in methods:
        raise ValueError("Costs are relative to vanilla's: add the method 'vanilla'.")
    bench = Bench(model, inputs, settings.new_tokens)
    with garbage_collector_off():
        counted = {
            name: count(bench, methods[name]) for name in followed(list(methods), "counting operators", progress)
        }
        runs = time_rounds(bench, methods, settings, progress)
    return [_cost(bench, name, runs, counted) for name in methods], runs


def _cost(bench: Bench, name: str, runs: Sequence[Run], counted: Mapping[str, Counted]) -> Cost:
    """Put together what was measured of one method."""
    own, base = counted[name], counted[VANILLA]
    seconds = statistics.median(run.seconds for run in runs if run.method == name)
    return Cost(
        method=name,
        ms_per_token=1e3 * seconds / (bench.new_tokens * bench.batch_size),
        ratio=None if name == VANILLA else summarize(paired_ratios(runs, name)),
        forwards_per_token=own.answer / base.answer,
        prompt_forwards=own.prompt / base.prompt,
        operators_per_token=own.operators,
        peak_bytes=own.peak,
        peak_ratio=None if own.peak is None or not base.peak else own.peak / base.peak,
    )


# Interleaved timing


class Bench:
    """One model and one batch of prompts, under greedy search.

    Args:
        model: The stock model; nothing stays on it between measurements.
        inputs: Of `generate`.
        new_tokens: Length of every answer.
    """

    def __init__(self, model: PreTrainedModel, inputs: dict[str, Any], new_tokens: int) -> None:
        self.model, self.inputs, self.new_tokens = model, inputs, new_tokens
        self.batch_size, self.prompt_tokens = (int(size) for size in inputs["input_ids"].shape)
        self.backbone = find_backbone(model)

    @contextmanager
    def opened(self, method: Method, **options: Any) -> Iterator[Callable[[], Tensor]]:
        """A function that answers the prompts with a method, while the block runs; options are those of `generate`."""
        with torch.no_grad(), endless(self.model), method.applied(self.model) as generate:
            yield lambda: self._answer(generate, options)

    def _answer(self, generate: Generate, options: dict[str, Any]) -> Tensor:
        sequences: Tensor = generate(
            **self.inputs,
            max_new_tokens=self.new_tokens,
            do_sample=False,
            num_beams=1,
            use_cache=True,
            sample_ids=[f"prompt {row}" for row in range(self.batch_size)],
            **options,
        )
        # Some models return the answer alone, others the prompt before it.
        if sequences.shape[1] not in (self.new_tokens, self.prompt_tokens + self.new_tokens):
            raise RuntimeError(
                f"`generate` returned {sequences.shape[1]} tokens for a prompt of {self.prompt_tokens} and "
                f"{self.new_tokens} new ones: its answers cannot be timed per token."
            )
        return sequences


@contextmanager
def endless(model: PreTrainedModel) -> Iterator[None]:
    """Forget the end-of-sequence tokens of a model within the block, so that every answer has the same length."""
    configs = [vars(module).get("generation_config") for module in model.modules()]
    saved = [(config, config.eos_token_id) for config in configs if config is not None]
    for config, _ in saved:
        config.eos_token_id = None
    try:
        yield
    finally:
        for config, eos in saved:
            config.eos_token_id = eos


@dataclass(frozen=True)
class Run:
    """One timed `generate`."""

    round: int
    method: str
    seconds: float  # wall time; entering the method's context is not part of it, what the method does in each call is


@dataclass(frozen=True)
class Ratio:
    """Throughput relative to vanilla, over the rounds; 1 is as fast, less is slower."""

    median: float
    low: float  # 5th percentile of the rounds' ratios
    high: float  # 95th percentile
    interval: tuple[float, float]  # 95 % bootstrap interval of the median


def round_orders(rounds: int, seed: int, names: Sequence[str]) -> list[list[str]]:
    """An order for each round: a drawn one, then the same backwards, so that over two rounds all mean places agree."""
    source = random.Random(seed)
    orders: list[list[str]] = []
    while len(orders) < rounds:
        order = source.sample(list(names), len(names))
        orders += [order, order[::-1]]
    return orders[:rounds]


def time_rounds(
    bench: Bench, methods: Mapping[str, Method], settings: CostSettings, progress: Progress = no_progress
) -> list[Run]:
    """Time every method once per round, best within `garbage_collector_off`."""
    runs: list[Run] = []
    orders = round_orders(settings.warmup + settings.rounds, settings.seed, list(methods))
    for number, order in enumerate(followed(orders, "timed rounds", progress), start=-settings.warmup):
        for name in order:
            with bench.opened(methods[name]) as answer:
                _synchronize(bench.model.device)
                start = time.perf_counter()
                answer()
                _synchronize(bench.model.device)
                seconds = time.perf_counter() - start
            if number >= 0:
                runs.append(Run(number, name, seconds))
        gc.collect()
    return runs


def _synchronize(device: torch.device) -> None:
    """Wait until an accelerator has done what it was given."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


@contextmanager
def garbage_collector_off() -> Iterator[None]:
    """Keep Python's garbage collector from running in the middle of a measurement.

    What exists already is set aside, so that a `gc.collect()` between measurements is quick.
    """
    was_on = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_on:
            gc.enable()


def paired_ratios(runs: Sequence[Run], method: str) -> list[float]:
    """Return the throughput of a method relative to vanilla in each round."""
    times = {(run.round, run.method): run.seconds for run in runs}
    return [times[number, VANILLA] / times[number, method] for number in sorted({run.round for run in runs})]


def summarize(ratios: Sequence[float]) -> Ratio:
    """Median and spread of the rounds' ratios."""
    drawn = np.random.default_rng(0).choice(ratios, (RESAMPLES, len(ratios)))
    low, high = np.quantile(ratios, (0.05, 0.95))
    start, end = np.quantile(np.median(drawn, axis=1), (0.025, 0.975))
    return Ratio(float(np.median(ratios)), float(low), float(high), (float(start), float(end)))


# Exact counts of one generation


@dataclass(frozen=True)
class Counted:
    """What one generation took."""

    prompt: int  # positions forwarded with an empty cache: prompts, of the main branch and of side branches
    answer: int  # positions of all other forwards: the loop, side branches, candidates, tokens that are read again
    operators: float  # per decoded token; views count too, the prefill does not
    peak: int | None  # most bytes that CUDA's allocator gave out beyond those at the start; None on other devices


def count(bench: Bench, method: Method) -> Counted:
    """Count everything in one generation, best within `garbage_collector_off`."""
    operators, device, peak = OperatorCount(), bench.model.device, None

    def end_token(input_ids: Tensor, scores: Tensor) -> Tensor:
        operators.tokens.append(0)
        return scores

    gc.collect()
    with (
        # `generate` calls processors once for each token, whatever forwards a method took.
        bench.opened(method, logits_processor=LogitsProcessorList([end_token])) as answer,
        count_forwards(bench.backbone) as forwards,
        operators,
    ):
        if device.type != "cuda":
            answer()
        else:
            torch.cuda.reset_peak_memory_stats(device)
            start = torch.cuda.memory_allocated(device)
            answer()
            peak = torch.cuda.max_memory_allocated(device) - start
    return Counted(
        prompt=forwards["prompt"],
        answer=forwards["answer"],
        operators=sum(operators.tokens[1:-1]) / (bench.new_tokens - 1),
        peak=peak,
    )


class OperatorCount(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operators that run under this mode for each token; the caller, who knows where one ends, adds a 0."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tokens = [0]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.tokens[-1] += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def count_forwards(backbone: Backbone) -> Iterator[Counter[str]]:
    """Count "prompt" and "answer" positions (see `Counted`) at the first decoder layer, which every forward passes.

    Each row of each forward counts with its number of positions.
    """
    found: Counter[str] = Counter()

    def note(layer: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        hidden = args[0] if args else kwargs["hidden_states"]
        cache = kwargs.get("past_key_values")
        empty = cache is None or cache.get_seq_length() == 0
        found["prompt" if empty else "answer"] += hidden.shape[0] * hidden.shape[1]

    handle = backbone.layers[0].register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield found
    finally:
        handle.remove()
