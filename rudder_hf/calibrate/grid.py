"""Which settings are tried: strengths relative to the layer's hidden states, so that one grid fits any model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..methods.rudder import absolute_strength
from ..metrics.errors import InputError
from .settings import Setting

STRENGTHS = (0.1, 0.2, 0.3, 0.45, 0.65, 0.9)
SENSITIVITIES = (1.0, 2.0, 5.0, 8.0, 12.0, 20.0)


@dataclass(frozen=True)
class Grid:
    """The values that are combined.

    Attributes:
        strengths: alpha_max as a share of the median length of the hidden state at the layer.
        k: Sensitivities of the gate; mode "add" has none.
        modes: "beta", "add" or both.
        pools: "mean", "norm" or both.
        spans: "prompt", "text", "image" or several.
        steer_first_token: False, True or both.
    """

    strengths: tuple[float, ...] = STRENGTHS
    k: tuple[float, ...] = SENSITIVITIES
    modes: tuple[str, ...] = ("beta",)
    pools: tuple[str, ...] = ("mean",)
    spans: tuple[str, ...] = ("prompt",)
    steer_first_token: tuple[bool, ...] = (False,)

    def __post_init__(self) -> None:
        for name, values in asdict(self).items():
            if not values:
                raise InputError(f"the grid has no {name}: give at least one value")
        if min(self.strengths) <= 0:
            raise InputError(f"the grid has the strength {min(self.strengths)}; give shares above 0, such as 0.3")

    def settings(self, hidden_norm: float) -> list[Setting]:
        """All combinations for a layer whose hidden states have this length, the gentlest strength first."""
        found = [
            Setting(absolute_strength(share, hidden_norm), k, mode=mode, pool=pool, span=span, steer_first_token=first)
            for share in sorted(set(self.strengths))
            for mode in self.modes
            for k in (sorted(set(self.k)) if mode == "beta" else [self.k[0]])
            for pool in self.pools
            for span in self.spans
            for first in self.steer_first_token
        ]
        return list(dict.fromkeys(found))

    def probes(self, hidden_norm: float) -> list[Setting]:
        """A mild and a stronger setting of the grid for each span, to compare layers by: a third and two thirds up,
        in the middle of k.
        """
        strengths, ks = sorted(set(self.strengths)), sorted(set(self.k))
        places = sorted({len(strengths) // 3, (2 * len(strengths)) // 3})
        few = replace(
            self, strengths=tuple(strengths[min(p, len(strengths) - 1)] for p in places), k=(ks[len(ks) // 2],)
        )
        few = replace(few, modes=self.modes[:1], pools=self.pools[:1])
        return replace(few, steer_first_token=self.steer_first_token[:1]).settings(hidden_norm)

    def record(self) -> dict[str, Any]:
        """The grid as JSON values."""
        return {name: list(values) for name, values in asdict(self).items()}


def neighbours(chosen: Setting, tried: Sequence[Setting]) -> list[Setting]:
    """The settings one step away in strength or sensitivity, everything else equal."""

    def key(setting: Setting) -> tuple[Any, ...]:
        return tuple(value for name, value in setting.record().items() if name not in ("alpha_max", "k"))

    alike = [setting for setting in tried if key(setting) == key(chosen)]
    strengths = sorted({setting.alpha_max for setting in alike} | {chosen.alpha_max})
    ks = sorted({setting.k for setting in alike} | {chosen.k})
    row, column = strengths.index(chosen.alpha_max), ks.index(chosen.k)
    return [
        setting
        for setting in alike
        if setting != chosen and abs(strengths.index(setting.alpha_max) - row) + abs(ks.index(setting.k) - column) == 1
    ]
