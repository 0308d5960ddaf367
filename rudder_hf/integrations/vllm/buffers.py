"""What the operator reads and writes: tensors that stay where they are for the life of an engine."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from ...core.steering import StepConstants, step_constants, unit
from .planning import BLOCK, STEER, Changes, Planner

# alpha_max, k, c and the bounds of the gate.
_SETTINGS = 5


@lru_cache(maxsize=1024)
def _folded(row: tuple[float, ...], multiplier: float) -> Tensor:
    """What `steer_step` takes of a request's settings, beside CARD; requests rarely differ in them."""
    folded = step_constants(torch.ones(1, 1), *torch.tensor(row, dtype=torch.float32).unsqueeze(-1).unbind())
    parts = (folded.push / multiplier, folded.k, folded.c, folded.low, folded.high)
    return torch.cat([part.flatten() for part in parts])


class Buffers:
    """Tensors of one worker.

    Args:
        slots: Most requests that are worked on at a time.
        hidden_size: Width of the residual stream.
        max_tokens: Most tokens of a forward.
        device: Where the target layer is.
        by_norm: Whether updates are weighted by their length when they are pooled.
        multiplier: Factor that the layer applies to its attention output.
    """

    def __init__(
        self,
        slots: int,
        hidden_size: int,
        max_tokens: int,
        device: torch.device,
        by_norm: bool = False,
        multiplier: float = 1.0,
    ) -> None:
        self.device = device
        self.by_norm = by_norm
        self.multiplier = multiplier
        self.spare_slot = slots
        self.sums = torch.zeros(slots + 1, hidden_size, dtype=torch.float32, device=device)
        """Pooled updates of each slot."""
        self.cards = torch.zeros_like(self.sums)
        """CARD of each slot."""
        self.pushes = torch.zeros_like(self.sums)
        """alpha_max times CARD."""
        self.settings = torch.zeros(slots + 1, _SETTINGS, dtype=torch.float32, device=device)
        """What `step_constants` makes of a request's settings: the strength, k, c and the bounds of the gate."""
        self.tokens = torch.full((3, max_tokens), slots, dtype=torch.int64, device=device)
        """For each token the slot it is read into, the slot it is steered by, and its block."""
        self.block_sums: Tensor | None = None
        """Pooled updates of each block of the prefix cache."""
        self.branches = device.type == "cpu"
        """Whether a forward may leave out what it has no tokens for; a captured graph would always leave it out."""
        self.reads = self.fills = True
        """Whether the coming forward reads any token into a slot, and adds any to the sum of a block."""
        self.steered = torch.zeros(0, dtype=torch.int64, device=device)
        """Places of the tokens that the coming forward steers, where it may branch."""
        self.idle = False
        """Whether it does none of this."""
        self.whole: tuple[StepConstants, Tensor | None] | None = None
        """While it holds: what `steer_step` needs for all tokens of a forward, and which are steered if not all."""
        self._stale = True

    def keep_blocks(self, blocks: int) -> None:
        """Make room for the sums of the prefix cache's blocks. Only before a graph is captured."""
        self.block_sums = torch.zeros(blocks + 1, self.sums.shape[1], dtype=torch.float32, device=self.device)

    def open_slot(self, slot: int, row: Sequence[float]) -> None:
        """Begin a request in a slot with its alpha_max, k, c, g_min, g_max and norm_cap."""
        self.sums[slot] = 0.0
        self.set_row(slot, row)

    def set_row(self, slot: int, row: Sequence[float]) -> None:
        """Change the settings of a slot, not what was read into it."""
        self.settings[slot] = _folded(tuple(row), self.multiplier).to(self.device)
        self._stale = True

    def refresh(self) -> None:
        """Make CARD of the sums, where these may have changed."""
        if self._stale or self.reads:
            torch.mul(self.settings[:, :1], self.cards.copy_(unit(self.sums)), out=self.pushes)
            self._stale = False

    def of_tokens(self, start: int, stop: int) -> tuple[StepConstants, Tensor]:
        """What `steer_step` needs for the tokens from `start` to `stop`, and which of them are steered."""
        slots = self.tokens[STEER, start:stop]
        return self.constants(slots), (slots != self.spare_slot)[:, None, None]

    def constants(self, slot: Tensor) -> StepConstants:
        """What `steer_step` needs for tokens that are steered by these slots."""
        gate = self.settings[slot].view(-1, 1, 1, _SETTINGS).unbind(-1)[1:]
        return StepConstants(self.cards[slot].unsqueeze(-1), self.pushes[slot].unsqueeze(1), *gate)

    def apply(self, planner: Planner, changes: Changes, padded: int) -> None:
        """Bring the buffers to the state that a forward starts from."""
        if self.block_sums is not None:
            for slot, blocks in changes.hits:
                self.sums[slot] += self.block_sums[torch.tensor(blocks, device=self.device)].sum(0)
                self._stale = True
            if changes.fresh_blocks:
                self.block_sums[torch.tensor(changes.fresh_blocks, device=self.device)] = 0.0
        rows = slice(BLOCK, None) if changes.same else slice(None)
        self.tokens[rows, :padded] = torch.from_numpy(planner.tokens[rows, :padded])
        if not changes.same:
            self._leave_out(changes)

    def _leave_out(self, changes: Changes) -> None:
        """Take note of what the coming forwards need not do, where they may branch."""
        self.whole = None
        if self.branches:
            self.reads, self.fills, self.steered = changes.reads, changes.fills, torch.from_numpy(changes.steered)
            self.idle = not (changes.reads or changes.fills or len(changes.steered))

    def neutral(self, planner: Planner) -> None:
        """Make a forward that belongs to no request read and steer nothing."""
        planner.neutral(planner.tokens.shape[1])
        self.tokens.copy_(torch.from_numpy(planner.tokens))
        self._leave_out(Changes())
