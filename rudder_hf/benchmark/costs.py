"""What decoding methods cost beside vanilla on one model: throughput, forwards, operators and memory."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedModel

from ..methods import Method
from ..metrics.errors import check_least
from ..runtime.progress import Progress, followed, no_progress
from .counting import Counted, added_operators, count
from .timing import VANILLA, Bench, Ratio, Run, garbage_collector_off, paired_ratios, summarize, time_rounds

DECODINGS = ("greedy", "beam")
# More names than this are those of whole forwards, which the numbers say already.
_MOST_NAMED = 64


@dataclass(frozen=True)
class CostSettings:
    """How to measure."""

    new_tokens: int = 64  # length of every answer, at least 2
    rounds: int = 10  # timed rounds
    warmup: int = 1  # rounds before them that do not count
    num_beams: int = 5  # of the decoding "beam"
    seed: int = 0  # of the order within rounds

    def __post_init__(self) -> None:
        check_least(self, new_tokens=2, rounds=1, warmup=0, num_beams=2)


@dataclass(frozen=True)
class Cost:
    """What one method costs under one decoding."""

    method: str
    decoding: str  # "greedy" or "beam"
    ms_per_token: float  # median wall time of `generate` per new token and prompt
    forwards_per_token: float  # positions forwarded after the prompt, relative to vanilla's
    prompt_forwards: float  # positions forwarded of prompts, relative to vanilla's
    operators_per_token: float  # of decoded tokens, without the prefill
    ratio: Ratio | None = None  # throughput relative to vanilla under the same decoding; None for vanilla
    # Names of those that vanilla does not have, in order, unless they are very many.
    added_operators: list[str] = field(default_factory=list)
    peak_bytes: int | None = None  # most bytes that CUDA's allocator gave out, weights left out; None on other devices
    peak_ratio: float | None = None  # the same relative to vanilla's


def measure_costs(
    model: PreTrainedModel,
    methods: Mapping[str, Method],
    inputs: dict[str, Any],
    decodings: Mapping[str, Sequence[str]],
    settings: CostSettings | None = None,
    progress: Progress = no_progress,
) -> tuple[list[Cost], list[Run]]:
    """Measure methods on one batch of prompts: counts first, which are exact, then the time.

    Args:
        model: The stock model.
        methods: By name; "vanilla" is what the others are compared with.
        inputs: Of `generate`.
        decodings: For "greedy" and "beam" the names to measure; vanilla is always measured.
        settings: How to measure.
        progress: Is called with each count and each round.

    Raises:
        ValueError: There is no vanilla, or no such decoding.
    """
    settings = settings or CostSettings()
    if VANILLA not in methods:
        raise ValueError("Costs are relative to vanilla's: add the method 'vanilla'.")
    if unknown := set(decodings) - set(DECODINGS):
        raise ValueError(f"Costs are measured for {', '.join(DECODINGS)}, not for {', '.join(sorted(unknown))}.")
    costs: list[Cost] = []
    runs: list[Run] = []
    for decoding, names in decodings.items():
        bench = Bench(model, inputs, settings.new_tokens, settings.num_beams if decoding == "beam" else 1)
        wanted = {name: methods[name] for name in dict.fromkeys((VANILLA, *names))}
        counted = {}
        with garbage_collector_off():
            for name in followed(list(wanted), f"{decoding}, counting operators", progress):
                counted[name] = count(bench, wanted[name])
            timed = time_rounds(bench, wanted, settings.rounds, settings.warmup, settings.seed, progress)
        runs += timed
        costs += [_cost(bench, name, timed, counted) for name in wanted]
    return costs, runs


def _cost(bench: Bench, name: str, runs: Sequence[Run], counted: Mapping[str, Counted]) -> Cost:
    """Put together what was measured of one method."""
    own, base = counted[name], counted[VANILLA]
    seconds = statistics.median(run.seconds for run in runs if run.method == name)
    few = abs(own.operators - base.operators) <= _MOST_NAMED
    return Cost(
        method=name,
        decoding=bench.decoding,
        ms_per_token=1e3 * seconds / (bench.new_tokens * bench.batch_size),
        ratio=None if name == VANILLA else summarize(paired_ratios(runs, name)),
        forwards_per_token=own.answer / base.answer,
        prompt_forwards=own.prompt / base.prompt,
        operators_per_token=own.operators,
        added_operators=added_operators(base.token, own.token) if few else [],
        peak_bytes=own.peak,
        peak_ratio=None if own.peak is None or not base.peak else own.peak / base.peak,
    )
