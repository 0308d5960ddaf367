"""Counting forwards exactly: positions that go through the decoder, of prompts and of answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..core.backbones import Backbone


@dataclass
class ForwardCount:
    """Positions that went through the decoder: each row of each forward counts with its number of positions.

    Attributes:
        prompt: Positions of forwards that began with an empty cache: prompts, of the main branch and of side branches.
        answer: Positions of all other forwards, whoever asked for them: the loop, side branches, candidates, tokens
            that are read again.
    """

    prompt: int = 0
    answer: int = 0


@contextmanager
def count_forwards(backbone: Backbone) -> Iterator[ForwardCount]:
    """Count while the block runs, at the first decoder layer, which every forward passes."""
    count = ForwardCount()

    def note(layer: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        hidden = args[0] if args else kwargs["hidden_states"]
        cache = kwargs.get("past_key_values")
        if cache is None or cache.get_seq_length() == 0:
            count.prompt += hidden.shape[0] * hidden.shape[1]
        else:
            count.answer += hidden.shape[0] * hidden.shape[1]

    handle = backbone.layers[0].register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield count
    finally:
        handle.remove()
