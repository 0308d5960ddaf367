"""Extra memory: what RUDDER keeps while decoding, what it needs for a moment in the prefill, and the peak.

All tensors that operators return are followed from their making to their end by weak references to their storages.
That gives the same bytes in every run on every machine. What kernels allocate inside themselves is not seen; it is the
same for all variants.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..core.backbones import attention_update, resolve_layer
from .timing import garbage_collector_off
from .variants import VANILLA, Subject, prompt_length

MEASURED_TOKENS = 4
MASKED_TOKENS = 4


class StorageLedger(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes of the tensors that were made under this mode and are still alive.

    Attributes:
        live: Bytes alive now.
        peak: Most bytes alive at any time since `restart_peak`.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = 0
        self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
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

    def restart_peak(self) -> None:
        """Look for a new peak from here on."""
        self.peak = self.live


@dataclass
class MemoryProfile:
    """Bytes at the points of one generation where variants are compared.

    Attributes:
        at_rest: Bytes alive before each decoding forward.
        before_read: Bytes alive right before the prefill's attention update reaches RUDDER.
        reading_peak: Most bytes alive from there until RUDDER is done with it.
        peak: Most bytes alive at any time; on CUDA by the allocator's own count.
    """

    at_rest: list[int] = field(default_factory=list)
    before_read: int = 0
    reading_peak: int = 0
    peak: int = 0


@dataclass(frozen=True)
class ExtraMemory:
    """Bytes that a variant needs beyond vanilla's, for one prompt length.

    Attributes:
        prompt_tokens: Length of the prompt.
        kept: While decoding, between forward passes.
        prefill: At most, while the prompt is read.
        peak: Difference of the peaks of the whole generations.
    """

    prompt_tokens: int
    kept: int
    prefill: int
    peak: int


def extra_memory(subject: Subject, variants: list[str], prompt_tokens: int) -> dict[str, ExtraMemory]:
    """Measure each variant's extra memory for a prompt of (about) the given length.

    Its first positions are masked, as in a batch with padding: without any, `generate` drops the mask, and RUDDER has
    less to do.
    """
    inputs = dict(subject.prompt(prompt_tokens))
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    inputs["attention_mask"][:, :MASKED_TOKENS] = 0
    with garbage_collector_off():
        vanilla, *profiles = (memory_profile(subject, variant, inputs) for variant in (VANILLA, *variants))
    result: dict[str, ExtraMemory] = {}
    for variant, profile in zip(variants, profiles, strict=True):
        result[variant] = ExtraMemory(
            prompt_tokens=prompt_length(inputs),
            kept=max(a - b for a, b in zip(profile.at_rest, vanilla.at_rest, strict=True)),
            prefill=profile.reading_peak - vanilla.before_read,
            peak=profile.peak - vanilla.peak,
        )
    return result


def memory_profile(subject: Subject, variant: str, inputs: dict[str, Any]) -> MemoryProfile:
    """Follow the bytes of one generation."""
    profile, ledger = MemoryProfile(), StorageLedger()
    highest: list[int] = []
    gc.collect()
    with allocator_peak(subject.model.device) as allocated, ExitStack() as stack:
        backbone = subject.backbone
        update = attention_update(backbone.layers[resolve_layer(backbone, subject.config.layer)]).module

        def before_forward(module: nn.Module, args: Any) -> None:
            profile.at_rest.append(ledger.live)

        def before_rudder(module: nn.Module, args: Any, output: Any) -> None:
            highest.append(ledger.peak)
            ledger.restart_peak()
            if len(profile.at_rest) == 1:
                profile.before_read = ledger.live

        def after_rudder(module: nn.Module, args: Any, output: Any) -> None:
            if len(profile.at_rest) == 1:
                profile.reading_peak = ledger.peak

        # Hooks run in the order in which they were registered: RUDDER's comes between these two.
        stack.callback(backbone.loop.register_forward_pre_hook(before_forward).remove)
        stack.callback(update.register_forward_hook(before_rudder).remove)
        stack.enter_context(subject.variant(variant))
        stack.callback(update.register_forward_hook(after_rudder).remove)
        with ledger:
            subject.answer(inputs, MEASURED_TOKENS)
        highest.append(ledger.peak)
    profile.at_rest = profile.at_rest[1:]
    profile.peak = allocated[0] if allocated else max(highest)
    return profile


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
