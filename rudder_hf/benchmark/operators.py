"""Counting: which operators one decoded token takes, and which of them RUDDER added."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from .variants import Subject

COUNTED_TOKENS = 5


class OperatorLog(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Names of the operators that ran, split where a forward pass of the model ends.

    What happens between two forward passes (choosing the token, preparing the next inputs) belongs to the later one.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.forwards: list[list[str]] = []
        self._current: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._current.append(str(func).removeprefix("aten."))
        return func(*args, **(kwargs or {}))

    def end_forward(self, module: nn.Module, args: Any, output: Any) -> None:
        """Hook for the end of a forward pass."""
        self.forwards.append(self._current)
        self._current = []


@dataclass(frozen=True)
class OperatorCount:
    """Operators of one variant while decoding.

    Attributes:
        per_token: Operators per decoded token; views count too, the prefill does not.
        token: Names of those of the last decoded token, in order.
    """

    per_token: float
    token: list[str]


def count_operators(subject: Subject, variant: str, inputs: dict[str, Any]) -> OperatorCount:
    """Count the operators of a variant per decoded token."""
    log = OperatorLog()
    with subject.variant(variant):
        handle = subject.backbone.loop.register_forward_hook(log.end_forward)
        try:
            with log:
                subject.answer(inputs, COUNTED_TOKENS)
        finally:
            handle.remove()
    decoded = log.forwards[1:]
    return OperatorCount(sum(map(len, decoded)) / len(decoded), decoded[-1])


def added_operators(vanilla: Sequence[str], steered: Sequence[str]) -> list[str]:
    """Names in `steered` that have no counterpart in `vanilla`, in order; removed ones are marked with a minus."""
    added: list[str] = []
    for tag, a, b, c, d in difflib.SequenceMatcher(None, vanilla, steered, autojunk=False).get_opcodes():
        if tag in ("delete", "replace"):
            added.extend(f"-{name}" for name in vanilla[a:b])
        if tag in ("insert", "replace"):
            added.extend(steered[c:d])
    return added
