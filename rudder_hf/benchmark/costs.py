"""What decoding methods cost beside vanilla on one model: throughput, forwards, operators and, on CUDA, memory."""

from __future__ import annotations

import gc
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LogitsProcessorList, PreTrainedModel

from ..core.backbones import Backbone
from ..methods import Method
from ..runtime.errors import check_least
from ..runtime.report import Progress, followed, no_progress
from .timing import VANILLA, Bench, Ratio, Run, garbage_collector_off, paired_ratios, summarize, time_rounds


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
        runs = time_rounds(bench, methods, settings.rounds, settings.warmup, settings.seed, progress)
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
