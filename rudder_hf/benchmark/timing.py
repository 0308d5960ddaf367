"""Interleaved timing: in each round every method runs once, in an order that changes from round to round.

What disturbs a machine (other processes, clock frequency) changes slowly against a round, so it hits all methods of a
round alike and cancels in their ratio. Only these paired ratios are compared; absolute times are for orientation.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from ..methods import Method
from ..runtime.progress import Progress, no_progress
from .bench import VANILLA, Bench

RESAMPLES = 2000


@dataclass(frozen=True)
class Run:
    """One timed `generate`.

    Attributes:
        round: Index of the round.
        method: Name of the method.
        decoding: "greedy" or "beam".
        seconds: Wall time; entering the method's context is not part of it, what the method does in each call is.
        cpu_seconds: Time that the process spent on CPUs, all threads together.
    """

    round: int
    method: str
    decoding: str
    seconds: float
    cpu_seconds: float


@dataclass(frozen=True)
class Ratio:
    """Throughput relative to vanilla, over the rounds; 1 is as fast, less is slower.

    Attributes:
        median: Of the rounds' ratios.
        low: Their 5th percentile.
        high: Their 95th percentile.
        interval: 95 % bootstrap interval of the median.
    """

    median: float
    low: float
    high: float
    interval: tuple[float, float]

    def __post_init__(self) -> None:
        """JSON has lists instead of tuples."""
        object.__setattr__(self, "interval", tuple(self.interval))


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
        progress: Is called before each round.
    """
    runs: list[Run] = []
    for number, order in enumerate(round_orders(warmup + rounds, seed, list(methods)), start=-warmup):
        progress(f"{bench.decoding}: timed rounds", max(number, 0), rounds)
        for name in order:
            run = time_run(bench, name, methods[name], number)
            if number >= 0:
                runs.append(run)
        gc.collect()
    return runs


def time_run(bench: Bench, name: str, method: Method, number: int) -> Run:
    """Time one `generate` of a method."""
    with bench.opened(method) as answer:
        synchronize(bench.model.device)
        cpu, start = time.process_time(), time.perf_counter()
        answer()
        synchronize(bench.model.device)
        return Run(number, name, bench.decoding, time.perf_counter() - start, time.process_time() - cpu)


def synchronize(device: torch.device) -> None:
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


def paired_ratios(runs: Sequence[Run], method: str, clock: str = "seconds") -> list[float]:
    """Throughput of a method relative to vanilla in each round, by one of the clocks of `Run`."""
    times = {(run.round, run.method): float(getattr(run, clock)) for run in runs}
    return [times[number, VANILLA] / times[number, method] for number in sorted({run.round for run in runs})]


def summarize(ratios: Sequence[float], seed: int = 0) -> Ratio:
    """Median and spread of the rounds' ratios."""
    drawn = np.random.default_rng(seed).choice(ratios, (RESAMPLES, len(ratios)))
    low, high = np.quantile(ratios, (0.05, 0.95))
    start, end = np.quantile(np.median(drawn, axis=1), (0.025, 0.975))
    return Ratio(float(np.median(ratios)), float(low), float(high), (float(start), float(end)))
