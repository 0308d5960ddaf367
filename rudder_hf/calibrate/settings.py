"""What `rudder calibrate` tries: a grid of candidates, each a method like any other."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ..core.settings import check_setting
from ..methods import Method
from ..methods.contrast import Contrast, RudderContrast
from ..methods.rudder import Attached, RudderAdd, RudderBeta, absolute_strength
from ..metrics.errors import InputError
from .choice import Rule


@dataclass(frozen=True)
class Grid:
    """The values that are combined at each layer."""

    strengths: tuple[float, ...] = (0.1, 0.2, 0.3, 0.5)  # alpha_max as a share of the hidden state's median length
    k: tuple[float, ...] = (5.0, 8.0)  # sensitivities of the gate; mode "add" has none
    modes: tuple[str, ...] = ("beta",)
    spans: tuple[str, ...] = ("prompt",)
    # Image-value contrasts, which are not in the paper; those above 0 are also tried without a push
    contrast: tuple[float, ...] = (0.0,)

    def __post_init__(self) -> None:
        for name, values in asdict(self).items():
            if not values:
                raise InputError(f"the grid has no {name}: give at least one value")
            for value in values if name in ("k", "contrast") else ():
                check_setting(name, value)
        if max(self.contrast) and "add" in self.modes:
            raise InputError("--contrast goes with --mode beta: leave out the mode add")
        for share in self.strengths:
            if not 0 <= share < math.inf or (share == 0 and not max(self.contrast)):
                raise InputError(
                    f"the grid has the strength {share}; give shares above 0, such as 0.3 (0 goes with a contrast: it "
                    "is then tried alone)"
                )

    @property
    def pushes(self) -> list[float]:
        """The strengths above 0, the gentlest first."""
        return sorted({share for share in self.strengths if share > 0})

    @property
    def alone(self) -> list[Method]:
        """The contrasts without a push."""
        return [Contrast(contrast=value) for value in sorted(set(self.contrast)) if value]

    def candidates(self, layer: int, hidden_norm: float) -> list[Method]:
        """All combinations for a layer whose hidden states have this length."""
        found: list[Method] = []
        for share in self.pushes:
            shared: dict[str, Any] = {"layer": layer, "alpha_max": absolute_strength(share, hidden_norm)}
            for span in self.spans:
                if "add" in self.modes:
                    found.append(RudderAdd(**shared, span=span))
                for k in sorted(set(self.k)) if "beta" in self.modes else ():
                    for contrast in sorted(set(self.contrast)):
                        own: dict[str, Any] = {**shared, "span": span, "k": k}
                        found.append(RudderContrast(**own, contrast=contrast) if contrast else RudderBeta(**own))
        return found

    def probes(self, layer: int, hidden_norm: float) -> list[Method]:
        """A mild and a stronger candidate for each span, to compare layers by: a third and two thirds up the
        strengths, in the middle of k.
        """
        strengths, ks = self.pushes, sorted(set(self.k))
        places = {len(strengths) // 3, min(2 * len(strengths) // 3, len(strengths) - 1)}
        few = replace(
            self,
            strengths=tuple(strengths[place] for place in places),
            k=(ks[len(ks) // 2],),
            modes=self.modes[:1],
            contrast=(0.0,),
        )
        return few.candidates(layer, hidden_norm)


def tie_break_key(method: Method) -> tuple[Any, ...]:
    """Order of preference among equals: the weakest push, the least contrast, gated before constant, then the flattest
    gate, then the earliest layer.
    """
    assert isinstance(method, Attached)
    config = method.rudder_config()
    return config.alpha_max, config.contrast, config.mode == "add", config.k, config.layer, config.span


def describe(method: Method) -> str:
    """A candidate in one line: layer, strength, and what differs from the defaults."""
    assert isinstance(method, Attached)
    return method.rudder_config().expression().removeprefix("RudderConfig(").removesuffix(")")


@dataclass(frozen=True)
class CalibrationOptions:
    """How to calibrate."""

    grid: Grid = field(default_factory=Grid)
    layers: tuple[int, ...] | None = None  # layers to try; None takes a short list
    shortlist: int = 3  # its length
    probe: int = 40  # images of the sweep over all layers that the list comes from
    rule: Rule = field(default_factory=Rule)
    max_new_tokens: int | None = None  # longest answer; None is the task's own
    batch_size: int = 24
    command: str = ""

    def __post_init__(self) -> None:
        for name in ("probe", "shortlist", "batch_size"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; give at least 1")
