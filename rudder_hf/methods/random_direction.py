"""Control: a random direction of CARD's length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .base import check_number
from .controls import Context, RudderControl
from .randomness import sample_normal


@dataclass(frozen=True)
class RandomDirection(RudderControl):
    """RUDDER with a direction drawn uniformly from the sphere, as long as CARD.

    Each sample has its own, by `seed` and its id; without `sample_ids` by `seed` and its place in the batch. Beams and
    return sequences of a prompt share it.

    Attributes:
        seed: Of the directions.
    """

    name = "rudder-random"

    seed: int = 0

    def __post_init__(self) -> None:
        check_number(self, "seed", 0, 2**63, whole=True)
        super().__post_init__()

    def direction(self, card: Tensor, with_image: Sequence[bool], context: Context) -> Tensor:
        """See `RudderControl.direction`."""
        names = [f"row {prompt}" for prompt in range(len(with_image))] if context is None else context
        drawn = torch.stack([sample_normal(card.shape[1:], self.seed, name) for name in names])
        drawn = (drawn / drawn.norm(dim=-1, keepdim=True)).to(card)
        length = torch.linalg.vector_norm(card, dim=-1, keepdim=True)
        direction: Tensor = length * drawn.repeat_interleave(len(card) // len(drawn), dim=0)
        return direction
