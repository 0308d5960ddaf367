"""`Setting`: one point of the search. `Grid`: the points that are tried, with strengths that fit any model.

`CalibrationOptions`: the grid and everything else that a calibration is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from ..core.configuration import CONTRAST_DEFAULTS, RudderConfig, check_setting, check_settings
from ..methods.rudder import absolute_strength
from ..metrics.errors import InputError, check_least
from ..metrics.statistics import Counts
from .choice import OBJECTIVES, C, Choice, Limits, choose


@dataclass(frozen=True)
class Setting:
    """A layer and the settings that it is steered with; the fields are those of `RudderConfig`.

    `VANILLA`, which has neither strength nor contrast, is the unsteered model.
    """

    layer: int = 0
    alpha_max: float = 0.0
    k: float = 5.0
    c: float = 1.0
    g_min: float = 0.05
    g_max: float = 1.0
    mode: str = "beta"
    pool: str = "mean"
    span: str = "prompt"
    norm_cap: float | None = None
    steer_first_token: bool = False
    contrast: float = CONTRAST_DEFAULTS["contrast"]
    contrast_first_layer: int = CONTRAST_DEFAULTS["contrast_first_layer"]
    contrast_after: int = CONTRAST_DEFAULTS["contrast_after"]

    def __post_init__(self) -> None:
        without = {} if self.contrast else CONTRAST_DEFAULTS
        for name, value in (check_settings(asdict(self)) | without).items():
            object.__setattr__(self, name, value)

    @classmethod
    def of(cls, values: Mapping[str, Any] | RudderConfig) -> Setting:
        """From a record or a config; whatever is no setting is left out."""
        if not isinstance(values, Mapping):
            values = {item.name: getattr(values, item.name) for item in fields(cls)}
        return cls(**{item.name: values[item.name] for item in fields(cls) if item.name in values})

    @property
    def reading(self) -> tuple[str, str]:
        """How the prompt is read: pool and span."""
        return self.pool, self.span

    @property
    def gentleness(self) -> tuple[Any, ...]:
        """Order of preference among equals: the weakest push, the least and latest contrast, gated before constant,
        then the flattest gate, then the earliest layer.
        """
        strength = self.alpha_max, self.contrast, -self.contrast_after
        return *strength, self.mode == "add", self.k, self.steer_first_token, self.layer, self.pool, self.span

    def record(self) -> dict[str, Any]:
        """The setting as JSON values; of the contrast, which is not in the paper, only if there is some."""
        return {name: value for name, value in asdict(self).items() if self.contrast or name not in CONTRAST_DEFAULTS}

    def describe(self) -> str:
        """The setting in one line: layer, strength and sensitivity, and what differs from the defaults."""
        if self.alpha_max == 0:
            return ", ".join(self.unusual) if self.contrast else "vanilla"
        parts = [f"layer {self.layer}", f"alpha_max {self.alpha_max:.4g}"]
        parts += [f"k {self.k:g}"] if self.mode == "beta" else []
        return ", ".join([*parts, *self.unusual])

    @property
    def unusual(self) -> list[str]:
        """The settings beside layer, alpha_max and k that differ from the defaults, in words."""
        rest = [(item.name, getattr(self, item.name), item.default) for item in fields(self)[3:]]
        return [f"{name} {value}" for name, value, default in rest if value != default]


VANILLA = Setting()


@dataclass(frozen=True)
class Grid:
    """The values that are combined at each layer.

    Attributes:
        strengths: alpha_max as a share of the median length of the hidden state at the layer.
        k: Sensitivities of the gate; mode "add" has none.
        modes: "beta", "add" or both.
        pools: "mean", "norm" or both.
        spans: "prompt", "text", "image" or several.
        steer_first_token: False, True or both.
        contrast: Strengths of the image-value contrast, which is not in the paper. Those above 0 are also tried
            without a push, and alone if `strengths` is 0.
        contrast_after: Answer tokens before the contrast.
    """

    strengths: tuple[float, ...] = (0.1, 0.2, 0.3, 0.45, 0.65, 0.9)
    k: tuple[float, ...] = (1.0, 2.0, 5.0, 8.0, 12.0, 20.0)
    modes: tuple[str, ...] = ("beta",)
    pools: tuple[str, ...] = ("mean",)
    spans: tuple[str, ...] = ("prompt",)
    steer_first_token: tuple[bool, ...] = (False,)
    contrast: tuple[float, ...] = (0.0,)
    contrast_after: tuple[int, ...] = (CONTRAST_DEFAULTS["contrast_after"],)

    def __post_init__(self) -> None:
        for name, values in asdict(self).items():
            if not values:
                raise InputError(f"the grid has no {name}: give at least one value")
            for value in values if name in ("k", *CONTRAST_DEFAULTS) else ():
                check_setting(name, value)
        if self.contrast_after != (CONTRAST_DEFAULTS["contrast_after"],) and not max(self.contrast):
            raise InputError("the grid has a place of the contrast and no contrast: give --contrast too")
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
    def alone(self) -> list[Setting]:
        """The contrasts without a push; their layer only carries hooks that do nothing."""
        found = [Setting(-1, contrast=value, contrast_after=after) for value, after in self._contrasts if value]
        return list(dict.fromkeys(found))

    @property
    def _contrasts(self) -> list[tuple[float, int]]:
        return [(value, after) for value in sorted(set(self.contrast)) for after in sorted(set(self.contrast_after))]

    def settings(self, layer: int, hidden_norm: float) -> list[Setting]:
        """All combinations for a layer whose hidden states have this length, the gentlest strength first."""
        found = [
            Setting(
                layer, alpha_max, k, mode=mode, pool=pool, span=span, steer_first_token=first,
                contrast=contrast, contrast_after=after,
            )
            for alpha_max in (absolute_strength(share, hidden_norm) for share in self.pushes)
            for contrast, after in self._contrasts
            for mode in self.modes
            for k in (sorted(set(self.k)) if mode == "beta" else [self.k[0]])
            for pool in self.pools
            for span in self.spans
            for first in self.steer_first_token
        ]  # fmt: skip
        return list(dict.fromkeys(found))

    def probes(self, layer: int, hidden_norm: float) -> list[Setting]:
        """A mild and a stronger setting for each span, to compare layers by: a third and two thirds up the strengths,
        in the middle of k.
        """
        strengths, ks = self.pushes, sorted(set(self.k))
        places = {len(strengths) // 3, min(2 * len(strengths) // 3, len(strengths) - 1)}
        few = replace(
            self,
            strengths=tuple(strengths[place] for place in places),
            k=(ks[len(ks) // 2],),
            modes=self.modes[:1],
            pools=self.pools[:1],
            steer_first_token=self.steer_first_token[:1],
            contrast=(0.0,),
        )
        return few.settings(layer, hidden_norm)


def neighbours(chosen: Setting, tried: Sequence[Setting]) -> list[Setting]:
    """The settings one step away in strength or sensitivity, everything else equal."""
    alike = [s for s in tried if replace(s, alpha_max=chosen.alpha_max, k=chosen.k) == chosen]
    strengths = sorted({setting.alpha_max for setting in alike} | {chosen.alpha_max})
    ks = sorted({setting.k for setting in alike} | {chosen.k})

    def steps(setting: Setting) -> int:
        up = strengths.index(setting.alpha_max) - strengths.index(chosen.alpha_max)
        return abs(up) + abs(ks.index(setting.k) - ks.index(chosen.k))

    return [setting for setting in alike if steps(setting) == 1]


@dataclass(frozen=True)
class CalibrationOptions:
    """How to calibrate.

    Attributes:
        grid: What is tried at each layer.
        layers: Layers to try; None takes a short list.
        shortlist: Length of that list.
        probe: Number of images for the sweep over all layers that the list comes from; 0 uses statistics alone.
        objective: What the best setting within the limits has most of ("f1"; "grounding", which needs no labels) or
            least of ("chair_s", "chair_i", "mean" of both, which "paper" is too).
        limits: What a setting must not break.
        lineage: How CHAIR finds objects.
        max_new_tokens: Longest answer; None is the task's own.
        early_stopping: Whether settings without a chance are dropped on the way.
        label_free: Whether to compute the criterion without labels beside the labelled one.
        runners_up: How many settings that come next are checked on the held-out images too.
        batch_size: Largest batch, images times settings.
        bootstrap: Number of draws.
        confidence: In which share of the bootstrap draws a setting has to keep the limits to be chosen.
        seed: Of the bootstrap.
    """

    grid: Grid = field(default_factory=Grid)
    layers: tuple[int, ...] | None = None
    shortlist: int = 3
    probe: int = 40
    objective: str = "f1"
    limits: Limits = field(default_factory=Limits)
    lineage: str = "pattern"
    max_new_tokens: int | None = None
    early_stopping: bool = True
    label_free: bool = False
    runners_up: int = 2
    batch_size: int = 256
    bootstrap: int = 2000
    confidence: float = 0.8
    seed: int = 0

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise InputError(f"there is no objective {self.objective!r}; choose one of {', '.join(OBJECTIVES)}")
        if not 0 <= self.confidence < 1:
            raise InputError(f"confidence is {self.confidence}; give a share from 0 to below 1, such as 0.8")
        check_least(self, probe=0, runners_up=0, shortlist=1, batch_size=1, bootstrap=1)

    def choose(
        self, candidates: Mapping[C, Counts], vanilla: Counts, labelled: bool = True, objective: str | None = None
    ) -> Choice[C]:
        """Choose among candidates, in their order of preference, by these rules or by another objective."""
        wanted, draws = objective or self.objective, (self.bootstrap, self.seed, self.confidence)
        return choose(candidates, vanilla, wanted, self.limits, labelled, *draws)
