"""The image-value contrast (`core.contrast`), which is not in the paper: alone, and with RUDDER-Beta."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ..core.configuration import RudderConfig
from ..core.settings import CONTRAST_DEFAULTS
from .base import grid, number
from .rudder import Attached, RudderBeta, absolute_strength


@dataclass(frozen=True)
class ContrastSettings:
    """What the methods with a contrast have in common."""

    contrast: float = number(0.6, 0.0, 100.0)  # lambda
    # First decoder layer whose image values are edited
    contrast_first_layer: int = number(CONTRAST_DEFAULTS["contrast_first_layer"], 0, 10_000)
    contrast_after: int = number(CONTRAST_DEFAULTS["contrast_after"], 1, 1_000_000)  # answer tokens before the edit


@dataclass(frozen=True)
class Contrast(ContrastSettings, Attached):
    """The image-value contrast alone, without RUDDER's push."""

    name = "contrast"
    searched: ClassVar[Sequence[Mapping[str, Any]]] = grid(contrast=(0.2, 0.4, 0.6, 0.8), contrast_after=(1, 8))

    def rudder_config(self) -> RudderConfig:
        """The settings as a `RudderConfig`; the layer only carries hooks that do nothing."""
        return RudderConfig(layer=-1, alpha_max=0.0, **{name: getattr(self, name) for name in CONTRAST_DEFAULTS})


@dataclass(frozen=True)
class RudderContrast(ContrastSettings, RudderBeta):
    """RUDDER-Beta with the image-value contrast."""

    name = "rudder-beta+contrast"

    @classmethod
    def search_space(cls, hidden_norms: Mapping[int, float]) -> list[dict[str, Any]]:
        """See `Method.search_space`: gentler pushes than RUDDER's alone."""
        return [
            {"config": None, "layer": layer, "alpha_max": absolute_strength(share, norm), "contrast": strength}
            for share in (0.1, 0.2)
            for strength in (0.4, 0.8)
            for layer, norm in hidden_norms.items()
        ]
