"""Which settings of each method are tried: as many for every method, from gentle to strong, the published among them.

A strength that suits a model of seven billion parameters need not suit another, so each method gets a range around its
published value. RUDDER has no published value for models that the paper does not have; its strengths are shares of the
layer's hidden states, as in `rudder calibrate`, on the two layers that its statistics rank first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..calibrate.grid import absolute
from ..calibrate.layers import LayerStatistics, shortlist

BUDGET = 8
"""Settings that are tried for each method."""

Space = list[dict[str, Any]]
_LAYERS = 2
_STRENGTHS = {"rudder-beta": (0.2, 0.3, 0.45, 0.65), "rudder-add": (0.1, 0.2, 0.3, 0.45)}


def _one(name: str, values: Sequence[float]) -> Space:
    return [{name: value} for value in values]


def _two(first: str, values: Sequence[float], second: str, others: Sequence[float]) -> Space:
    return [{first: value, second: other} for other in others for value in values]


# A higher cut-off leaves DoLa fewer tokens to choose from, and 1 leaves it vanilla's.
_CUT_OFFS = (0.9, 0.7, 0.5, 0.35, 0.2, 0.1, 0.05, 0.01)

_SPACES: dict[str, Space] = {
    "dola-low": _one("relative_top", _CUT_OFFS),
    "dola-high": _one("relative_top", _CUT_OFFS),
    "vcd": _two("alpha", (0.1, 0.25, 0.5, 1.0), "noise_step", (500, 800)),
    "pai-attention": _one("alpha", (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0)),
    "pai": _two("alpha", (0.1, 0.2, 0.35, 0.5), "gamma", (1.1, 1.5)),
    "vista-vsv": _one("strength", (0.01, 0.03, 0.06, 0.1, 0.17, 0.25, 0.35, 0.5)),
    "vista-sla": _one("gamma", (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.55, 0.75)),
    "vista": _two("strength", (0.03, 0.06, 0.1, 0.17), "gamma", (0.1, 0.3)),
    "vti": _one("alpha", (0.1, 0.2, 0.4, 0.8, 1.2, 1.8, 2.6, 4.0)),
    "opera": [
        {"candidates": 1, "threshold": 25, "penalty": 1.0},  # the published "efficient" setting
        *({"candidates": 5, "threshold": 15, "penalty": weight} for weight in (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)),
    ],
}


def space(name: str) -> Space:
    """The settings of a peer, gentle first.

    Raises:
        ValueError: The method has none: it is RUDDER (`rudder_space`), vanilla or a control.
    """
    if name not in _SPACES:
        raise ValueError(f"There are no settings to try for {name!r}. Methods that have some: {', '.join(_SPACES)}.")
    return [dict(settings) for settings in _SPACES[name]]


def peers() -> tuple[str, ...]:
    """The methods that `space` knows."""
    return tuple(_SPACES)


def rudder_space(name: str, statistics: Sequence[LayerStatistics]) -> Space:
    """The settings of RUDDER, gentle first: as many as a peer's.

    Args:
        name: "rudder-beta" or "rudder-add".
        statistics: Of all layers, from one pass of the unsteered model.
    """
    layers, _ = shortlist(statistics, _LAYERS)
    norms = {entry.layer: entry.hidden_norm for entry in statistics}
    return [
        {"layer": layer, "alpha_max": absolute(share, norms[layer])} for share in _STRENGTHS[name] for layer in layers
    ]
