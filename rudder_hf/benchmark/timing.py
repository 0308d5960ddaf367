"""Interleaved timing: in each round every method runs once, in an order that changes from round to round.

What disturbs a machine (other processes, clock frequency) changes slowly against a round, so it hits all methods of a
round alike and cancels in their ratio. Only these paired ratios are compared; absolute times are for orientation.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..core.backbones import find_backbone
from ..methods import Generate, Method
from ..runtime.report import Progress, followed, no_progress

VANILLA = "vanilla"
RESAMPLES = 2000


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
    bench: Bench,
    methods: Mapping[str, Method],
    rounds: int,
    warmup: int = 1,
    seed: int = 0,
    progress: Progress = no_progress,
) -> list[Run]:
    """Time every method once per round, best within `garbage_collector_off`.

    Args:
        bench: Model and prompts.
        methods: By name.
        rounds: Number of rounds that count.
        warmup: Number of rounds before them that do not.
        seed: Of the order within rounds.
        progress: Is called with each round.
    """
    runs: list[Run] = []
    orders = round_orders(warmup + rounds, seed, list(methods))
    for number, order in enumerate(followed(orders, "timed rounds", progress), start=-warmup):
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


def summarize(ratios: Sequence[float], seed: int = 0) -> Ratio:
    """Median and spread of the rounds' ratios."""
    drawn = np.random.default_rng(seed).choice(ratios, (RESAMPLES, len(ratios)))
    low, high = np.quantile(ratios, (0.05, 0.95))
    start, end = np.quantile(np.median(drawn, axis=1), (0.025, 0.975))
    return Ratio(float(np.median(ratios)), float(low), float(high), (float(start), float(end)))
