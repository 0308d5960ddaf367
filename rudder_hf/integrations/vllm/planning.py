"""Which token of a batch is prompt and which is answer, and whose: plain numbers, made before each forward.

A request has a slot from its admission to its end or preemption, whatever row of the batch it is in. A token is prompt
if its position lies within the request's prompt, else answer; how many tokens a request brings says nothing (chunks of
a prompt may have one token, a resumed request recomputes many of its answer).

Nothing here needs vLLM or torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Rows of `Planner.tokens`.
READ, STEER, BLOCK = 0, 1, 2

Positions = NDArray[np.int64]


@dataclass
class Planned:
    """A request that the engine is working on.

    Attributes:
        prompt_length: Number of its prompt tokens.
        steered: Whether it is steered.
        first_token: Whether its last prompt position is steered.
        counted: For each prompt position whether it is pooled; None if all are.
        slot: Where its pooled sum and its settings are, chosen by the planner; the spare slot if it is not steered.
    """

    prompt_length: int
    steered: bool
    first_token: bool = False
    counted: NDArray[np.bool_] | None = None
    slot: int = -1


@dataclass
class Changes:
    """What has to happen to the buffers before a forward, in this order.

    Attributes:
        hits: Slot and cached blocks whose sums it starts with. These blocks were computed in earlier forwards.
        fresh_blocks: Blocks that this forward begins to fill.
        reads: Whether any token is read into a slot.
        steered: Places of the tokens that are steered, in the forward.
        same: Whether `Planner.tokens` is what it was for the last forward, its blocks aside.
    """

    hits: list[tuple[int, list[int]]] = field(default_factory=list)
    fresh_blocks: list[int] = field(default_factory=list)
    reads: bool = False
    steered: Positions = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    same: bool = False


@dataclass
class _Steady:
    """A forward with one answer token for each request; those that follow it with the same requests are alike."""

    requests: list[str]
    padded: int
    counted: NDArray[np.bool_]
    steered: Positions


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
        # Whether answer tokens belong to the pooled span once they are part of a later prompt.
        self.answers_count = True
        self._free = list(range(slots - 1, -1, -1))
        # Cached blocks of requests that begin with the coming forward, and of those that began with the last one.
        self._hits: dict[str, list[int]] = {}
        self._ripe_hits: dict[str, list[int]] = {}

    @property
    def free_slots(self) -> int:
        """Number of slots that no request holds."""
        return len(self._free)

    def neutral(self, stop: int, start: int = 0) -> None:
        """Make the tokens from `start` to `stop` nobody's."""
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

    def extend(self, request: str, planned: Planned) -> int:
        """Go on with a request whose prompt has grown: what was read stays, what comes is read too.

        Returns:
            Its slot; the spare one if it is not steered, now or from the beginning.
        """
        self._steady = None
        planned.slot = self.requests[request].slot
        self.requests[request] = planned
        if not planned.steered:
            self._give_back(request)
        return planned.slot

    def release(self, request: str) -> None:
        """Give back the slot of a request that ended or was preempted; unknown ones are ignored."""
        self._steady = None
        if request in self.requests:
            self._give_back(request)
            del self.requests[request]

    def _give_back(self, request: str) -> None:
        """Leave a request without a slot of its own."""
        planned = self.requests[request]
        self._hits.pop(request, None)
        self._ripe_hits.pop(request, None)
        if planned.slot != self.spare_slot:
            self._free.append(planned.slot)
            planned.slot = self.spare_slot

    def plan(
        self,
        requests: Sequence[str],
        computed: Positions,
        counts: Positions,
        blocks_of: Callable[[str], Sequence[int]] | None = None,
        padded: int = 0,
    ) -> Changes:
        """Fill `tokens` for the coming forward.

        Args:
            requests: The batch's requests in the order of their tokens.
            computed: For each, how many of its tokens earlier forwards computed.
            counts: For each, how many tokens this forward computes.
            blocks_of: Gives a request's physical blocks.
            padded: Number of positions of the forward, where it is padded.

        Returns:
            What to do to the buffers before the forward.
        """
        if self._steady is not None and self.goes_on(requests, int(counts.sum()), padded):
            changes = Changes(steered=self._steady.steered, same=True)
            self._plan_blocks(requests, computed, counts, self._steady.counted, blocks_of, changes)
            return changes
        hits = self._take_hits()
        live = [self.requests[request] for request in requests]
        rows = np.repeat(np.arange(len(live)), counts)
        ends = np.cumsum(counts)
        positions = np.arange(len(rows)) - np.repeat(ends - counts, counts) + computed[rows]
        slots = np.array([planned.slot for planned in live], dtype=np.int64)[rows]
        lengths = np.array([planned.prompt_length for planned in live], dtype=np.int64)[rows]
        first = np.array([planned.first_token for planned in live], dtype=bool)[rows]
        prompt, steered = self.classify(positions, lengths, first, counts[rows])
        counted = self._counted(live, positions, ends - counts, ends)
        total = len(rows)
        self.neutral(max(padded, total), total)
        self.tokens[READ, :total] = np.where(prompt & counted, slots, self.spare_slot)
        self.tokens[STEER, :total] = np.where(steered, slots, self.spare_slot)
        reads = bool((self.tokens[READ, :total] != self.spare_slot).any())
        changes = Changes(hits, reads=reads, steered=np.flatnonzero(self.tokens[STEER, :total] != self.spare_slot))
        self._plan_blocks(requests, positions, counts, counted, blocks_of, changes)
        if total == len(live) and not prompt.any():
            self._steady = _Steady(list(requests), padded, counted, changes.steered)
        return changes

    def goes_on(self, requests: Sequence[str], total: int, padded: int) -> bool:
        """Whether the coming forward is like the last one: an answer token of each of the same requests.

        Args:
            requests: Its requests, each of which has a token at least.
            total: Number of its tokens.
            padded: Number of its positions.
        """
        last = self._steady
        waiting = self._hits or self._ripe_hits
        return (
            last is not None
            and not waiting
            and (total, padded) == (len(last.requests), last.padded)
            and last.requests == requests
        )

    def _counted(
        self, live: Sequence[Planned], positions: Positions, starts: Positions, stops: Positions
    ) -> NDArray[np.bool_]:
        """For each token whether it belongs to the pooled span."""
        counted = np.ones(len(positions), dtype=bool)
        for planned, start, stop in zip(live, starts, stops, strict=True):
            if planned.counted is not None:
                of_prompt = positions[start:stop] < len(planned.counted)
                counted[start:stop] = self.answers_count
                counted[start:stop][of_prompt] = planned.counted[positions[start:stop][of_prompt]]
        return counted

    def classify(
        self, positions: Positions, prompt_lengths: Positions, first: NDArray[np.bool_], counts: Positions
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """For each token whether it is prompt, and whether it is steered."""
        prompt = positions < prompt_lengths
        return prompt, ~prompt | (first & (positions == prompt_lengths - 1))

    def _take_hits(self) -> list[tuple[int, list[int]]]:
        """Hits of requests that were admitted before this forward, for the forwards after it.

        A request's cached blocks may be filled by another request in the very forward that it begins with, so that
        their sums are only read before its next one. Its answer, which alone needs them, starts there at the earliest.
        """
        ready = [(self.requests[name].slot, blocks) for name, blocks in self._ripe_hits.items()]
        self._ripe_hits, self._hits = self._hits, {}
        return ready

    def _plan_blocks(
        self,
        requests: Sequence[str],
        positions: Positions,
        counts: Positions,
        counted: NDArray[np.bool_],
        blocks_of: Callable[[str], Sequence[int]] | None,
        changes: Changes,
    ) -> None:
        """The block that each token's update is added to."""
        if self.block_size is None or blocks_of is None:
            return
        size = self.block_size
        start = 0
        parts = []
        for request, count in zip(requests, counts.tolist(), strict=True):
            first, last = int(positions[start]) // size, int(positions[start + count - 1]) // size
            physical = np.asarray(blocks_of(request)[first : last + 1], dtype=np.int64)
            parts.append(physical[positions[start : start + count] // size - first])
            start += count
        blocks = np.concatenate(parts)
        changes.fresh_blocks = blocks[positions % size == 0].tolist()
        self.tokens[BLOCK, :start] = np.where(counted, blocks, self.spare_block)


def private_hashes(
    hasher: Callable[[Any], list[bytes]], clean_blocks: int, owner: str
) -> Callable[[Any], list[bytes]]:
    """A hasher of the prefix cache's blocks that makes all hashes after the first `clean_blocks` the owner's own.

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
