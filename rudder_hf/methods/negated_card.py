"""Control: steer away from the image's evidence instead of towards it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from .controls import Context, RudderControl


@dataclass(frozen=True)
class NegatedCard(RudderControl):
    """RUDDER with -CARD. If CARD is evidence, this makes hallucination worse; the gate sees the negated one too."""

    name = "rudder-negated"

    def direction(self, card: Tensor, with_image: Sequence[bool], context: Context) -> Tensor:
        """See `RudderControl.direction`."""
        return -card
