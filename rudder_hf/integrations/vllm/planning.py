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
        fills: Whether any token is added to the sum of its block.
        steered: Places of the tokens that are steered, in the forward.
        same: Whether it is like the last forward, blocks aside.
    """

    hits: list[tuple[int, list[int]]] = field(default_factory=list)
    fresh_blocks: list[int] = field(default_factory=list)
    reads: bool = False
    fills: bool = False
    steered: Positions = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    same: bool = False


@dataclass
class _Steady:
    """A forward with one answer token for each request; those that follow it with the same requests are alike.

    Attributes:
        requests: Its requests.
        padded: Number of its positions.
        shared: Rows of the requests whose blocks may be shared.
        counted: For each row whether its token belongs to the pooled span.
    """

    requests: list[str]
    padded: int
    shared: Positions
    counted: NDArray[np.bool_]


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
        last = self._steady
        if (
            last is not None
            and (total, padded) == (len(last.requests), last.padded)
            and last.requests == requests
            and not (self._hits or self._ripe_hits)
        ):
            return self._next_blocks(last, computed, blocks_of)
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
        counted = self._counted(live, positions, starts, starts + lengths)
        self.neutral(padded, total)
        self.tokens[READ, :total] = np.where(prompt & counted, slots, self.spare_slot)
        self.tokens[STEER, :total] = np.where(steered, slots, self.spare_slot)
        reads = bool((self.tokens[READ, :total] != self.spare_slot).any())
        changes = Changes(hits, reads=reads, steered=np.flatnonzero(steered))
        # Blocks that hold the answer of a steered request are shared with nobody, so that nobody needs their sums.
        shared = prompt | (slots == self.spare_slot)
        if self.block_size is not None:
            tables, numbers = [blocks_of(request) for request in requests], (positions // self.block_size).tolist()
            blocks = np.array([tables[row][number] for row, number in zip(rows.tolist(), numbers, strict=True)])
            changes.fresh_blocks = blocks[shared & (positions % self.block_size == 0)].tolist()
            changes.fills = bool((shared & counted).any())
            self.tokens[BLOCK, :total] = np.where(shared & counted, blocks, self.spare_block)
        if total == len(live) and not prompt.any():
            self._steady = _Steady(list(requests), padded, np.flatnonzero(shared), counted)
        return changes

    def _next_blocks(
        self, last: _Steady, computed: Positions, blocks_of: Callable[[str], Sequence[int]]
    ) -> Changes | None:
        """What a forward like the last one changes: the blocks of answers that go on in a new one."""
        size = self.block_size
        if size is None or not len(last.shared):
            return None
        begun = last.shared[computed[last.shared] % size == 0]
        if not len(begun):
            return None
        fresh = [blocks_of(last.requests[row])[computed[row] // size] for row in begun.tolist()]
        self.tokens[BLOCK, begun] = np.where(last.counted[begun], fresh, self.spare_block)
        return Changes(fresh_blocks=fresh, same=True)

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
