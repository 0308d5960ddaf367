"""Which token of a batch is prompt and which is answer, and whose: plain numbers, made before each forward.

A request has a slot from its admission to its end or preemption, whatever row of the batch it is in. A token is prompt
if its position lies within the request's prompt, else answer; how many tokens a request brings says nothing (chunks of
a prompt may have one token, a resumed request recomputes many of its answer).

Nothing here needs vLLM or torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# Rows of `Planner.tokens`.
READ, STEER, BLOCK = 0, 1, 2

Positions = NDArray[np.int64]


@dataclass
class Planned:
    """A request that the engine is working on."""

    prompt_length: int
    steered: bool
    first_token: bool = False  # whether its last prompt position is steered
    counted: NDArray[np.bool_] | None = None  # for each position, of the answer too, whether it is in the pooled span
    slot: int = -1  # of its pooled sum and its settings, chosen by the planner; the spare slot if it is not steered


@dataclass
class Changes:
    """What has to happen to the buffers before a forward, in this order."""

    hits: list[tuple[int, list[int]]] = field(default_factory=list)  # slot, and computed blocks whose sums it gets
    fresh_blocks: list[int] = field(default_factory=list)  # blocks that this forward begins to fill
    reads: bool = False  # whether any token is read into a slot
    fills: bool = False  # whether any token is added to the sum of its block
    steers: bool = False  # whether any token is steered


class _Steady(NamedTuple):
    """A forward with one answer token for each request; those that follow it with the same requests are alike."""

    requests: list[str]
    size: tuple[int, int]  # its tokens, and its positions with padding
    shared: Positions  # rows of the requests whose blocks may be shared


class Planner:
    """Slots of requests, and the plan of each forward.

    Args:
        slots: Most requests that are worked on at a time.
        max_tokens: Most tokens of a forward.
        block_size: Tokens in a block of the prefix cache; None without one.
        blocks: Number of blocks.
    """

    def __init__(self, slots: int, max_tokens: int, block_size: int | None = None, blocks: int = 0) -> None:
        self.spare_slot = slots
        self.spare_block = blocks
        self.block_size = block_size
        self.requests: dict[str, Planned] = {}
        self._steady: _Steady | None = None
        self.tokens: Positions = np.zeros((3, max_tokens), dtype=np.int64)
        self.neutral(max_tokens)
        self._free = list(range(slots - 1, -1, -1))
        # Cached blocks of requests that begin with the coming forward, and of those that began with the last one.
        self._hits: dict[str, list[int]] = {}
        self._ripe_hits: dict[str, list[int]] = {}

    def neutral(self, stop: int, start: int = 0) -> None:
        """Mark the tokens from `start` to `stop` as unassigned: neither read nor steered."""
        self._steady = None
        self.tokens[READ, start:stop] = self.spare_slot
        self.tokens[STEER, start:stop] = self.spare_slot
        self.tokens[BLOCK, start:stop] = self.spare_block

    def admit(self, request: str, planned: Planned, cached_blocks: Sequence[int] = ()) -> int:
        """Take up a request whose prompt is read from its beginning, or from the end of its cached blocks.

        Returns:
            Its slot; the spare one if it is not steered.

        Raises:
            RuntimeError: All slots are taken.
        """
        self.release(request)
        if planned.steered and not self._free:
            raise RuntimeError(
                f"RUDDER has {self.spare_slot} slots and all are taken: vLLM runs more requests than max_num_seqs."
            )
        planned.slot = self._free.pop() if planned.steered else self.spare_slot
        self.requests[request] = planned
        if planned.steered and cached_blocks:
            self._hits[request] = list(cached_blocks)
        return planned.slot

    def release(self, request: str) -> None:
        """Give back the slot of a request that ended or was preempted; unknown ones are ignored."""
        self._steady = None
        self._hits.pop(request, None)
        self._ripe_hits.pop(request, None)
        planned = self.requests.pop(request, None)
        if planned is not None and planned.slot != self.spare_slot:
            self._free.append(planned.slot)

    def plan(
        self,
        requests: Sequence[str],
        computed: Positions,
        counts: Mapping[str, int],
        total: int,
        padded: int,
        blocks_of: Callable[[str], Sequence[int]],
    ) -> Changes | None:
        """Fill `tokens` for the coming forward.

        Args:
            requests: The batch's requests in the order of their tokens.
            computed: For each, how many of its tokens earlier forwards computed.
            counts: For each, how many tokens this forward computes; at least one.
            total: Sum of these.
            padded: Number of positions of the forward, padding included.
            blocks_of: Gives a request's physical blocks.

        Returns:
            What to do to the buffers before the forward; None if nothing, as before most tokens of an answer.
        """
        if self._is_like_last(requests, computed, (total, padded)):
            return None
        hits = self._take_hits()
        live = [self.requests[request] for request in requests]
        lengths = np.array([counts[request] for request in requests], dtype=np.int64)
        rows = np.repeat(np.arange(len(live)), lengths)
        starts = np.cumsum(lengths) - lengths
        positions = np.arange(total) - starts[rows] + computed[rows]
        slots = np.array([planned.slot for planned in live], dtype=np.int64)[rows]
        prompts = np.array([planned.prompt_length for planned in live], dtype=np.int64)[rows]
        first = np.array([planned.first_token for planned in live], dtype=bool)[rows]
        prompt, steered = self.classify(positions, prompts, first, lengths[rows])
        steered &= slots != self.spare_slot
        # Answers are pooled once they are part of a later prompt.
        counted = np.ones(total, dtype=bool)
        for planned, start, count in zip(live, starts.tolist(), lengths.tolist(), strict=True):
            if planned.counted is not None:
                counted[start : start + count] = planned.counted[positions[start : start + count]]
        self.neutral(padded, total)
        self.tokens[READ, :total] = np.where(prompt & counted, slots, self.spare_slot)
        self.tokens[STEER, :total] = np.where(steered, slots, self.spare_slot)
        reads = self.tokens[READ, :total] != self.spare_slot
        changes = Changes(hits, reads=bool(reads.any()), steers=bool(steered.any()))
        # Blocks that hold the answer of a steered request are shared with nobody, so that nobody needs their sums.
        shared = prompt | (slots == self.spare_slot)
        if self.block_size is not None:
            tables, numbers = [blocks_of(request) for request in requests], (positions // self.block_size).tolist()
            blocks = np.array([tables[row][number] for row, number in zip(rows.tolist(), numbers, strict=True)])
            changes.fresh_blocks = blocks[shared & (positions % self.block_size == 0)].tolist()
            changes.fills = bool((shared & counted).any())
            self.tokens[BLOCK, :total] = np.where(shared & counted, blocks, self.spare_block)
        if total == len(live) and not prompt.any():
            self._steady = _Steady(list(requests), (total, padded), np.flatnonzero(shared))
        return changes

    def _is_like_last(self, requests: Sequence[str], computed: Positions, size: tuple[int, int]) -> bool:
        """Return whether the coming forward has the plan of the last: the same answers go on, in the same blocks."""
        last = self._steady
        if last is None or last.size != size or last.requests != requests or self._hits or self._ripe_hits:
            return False
        return self.block_size is None or bool((computed[last.shared] % self.block_size).all())

    def classify(
        self, positions: Positions, prompt_lengths: Positions, first: NDArray[np.bool_], counts: Positions
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return for each token whether it is prompt, and whether it is steered."""
        prompt = positions < prompt_lengths
        return prompt, ~prompt | (first & (positions == prompt_lengths - 1))

    def _take_hits(self) -> list[tuple[int, list[int]]]:
        """Return the hits that the coming forward needs: those of requests that began with an earlier one.

        A request's cached blocks may be filled by another request in the very forward that it begins with, so that
        their sums are only read before its next one. Its answer, which alone needs them, starts there at the earliest.
        """
        ready = [(self.requests[name].slot, blocks) for name, blocks in self._ripe_hits.items()]
        self._ripe_hits, self._hits = self._hits, {}
        return ready


def private_hashes(
    hasher: Callable[[Any], list[bytes]], clean_blocks: int, owner: str
) -> Callable[[Any], list[bytes]]:
    """Return a hasher of the prefix cache's blocks whose hashes after the first `clean_blocks` belong to the owner.

    vLLM names a block by hashing its tokens and the names of the blocks before it.

    Args:
        hasher: Gives the hashes of a request's blocks that have none yet.
        clean_blocks: Number of blocks that others may share.
        owner: What distinguishes the request.
    """

    def hashes(request: Any) -> list[bytes]:
        known = len(request.block_hashes)
        new = hasher(request)
        shared = max(clean_blocks - known, 0)
        return new[:shared] + [hashlib.sha256(owner.encode() + b"\0" + value).digest() for value in new[shared:]]

    return hashes
