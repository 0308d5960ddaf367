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


@dataclass(frozen=True)
class Conversation:
    """What the prompts that a cache holds were pooled to."""

    reading: tuple[int, str, str]  # layer, pooling and span that they were read with
    start: int  # positions of the cache up to the end of the last prompt
    end: int  # positions up to the end of its answer, as far as the cache holds it
    pooled: Tensor  # sum of the updates for each prompt, (prompts, hidden size), which its beams and sequences share
    with_image: list[bool]  # for each prompt
    # Tokens of the returned sequences, (prompts * sequences, new tokens). The last one is emitted but not forwarded.
    answer: Tensor
    contrast_pending: bool = False  # whether values of an image are still to be contrasted

    def covers(self, call: Call, reading: tuple[int, str, str]) -> bool:
        """Return whether every prompt token in the cache of a call was read, the same way, for the same rows.

        A cache may have been cropped within the last answer, but not into a prompt, nor have grown since.
        """
        same_rows = call.batch % len(self.with_image) == 0
        return self.reading == reading and self.start <= call.cached_length <= self.end and same_rows

    def unread(self, call: Call) -> int:
        """Return how many positions at the start of a call's prompt belong to the earlier answer: its last token."""
        return self.start + self.answer.shape[1] - self.end if self.end == call.cached_length else 0

    def continued(self, call: Call) -> int:
        """Return how many answer tokens a call repeats in order to continue them; 0 if it brings a new prompt."""
        repeated = self.start + self.answer.shape[1] - call.cached_length
        if call.input_ids is None or not 0 < repeated == call.remaining_prompt:
            return 0
        prompts = len(self.with_image)
        asked = call.input_ids[:, -repeated:].reshape(prompts, -1, 1, repeated)
        known = self.answer[:, -repeated:].reshape(prompts, 1, -1, repeated).to(asked.device)
        # Each row continues any of the sequences that were returned for its prompt.
        return repeated if bool((asked == known).all(-1).any(-1).all()) else 0

    def images_of(self, rows: int) -> list[bool]:
        """Return for each of `rows` rows whether its earlier prompts had an image."""
        return [image for image in self.with_image for _ in range(rows // len(self.with_image))]


class Conversations:
    """Remembers pooled sums by cache, for as long as the cache lives, without writing anything onto it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_cache: weakref.WeakKeyDictionary[Any, Conversation] = weakref.WeakKeyDictionary()

    def recall(self, call: Call, reading: tuple[int, str, str]) -> Conversation | None:
        """Return what earlier prompts of a reused cache were pooled to; warn if the cache is full but unknown."""
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
        prompts = len(state.with_image)
        conversation = Conversation(
            reading=state.reading,
            start=call.cached_length + call.remaining_prompt,
            end=int(cache.get_seq_length()),
            pooled=state.pooled[:: state.pooled.shape[0] // prompts],
            with_image=state.with_image,
            answer=sequences[:, call.prompt_length :],
            contrast_pending=state.contrast is not None and bool(state.contrast.images),
        )
        with self._lock:
            self._by_cache[cache] = conversation
