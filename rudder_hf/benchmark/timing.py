"""Interleaved timing: in each round every variant runs once, in an order that changes from round to round.

What disturbs a machine (other processes, clock frequency) changes slowly against a round, so it hits all variants of a
round alike and cancels in their ratio. Only these paired ratios are compared; absolute times are for orientation.
"""

from __future__ import annotations

import gc
import itertools
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from .variants import VANILLA, VARIANTS, Subject, synchronize

RESAMPLES = 2000


@dataclass(frozen=True)
class Run:
    """One timed `generate`.

    Attributes:
        round: Index of the round.
        position: Place of the run within its round.
        variant: What ran.
        seconds: Wall time of the whole call.
        decode_seconds: Wall time from the second forward on, that is without the prefill.
        step_seconds: Median wall time of one decoding step.
        cpu_seconds: Time that the process spent on CPUs, all threads together.
        forwards: Number of the model's forward passes.
    """

    round: int
    position: int
    variant: str
    seconds: float
    decode_seconds: float
    step_seconds: float
    cpu_seconds: float
    forwards: int


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


def round_orders(rounds: int, seed: int, variants: Sequence[str] = VARIANTS) -> list[tuple[str, ...]]:
    """An order of the variants for each round: all permutations equally often, shuffled block by block."""
    source = random.Random(seed)
    orders: list[tuple[str, ...]] = []
    while len(orders) < rounds:
        block = list(itertools.permutations(variants))
        source.shuffle(block)
        orders.extend(block)
    return orders[:rounds]


def time_rounds(
    subject: Subject,
    inputs: dict[str, Any],
    new_tokens: int,
    rounds: int,
    warmup: int = 1,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> list[Run]:
    """Time every variant once per round.

    Args:
        subject: The model.
        inputs: Of `generate`.
        new_tokens: Length of each answer.
        rounds: Number of rounds that count.
        warmup: Number of rounds before them that do not.
        seed: Of the order within rounds.
        progress: Is told about each round.
    """
    runs: list[Run] = []
    orders = round_orders(warmup + rounds, seed)
    with garbage_collector_off():
        for index, order in enumerate(orders):
            number = index - warmup
            if progress is not None:
                what = f"round {number + 1} of {rounds}" if number >= 0 else "warm-up"
                progress(f"{subject.name}: {what}")
            for position, variant in enumerate(order):
                run = time_run(subject, variant, inputs, new_tokens, number, position)
                if number >= 0:
                    runs.append(run)
            gc.collect()
    return runs


def time_run(
    subject: Subject, variant: str, inputs: dict[str, Any], new_tokens: int, number: int = 0, position: int = 0
) -> Run:
    """Time one `generate` of one variant. Attaching and removing RUDDER are not part of the time."""
    device = subject.model.device
    with subject.variant(variant), forward_starts(subject) as starts:
        synchronize(device)
        cpu, start = time.process_time(), time.perf_counter()
        subject.answer(inputs, new_tokens)
        synchronize(device)
        end, cpu_end = time.perf_counter(), time.process_time()
    steps = [later - earlier for earlier, later in itertools.pairwise([*starts[1:], end])]
    return Run(
        round=number,
        position=position,
        variant=variant,
        seconds=end - start,
        decode_seconds=end - starts[1],
        step_seconds=statistics.median(steps),
        cpu_seconds=cpu_end - cpu,
        forwards=len(starts),
    )


@contextmanager
def forward_starts(subject: Subject) -> Iterator[list[float]]:
    """The moments at which the model's forward passes begin, within the block.

    The hook costs all variants the same microsecond per token.
    """
    starts: list[float] = []

    def note(module: torch.nn.Module, args: Any) -> None:
        starts.append(time.perf_counter())

    handle = subject.backbone.loop.register_forward_pre_hook(note)
    try:
        yield starts
    finally:
        handle.remove()


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


def paired_ratios(runs: Sequence[Run], variant: str, clock: str = "seconds") -> list[float]:
    """Throughput of a variant relative to vanilla in each round, by one of the clocks of `Run`."""
    times = {(run.round, run.variant): float(getattr(run, clock)) for run in runs}
    return [times[number, VANILLA] / times[number, variant] for number in sorted({run.round for run in runs})]


def summarize(ratios: Sequence[float], seed: int = 0) -> Ratio:
    """Median and spread of the rounds' ratios."""
    source = random.Random(seed)
    medians = [statistics.median(source.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES)]
    return Ratio(
        median=statistics.median(ratios),
        low=quantile(ratios, 0.05),
        high=quantile(ratios, 0.95),
        interval=(quantile(medians, 0.025), quantile(medians, 0.975)),
    )


def quantile(values: Sequence[float], q: float) -> float:
    """Quantile with linear interpolation between neighbours."""
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
