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
    """How to measure.

    Attributes:
        new_tokens: Length of every answer, at least 2.
        rounds: Timed rounds.
        warmup: Rounds before them that do not count.
        num_beams: Of the decoding "beam".
        seed: Of the order within rounds.
    """

    new_tokens: int = 64
    rounds: int = 10
    warmup: int = 1
    num_beams: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        check_least(self, new_tokens=2, rounds=1, warmup=0, num_beams=2)


@dataclass(frozen=True)
class Cost:
    """What one method costs under one decoding. Without numbers, which then are None, if the method refuses it.

    Attributes:
        method: Name of the method.
        decoding: "greedy" or "beam".
        refusal: Why the method cannot decode so; empty if it can.
        ms_per_token: Median wall time of `generate` per new token and prompt.
        ratio: Throughput relative to vanilla under the same decoding; None for vanilla.
        cpu_ratio: The same by CPU time, which leaves out interruptions by other processes.
        forwards_per_token: Positions forwarded after the prompt, relative to vanilla's.
        prompt_forwards: Positions forwarded of prompts, relative to vanilla's.
        operators_per_token: Operators per decoded token, without the prefill.
        added_operators: Names of those that vanilla does not have, in order, unless they are very many.
        kept_bytes: Bytes that the method keeps from token to token beyond vanilla's, at the last one.
        peak_bytes: Most bytes of tensors alive at a time, weights and inputs left out; on CUDA by the allocator.
        peak_ratio: The same relative to vanilla's.
    """

    method: str
    decoding: str
    refusal: str = ""
    ms_per_token: float | None = None
    ratio: Ratio | None = None
    cpu_ratio: Ratio | None = None
    forwards_per_token: float | None = None
    prompt_forwards: float | None = None
    operators_per_token: float | None = None
    added_operators: list[str] = field(default_factory=list)
    kept_bytes: int | None = None
    peak_bytes: int | None = None
    peak_ratio: float | None = None


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
        refusals = {name: method.refuses(decoding) for name, method in wanted.items()}
        allowed = {name: method for name, method in wanted.items() if not refusals[name]}
        counted = {}
        with garbage_collector_off():
            for name in followed(list(allowed), f"{decoding}, counting operators and bytes", progress):
                counted[name] = count(bench, allowed[name])
            timed = time_rounds(bench, allowed, settings.rounds, settings.warmup, settings.seed, progress)
        runs += timed
        for name, reason in refusals.items():
            costs.append(Cost(name, decoding, reason) if reason else _cost(bench, name, timed, counted))
    return costs, runs


def _cost(bench: Bench, name: str, runs: Sequence[Run], counted: Mapping[str, Counted]) -> Cost:
    """Put together what was measured of one method."""
    own, base = counted[name], counted[VANILLA]
    seconds = statistics.median(run.seconds for run in runs if run.method == name)
    ratio = cpu_ratio = None
    if name != VANILLA:
        ratio, cpu_ratio = (summarize(paired_ratios(runs, name, clock)) for clock in ("seconds", "cpu_seconds"))
    few = abs(own.operators - base.operators) <= _MOST_NAMED
    return Cost(
        method=name,
        decoding=bench.decoding,
        ms_per_token=1e3 * seconds / (bench.new_tokens * bench.batch_size),
        ratio=ratio,
        cpu_ratio=cpu_ratio,
        forwards_per_token=own.answer / base.answer,
        prompt_forwards=own.prompt / base.prompt,
        operators_per_token=own.operators,
        added_operators=added_operators(base.token, own.token) if few else [],
        kept_bytes=own.kept - base.kept,
        peak_bytes=own.peak,
        peak_ratio=own.peak / base.peak,
    )
