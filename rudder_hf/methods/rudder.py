"""RUDDER-Beta and RUDDER-Add, through `rudder_hf.attach`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any

from torch import nn

from ..core.configuration import CALL_SETTINGS, RudderConfig
from ..core.handle import attach
from .base import Generate, Intervention, refuse_steered


@dataclass(frozen=True)
class RudderBeta(Intervention):
    """RUDDER with the Beta gate. Settings that are not given are those of `config`.

    Attributes:
        config: Settings of the model; its `mode` is this method's.
        layer: Decoder layer that is read and steered.
        alpha_max: Strength of the push.
        k: Sensitivity of the gate.
        c: Concentration of the gate.
        g_min: Least gate.
        g_max: Greatest gate.
        pool: "mean" or "norm".
        span: "prompt", "text" or "image".
        norm_cap: Longest push allowed.
        steer_first_token: Whether the first answer token is steered too.
    """

    name = "rudder-beta"

    config: RudderConfig | None = field(default=None, repr=False, hash=False)
    layer: int | None = None
    alpha_max: float | None = None
    k: float | None = None
    c: float | None = None
    g_min: float | None = None
    g_max: float | None = None
    pool: str | None = None
    span: str | None = None
    norm_cap: float | None = None
    steer_first_token: bool | None = None

    mode = "beta"

    def __post_init__(self) -> None:
        if self.config is None and (self.layer is None or self.alpha_max is None):
            raise ValueError(
                f"{self.name} needs settings for the model: config=RudderConfig(...) or get_preset(name).config(), or "
                "at least layer= and alpha_max=."
            )
        self.rudder_config()

    def rudder_config(self) -> RudderConfig:
        """The settings as a `RudderConfig`."""
        names = ("layer", *CALL_SETTINGS)
        values = {} if self.config is None else {name: getattr(self.config, name) for name in names}
        own = {item.name: getattr(self, item.name) for item in fields(self) if item.name in names}
        values |= {name: value for name, value in own.items() if value is not None}
        return RudderConfig(**{**values, "mode": self.mode})

    def settings(self) -> dict[str, Any]:
        """The settings in force, as plain JSON values."""
        config = self.rudder_config()
        return {name: getattr(config, name) for name in ("layer", *CALL_SETTINGS)}

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[Generate]:
        """See `Intervention.applied`."""
        refuse_steered(model)
        with attach(model, self.rudder_config()) as handle:

            def generate(*args: Any, sample_ids: Sequence[str] | None = None, **kwargs: Any) -> Any:
                return handle.backbone.model.generate(*args, **kwargs)  # type: ignore[operator]

            yield generate


@dataclass(frozen=True)
class RudderAdd(RudderBeta):
    """RUDDER with a constant strength, without gate."""

    name = "rudder-add"
    mode = "add"
