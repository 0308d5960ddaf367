"""Exact counts of one generation: positions that are forwarded, and operators; on CUDA also the allocator's peak."""

from __future__ import annotations

import difflib
import gc
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LogitsProcessorList

from ..core.backbones import Backbone
from ..methods import Method
from .timing import Bench


@dataclass(frozen=True)
class Counted:
    """What one generation took."""

    prompt: int  # positions forwarded with an empty cache: prompts, of the main branch and of side branches
    answer: int  # positions of all other forwards: the loop, side branches, candidates, tokens that are read again
    operators: float  # per decoded token; views count too, the prefill does not
    token: list[str]  # names of the operators of the last decoded token, in order
    peak: int | None  # most bytes that CUDA's allocator gave out; None on other devices


def count(bench: Bench, method: Method) -> Counted:
    """Count everything in one generation, best within `garbage_collector_off`."""
    log = OperatorLog()

    def end_token(input_ids: Tensor, scores: Tensor) -> Tensor:
        log.tokens.append([])
        return scores

    gc.collect()
    with (
        # `generate` calls processors once for each token, whatever forwards a method took.
        bench.opened(method, logits_processor=LogitsProcessorList([end_token])) as answer,
        count_forwards(bench.backbone) as forwards,
        allocator_peak(bench.model.device) as allocated,
        log,
    ):
        answer()
    decoded = log.tokens[1:-1]
    return Counted(
        prompt=forwards["prompt"],
        answer=forwards["answer"],
        operators=sum(map(len, decoded)) / (bench.new_tokens - 1),
        token=[str(operator).removeprefix("aten.") for operator in decoded[-1]],
        peak=allocated[0] if allocated else None,
    )


def added_operators(vanilla: Sequence[str], steered: Sequence[str]) -> list[str]:
    """Names in `steered` that have no counterpart in `vanilla`, in order; removed ones are marked with a minus."""
    added: list[str] = []
    for tag, a, b, c, d in difflib.SequenceMatcher(None, vanilla, steered, autojunk=False).get_opcodes():
        if tag in ("delete", "replace"):
            added.extend(f"-{name}" for name in vanilla[a:b])
        if tag in ("insert", "replace"):
            added.extend(steered[c:d])
    return added


class OperatorLog(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the operators that run under this mode, in order, in one list for each token.

    The caller, who knows where a token ends, appends a list for the next one.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tokens: list[list[Any]] = [[]]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.tokens[-1].append(func)
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


@contextmanager
def allocator_peak(device: torch.device) -> Iterator[list[int]]:
    """On CUDA, the most bytes that the allocator gave out within the block beyond those at its start; else empty."""
    peak: list[int] = []
    if device.type != "cuda":
        yield peak
        return
    torch.cuda.reset_peak_memory_stats(device)
    start = torch.cuda.memory_allocated(device)
    yield peak
    peak.append(torch.cuda.max_memory_allocated(device) - start)
