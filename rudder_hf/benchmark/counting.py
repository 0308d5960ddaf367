"""Exact counts of one generation: positions that are forwarded, operators, bytes. They are the same in every run."""

from __future__ import annotations

import difflib
import gc
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import LogitsProcessorList

from ..core.backbones import Backbone
from ..methods import Method
from .timing import Bench


@dataclass(frozen=True)
class Counted:
    """What one generation took.

    Attributes:
        prompt: Positions forwarded with an empty cache: prompts, of the main branch and of side branches.
        answer: Positions of all other forwards: the loop, side branches, candidates, tokens that are read again.
        operators: Operators per decoded token; views count too, the prefill does not.
        token: Names of the operators of the last decoded token, in order.
        kept: Bytes of tensors alive when the last token is chosen, weights and inputs left out.
        peak: Most bytes alive at any time; on CUDA by the allocator.
    """

    prompt: int
    answer: int
    operators: float
    token: list[str]
    kept: int
    peak: int


def count(bench: Bench, method: Method) -> Counted:
    """Count everything in one generation, best within `garbage_collector_off`."""
    ledger = Ledger()
    kept: list[int] = []

    def end_token(input_ids: Tensor, scores: Tensor) -> Tensor:
        ledger.tokens.append([])
        kept.append(ledger.live)
        return scores

    gc.collect()
    with (
        # `generate` calls processors once for each token, whatever forwards a method took.
        bench.opened(method, logits_processor=LogitsProcessorList([end_token])) as answer,
        count_forwards(bench.backbone) as forwards,
        allocator_peak(bench.model.device) as allocated,
        ledger,
    ):
        answer()
    decoded = ledger.tokens[1:-1]
    return Counted(
        prompt=forwards["prompt"],
        answer=forwards["answer"],
        operators=sum(map(len, decoded)) / (bench.new_tokens - 1),
        token=[str(operator).removeprefix("aten.") for operator in decoded[-1]],
        kept=kept[-1],
        peak=allocated[0] if allocated else ledger.peak,
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


class Ledger(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Operators that ran under this mode, and bytes of the tensors that they made and that are still alive.

    Tensors are followed from their making to their end by weak references to their storages. That gives the same bytes
    in every run on every machine. What kernels allocate inside themselves is not seen.

    Attributes:
        tokens: The operators, in order, one list for each token; the caller, who knows where a token ends, begins it.
        live: Bytes alive now.
        peak: Most bytes alive at any time.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tokens: list[list[Any]] = [[]]
        self.live = 0
        self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.tokens[-1].append(func)
        # Storages that come in from outside (weights, inputs) are not ours, also when a view of them is returned.
        self._enter((args, kwargs), counted=False)
        result = func(*args, **(kwargs or {}))
        self._enter(result, counted=True)
        return result

    def _enter(self, tree: Any, counted: bool) -> None:
        for leaf in tree_leaves(tree):
            if not isinstance(leaf, Tensor):
                continue
            storage = leaf.untyped_storage()
            key = storage._cdata
            if key in self._known:
                continue
            size = storage.nbytes() if counted else 0
            self._known.add(key)
            weakref.finalize(storage, self._leave, key, size).atexit = False
            self.live += size
            self.peak = max(self.peak, self.live)

    def _leave(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size


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
