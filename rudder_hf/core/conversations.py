"""Conversations on a reused key-value cache: what earlier prompts were pooled to is remembered beside the cache."""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .call import Call
from .errors import warn
from .state import GenerationState

Reading = tuple[int, str, str]
"""Layer, pooling and span that prompts were read with."""


@dataclass(frozen=True)
class Conversation:
    """What the prompts that a cache holds were pooled to.

    Attributes:
        reading: How they were read.
        start: Number of positions of the cache up to the end of the last prompt.
        end: Number of positions up to the end of its answer, as far as the cache holds it.
        total: Number of positions with the whole answer; its last token is emitted but not forwarded.
        pooled: Sum of the updates, (rows, hidden size).
        with_image: For each row whether its prompts had an image.
    """

    reading: Reading
    start: int
    end: int
    total: int
    pooled: Tensor
    with_image: list[bool]

    def covers(self, call: Call, reading: Reading) -> bool:
        """Whether every prompt token in the cache of a call was read, the same way, for the same rows.

        A cache may have been cropped within the last answer, but not into a prompt, nor have grown since.
        """
        same_rows = call.batch % len(self.with_image) == 0
        return self.reading == reading and self.start <= call.cached_length <= self.end and same_rows

    def unread(self, call: Call) -> int:
        """Positions at the start of a call's prompt that belong to the earlier answer: its last token."""
        return self.total - self.end if self.end == call.cached_length else 0

    def images_of(self, rows: int) -> list[bool]:
        """For each of `rows` rows whether its earlier prompts had an image."""
        return repeat_rows(self.with_image, rows)


class Conversations:
    """Remembers pooled sums by cache, for as long as the cache lives, without writing anything onto it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_cache: weakref.WeakKeyDictionary[Any, Conversation] = weakref.WeakKeyDictionary()

    def recall(self, call: Call, reading: Reading) -> Conversation | None:
        """What earlier prompts of a reused cache were pooled to; warns if the cache is full but unknown."""
        if call.cached_length == 0:
            return None
        with self._lock:
            conversation = self._by_cache.get(call.cache)
        if conversation is None or not conversation.covers(call, reading):
            warn(
                f"The cache ({call.cached_length} positions) holds prompt tokens that RUDDER did not read, or "
                "read with other settings or for other rows: CARD is pooled from the new ones alone. Steered calls "
                "that fill the cache pool the whole conversation."
            )
            return None
        return conversation

    def remember(self, call: Call, state: GenerationState, output: Any) -> None:
        """Keep the pooled sum for the next turn on the same cache."""
        cache = call.cache if call.cache is not None else getattr(output, "past_key_values", None)
        if cache is None or state.pooled is None:
            return
        sequences = output if isinstance(output, Tensor) else output.sequences
        start = call.cached_length + call.remaining_prompt
        conversation = Conversation(
            reading=state.reading,
            start=start,
            end=int(cache.get_seq_length()),
            total=start + sequences.shape[1] - call.prompt_length,
            pooled=state.pooled,
            with_image=repeat_rows(state.with_image, state.pooled.shape[0]),
        )
        with self._lock:
            self._by_cache[cache] = conversation


def repeat_rows(values: list[bool], rows: int) -> list[bool]:
    """Each value as often as rows were made of it (beams, return sequences)."""
    return [value for value in values for _ in range(rows // len(values))]
