"""What the operator reads and writes: tensors that stay where they are for the life of an engine."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ...core.steering import StepConstants, step_constants, unit
from .planning import STEER, Changes, Planner

# alpha_max, k, c and the bounds of the gate.
_SETTINGS = 5


def to_device(values: Any, device: torch.device) -> Tensor:
    """Return numbers of the host as a tensor on the device, without waiting for the device.

    All that RUDDER sends to a device goes through here. torch keeps the pinned copy until it has been read.
    """
    host = torch.as_tensor(values)
    return host if device.type == "cpu" else host.pin_memory().to(device, non_blocking=True)


@lru_cache(maxsize=1024)
def _folded(row: tuple[float, ...], multiplier: float) -> Tensor:
    """Return what `steer_step` takes of a request's settings, beside CARD; requests rarely differ in them."""
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
        # The spare slot stands for "none": tokens may name it, but nothing is added to it.
        self.spare_slot = slots
        self.sums = torch.zeros(slots + 1, hidden_size, dtype=torch.float32, device=device)  # of each slot's updates
        self.cards = torch.zeros_like(self.sums)
        self.pushes = torch.zeros_like(self.sums)  # alpha_max times CARD
        self.settings = torch.zeros(slots + 1, _SETTINGS, dtype=torch.float32, device=device)
        # For each token the slot it is read into, the slot it is steered by, and its block.
        self.tokens = torch.full((3, max_tokens), slots, dtype=torch.int64, device=device)
        self.block_sums: Tensor | None = None  # of the updates in each block of the prefix cache
        # Whether a forward may leave out what it has no tokens for; a captured graph would always leave it out.
        self.branches = device.type == "cpu"
        self.coming = Changes(reads=True, fills=True)  # what the coming forward has tokens for, where it may branch
        self._stale = True

    def keep_blocks(self, blocks: int) -> None:
        """Make room for the sums of the prefix cache's blocks. Only before a graph is captured."""
        self.block_sums = torch.zeros(blocks + 1, self.sums.shape[1], dtype=torch.float32, device=self.device)

    def open_slot(self, slot: int, row: Sequence[float]) -> None:
        """Begin a request in a slot with its alpha_max, k, c, g_min, g_max and norm_cap."""
        self.sums[slot].zero_()
        self.settings[slot].copy_(to_device(_folded(tuple(row), self.multiplier), self.device))
        self._stale = True

    def refresh(self) -> None:
        """Make CARD of the sums, where these may have changed."""
        if self._stale or self.coming.reads or not self.branches:
            torch.mul(self.settings[:, :1], self.cards.copy_(unit(self.sums)), out=self.pushes)
            self._stale = False

    def of_tokens(self, span: slice) -> tuple[StepConstants, Tensor]:
        """Return what `steer_step` needs for some tokens of the forward, and which of them are steered."""
        slots = self.tokens[STEER, span]
        gate = self.settings[slots].view(-1, 1, 1, _SETTINGS).unbind(-1)[1:]
        constants = StepConstants(self.cards[slots].unsqueeze(-1), self.pushes[slots].unsqueeze(1), *gate)
        return constants, (slots != self.spare_slot)[:, None, None]

    def apply(self, planner: Planner, changes: Changes, padded: int) -> None:
        """Bring the buffers to the state that a forward starts from."""
        if self.block_sums is not None:
            for slot, blocks in changes.hits:
                self.sums[slot] += self.block_sums[to_device(blocks, self.device)].sum(0)
                self._stale = True
            if changes.fresh_blocks:
                self.block_sums.index_fill_(0, to_device(changes.fresh_blocks, self.device), 0.0)
        self.tokens[:, :padded].copy_(to_device(planner.tokens[:, :padded], self.device))
        self.coming = changes

    def neutral(self, planner: Planner) -> None:
        """Make a forward that belongs to no request read and steer nothing."""
        planner.neutral(planner.tokens.shape[1])
        self.apply(planner, Changes(), planner.tokens.shape[1])
