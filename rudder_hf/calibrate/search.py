"""What is tried, and the search among it: candidates run on the images to choose with, the same for every method.

A candidate is a method like any other.

```python
run = Run(folder).begin(task, loaded, Decoding("greedy", 64), RunOptions(likelihood="none"))
found = search(run, {"vcd": [methods.get("vcd", alpha=alpha) for alpha in (0.25, 0.5, 1.0)]}, Rule())
found["vcd"].best  # place of the chosen one in the list, None if none beats vanilla within the limits
```
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ..core.settings import CONTRAST_DEFAULTS, check_setting
from ..evaluate.result import Scoring
from ..evaluate.run import Run, RunOptions, Variant
from ..methods import Method, Sources, get
from ..methods.contrast import Contrast, RudderContrast
from ..methods.rudder import Attached, RudderAdd, RudderBeta, absolute_strength
from ..runtime.errors import InputError, check_least
from ..runtime.models import LoadedModel
from ..runtime.report import Progress, no_progress
from .choice import OBJECTIVES, Choice, Rule, choose, in_words
from .layers import LayerStatistics

VANILLA = get("vanilla")


@dataclass(frozen=True)
class Grid:
    """The values that are combined at each layer."""

    strengths: tuple[float, ...] = (0.1, 0.2, 0.3, 0.5)  # alpha_max as a share of the hidden state's median length
    k: tuple[float, ...] = (5.0, 8.0)  # sensitivities of the gate; mode "add" has none
    # Image-value contrasts, which are not in the paper; those above 0 are also tried without a push
    contrast: tuple[float, ...] = (0.0,)
    modes: tuple[str, ...] = ("beta",)

    def __post_init__(self) -> None:
        for name, values in asdict(self).items():
            if not values:
                raise InputError(f"the grid has no {name}: give at least one value")
            for value in values if name in ("k", "contrast") else ():
                check_setting(name, value)
        if max(self.contrast) and "add" in self.modes:
            raise InputError("--contrast goes with --mode beta: leave one of them out")
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
            if "add" in self.modes:
                found.append(RudderAdd(**shared))
            for k in sorted(set(self.k)) if "beta" in self.modes else ():
                found += [
                    RudderContrast(**shared, k=k, contrast=contrast) if contrast else RudderBeta(**shared, k=k)
                    for contrast in sorted(set(self.contrast))
                ]
        return found

    def probes(self, layer: int, hidden_norm: float) -> list[Method]:
        """A mild and a stronger candidate to compare layers by: a third and two thirds up the strengths, in the
        middle of k.
        """
        strengths, ks = self.pushes, sorted(set(self.k))
        places = {len(strengths) // 3, min(2 * len(strengths) // 3, len(strengths) - 1)}
        few = Grid(tuple(strengths[place] for place in places), (ks[len(ks) // 2],), modes=self.modes)
        return few.candidates(layer, hidden_norm)


def tie_break_key(method: Method) -> tuple[Any, ...]:
    """Order of preference: the weakest push, least contrast, gated before constant, flattest gate, earliest layer."""
    assert isinstance(method, Attached)
    config = method.rudder_config()
    return config.alpha_max, config.contrast, config.mode == "add", config.k, config.layer


def describe(method: Method) -> str:
    """A candidate in one line: layer, strength, and what differs from the defaults."""
    assert isinstance(method, Attached)
    return method.rudder_config().expression().removeprefix("RudderConfig(").removesuffix(")")


def control(kind: type[Method], own: Attached, loaded: LoadedModel, sources: Sources) -> Method:
    """A control with the settings of the method that it is a control of."""
    config = own.rudder_config()
    given = {"config": config, "mode": config.mode, **{name: getattr(config, name) for name in CONTRAST_DEFAULTS}}
    names = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return kind.for_model(loaded.model, sources, **{name: value for name, value in given.items() if name in names})


@dataclass(frozen=True)
class CalibrationOptions:
    """How to calibrate."""

    grid: Grid = field(default_factory=Grid)
    layers: tuple[int, ...] | None = None  # layers to try; None takes a short list
    shortlist: int = 3  # its length
    probe: int = 40  # images of the sweep over all layers that the list comes from
    rule: Rule = field(default_factory=Rule)
    max_new_tokens: int | None = None  # longest answer; None is the task's own
    run: RunOptions = field(default_factory=lambda: RunOptions(24))

    def __post_init__(self) -> None:
        check_least(self, probe=1, shortlist=1)


def search(
    run: Run, candidates: Mapping[str, Sequence[Method]], rule: Rule, progress: Progress = no_progress,
    first: int | None = None,
) -> dict[str, Choice[int]]:  # fmt: skip
    """Choose one of several candidates, or none, for each name; what is chosen is a place in its list.

    Args:
        run: On the images to choose with, after `begin`.
        candidates: For each name, what to choose from, gentle first: among equals the first is chosen.
        rule: What to choose by.
        progress: Is called with how many answers there are.
        first: Use this many of the images only.

    Raises:
        InputError: The images have no annotations and the objective needs them.
    """
    if rule.labelled and run.task.kind != "chair":
        raise InputError(f"{rule.objective} needs annotations, and there are none: use --objective grounding")
    everything = [VANILLA, *(method for methods in candidates.values() for method in methods)]
    run.answer(everything, progress, first, wait=True)
    scored = run.scored([Variant.of(method) for method in everything], Scoring(), first)
    counts = iter([own.counts for own in scored])
    vanilla = next(counts)
    return {
        name: choose({place: next(counts) for place in range(len(methods))}, vanilla, rule)
        for name, methods in candidates.items()
    }


def best_layers(
    run: Run, statistics: Sequence[LayerStatistics], options: CalibrationOptions, progress: Progress = no_progress
) -> tuple[list[int], str]:
    """Layers worth the grid, best first, by a sweep of a few candidates over all layers on the first images; and why.

    Args:
        run: As for `search`.
        statistics: Of every layer; they rank layers that are equally good.
        options: Grid, rule, how many layers, and how many images.
        progress: Is called with how many answers there are.
    """
    probes = {str(s.layer): options.grid.probes(s.layer, s.hidden_norm) for s in statistics}
    quick = replace(options.rule, bootstrap=1, confidence=0.0)
    best = {name: found.score for name, found in search(run, probes, quick, progress, options.probe).items()}
    sign = -1 if OBJECTIVES[options.rule.objective].higher_is_better else 1
    ranked = sorted(statistics, key=lambda s: (sign * best[str(s.layer)], -s.rank_score))[: options.shortlist]
    values = ", ".join(f"layer {s.layer} ({best[str(s.layer)]:.4f})" for s in ranked)
    return [s.layer for s in ranked], (
        f"{in_words(options.rule.objective)} in a sweep of {len(next(iter(probes.values())))} candidates for each "
        f"layer on {min(options.probe, len(run.task.samples))} images: {values}"
    )
