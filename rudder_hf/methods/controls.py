"""What the control experiments share: RUDDER as it is, but with another direction in CARD's place.

A steering result means little unless a push of the same strength along a direction without this image's evidence does
less. Layer, strength, gate and answer span of a control are those of the RUDDER settings it is given.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor, nn

from ..core.call import Call
from ..core.configuration import MODES
from ..core.handle import SteeringHandle, attach
from .base import Generate, _plain, check_sample_ids, refuse_steered
from .branches import arguments_of
from .rudder import RudderBeta

Context = Any
"""What a control prepares for one call."""

_CONTEXT: ContextVar[Context] = ContextVar("rudder_control", default=None)


@dataclass(frozen=True)
class RudderControl(RudderBeta):
    """RUDDER with another direction than CARD.

    Attributes:
        mode: "beta" or "add": which RUDDER this is the control of.
    """

    mode: str = "beta"

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"{self.name}: `mode` is {self.mode!r}, but has to be one of {', '.join(MODES)}.")
        super().__post_init__()

    def prepare(self, handle: SteeringHandle, call: Call, sample_ids: list[str] | None) -> Context:
        """What `direction` needs to know of a call; the ids of its samples unless a control needs more."""
        return sample_ids

    @abstractmethod
    def direction(self, card: Tensor, with_image: Sequence[bool], context: Context) -> Tensor:
        """The direction instead of CARD, (rows, hidden size), for as many rows.

        Args:
            card: CARD of each row; the rows of a prompt (beams, return sequences) lie together.
            with_image: For each prompt whether it has an image.
            context: From `prepare`.
        """

    def settings(self) -> dict[str, Any]:
        """The settings in force, RUDDER's and the control's own."""
        base = {item.name for item in fields(RudderBeta)}
        return super().settings() | {
            item.name: _plain(getattr(self, item.name)) for item in fields(self) if item.name not in base
        }

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[Generate]:
        """See `Intervention.applied`."""
        refuse_steered(model)
        with attach(model, self.rudder_config()) as handle:
            base: Any = handle.backbone.model
            handle.card_map = lambda card, with_image: self.direction(card, with_image, _CONTEXT.get())

            def generate(*args: Any, sample_ids: Sequence[str] | None = None, **kwargs: Any) -> Any:
                rudder = {name: kwargs.pop(name) for name in ("rudder", "output_rudder") if name in kwargs}
                call = Call(base, args, kwargs)
                token = _CONTEXT.set(self.prepare(handle, call, check_sample_ids(sample_ids, call.batch)))
                try:
                    # A compiled forward would keep the direction of the call that it was compiled in.
                    return base.generate(**(arguments_of(call) | rudder | {"disable_compile": True}))
                finally:
                    _CONTEXT.reset(token)

            yield generate
