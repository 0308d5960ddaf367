"""RUDDER-Beta and RUDDER-Add, through `rudder_hf.attach`, and vanilla, the model as it is."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from torch import nn

from ..core.attach import attach
from ..core.configuration import RudderConfig
from ..core.handle import SteeringHandle
from ..core.settings import CALL_SETTINGS, CONTRAST_DEFAULTS
from .base import Generate, Method, Sources, refuse_steered


@dataclass(frozen=True)
class Vanilla(Method):
    """The model's own `generate`, untouched: what every method is compared with."""

    name = "vanilla"

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[Generate]:
        """See `Method.applied`."""
        refuse_steered(model)

        def generate(*args: Any, sample_ids: Sequence[str] | None = None, **kwargs: Any) -> Any:
            return model.generate(*args, **kwargs)  # type: ignore[operator]

        yield generate


@dataclass(frozen=True)
class Attached(Method):
    """A method that attaches settings of RUDDER to the model."""

    @abstractmethod
    def rudder_config(self) -> RudderConfig:
        """The settings as a `RudderConfig`."""

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[Generate]:
        """See `Method.applied`."""
        refuse_steered(model)
        with attach(model, self.rudder_config()) as handle:
            yield functools.partial(self._generate, handle)

    def _generate(
        self, handle: SteeringHandle, /, *args: Any, sample_ids: Sequence[str] | None = None, **kwargs: Any
    ) -> Any:
        return handle.backbone.model.generate(*args, **kwargs)  # type: ignore[operator]


@dataclass(frozen=True)
class RudderBeta(Attached):
    """RUDDER with the Beta gate. Settings that are not given are those of `config`; see `RudderConfig`."""

    name = "rudder-beta"
    searched_strengths: ClassVar[tuple[float, ...]] = (0.2, 0.3, 0.45, 0.65)  # shares of the hidden states' norm

    config: RudderConfig | None = field(default=None, repr=False, hash=False)  # its `mode` is this method's
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
        super().__post_init__()
        if self.config is None and (self.layer is None or self.alpha_max is None):
            raise ValueError(
                f"There are no RUDDER settings for the model, which {self.name} needs: pass config=RudderConfig(...), "
                "such as get_preset(name).config(), or at least layer= and alpha_max=; on the command line --model "
                "SETTINGS, or --set layer=... --set alpha_max=..."
            )
        self.rudder_config()

    @classmethod
    def for_model(cls, model: nn.Module, sources: Sources, **settings: Any) -> Self:
        """See `Method.for_model`: `config` is RUDDER's for the model."""
        config = None if sources.rudder is None else sources.rudder(cls.name)
        return cls(**{"config": config, **settings})

    @classmethod
    def search_space(cls, hidden_norms: Mapping[int, float]) -> list[dict[str, Any]]:
        """See `Method.search_space`. RUDDER has no published strength for models that are not in the paper."""
        return [
            {"config": None, "layer": layer, "alpha_max": absolute_strength(share, norm)}
            for share in cls.searched_strengths
            for layer, norm in hidden_norms.items()
        ]

    def rudder_config(self) -> RudderConfig:
        """The settings as a `RudderConfig`."""
        # Without the contrast, which is not the paper's, whatever the config has.
        values = ({} if self.config is None else self.config.settings()) | CONTRAST_DEFAULTS
        own = {name: getattr(self, name, None) for name in ("layer", *CALL_SETTINGS)}
        return RudderConfig(**{**values, **{name: value for name, value in own.items() if value is not None}})

    def settings(self) -> dict[str, Any]:
        """The settings in force, as plain JSON values."""
        own = {name: value for name, value in super().settings().items() if name != "config"}
        return own | self.rudder_config().settings()


@dataclass(frozen=True)
class RudderAdd(RudderBeta):
    """RUDDER with a constant strength, without gate."""

    name = "rudder-add"
    searched_strengths = (0.1, 0.2, 0.3, 0.45)
    mode = "add"


def absolute_strength(share: float, hidden_norm: float) -> float:
    """`alpha_max` as a share of the norm of the hidden states, to four digits, so that it reads well in a config."""
    return float(f"{share * hidden_norm:.4g}")
