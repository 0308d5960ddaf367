"""What the operator reads and writes: tensors that stay where they are for the life of an engine."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .planning import Changes, Planner

_SETTINGS = 6


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
        self.settings = torch.zeros(slots + 1, _SETTINGS, dtype=torch.float32, device=device)
        """alpha_max, k, c, g_min, g_max and norm_cap of each slot."""
        self.tokens = torch.full((3, max_tokens), slots, dtype=torch.int64, device=device)
        """For each token the slot it is read into, the slot it is steered by, and its block."""
        self.block_sums: Tensor | None = None
        """Pooled updates of each block of the prefix cache."""

    def keep_blocks(self, blocks: int) -> None:
        """Make room for the sums of the prefix cache's blocks. Only before a graph is captured."""
        self.block_sums = torch.zeros(blocks + 1, self.sums.shape[1], dtype=torch.float32, device=self.device)

    def open_slot(self, slot: int, row: Sequence[float]) -> None:
        """Begin a request in a slot with its settings."""
        self.sums[slot] = 0.0
        self.settings[slot] = torch.tensor(row, dtype=torch.float32)

    def apply(self, planner: Planner, changes: Changes, padded: int) -> None:
        """Bring the buffers to the state that a forward starts from."""
        if self.block_sums is not None:
            for slot, blocks in changes.hits:
                self.sums[slot] += self.block_sums[torch.tensor(blocks, device=self.device)].sum(0)
            if changes.fresh_blocks:
                self.block_sums[torch.tensor(changes.fresh_blocks, device=self.device)] = 0.0
        self.tokens[:, :padded] = torch.from_numpy(planner.tokens[:, :padded])

    def neutral(self, planner: Planner) -> None:
        """Make a forward that belongs to no request read and steer nothing."""
        planner.neutral(planner.tokens.shape[1])
        self.tokens.copy_(torch.from_numpy(planner.tokens))
