"""Candidates run on the images to choose with, and the choice: the same search for RUDDER and for every other method.

```python
run = Run(folder).begin(task, loaded, Decoding("greedy", 64), RunOptions(likelihood="none"))
found = search(run, {"vcd": [methods.get("vcd", alpha=alpha) for alpha in (0.25, 0.5, 1.0)]}, Rule())
found["vcd"].best  # place of the chosen one in the list, None if none beats vanilla within the limits
```
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..evaluate.run import Run, Variant
from ..evaluate.scoring import Scoring
from ..methods import Method, get
from ..metrics.errors import InputError
from ..runtime.progress import Progress, no_progress
from .choice import OBJECTIVES, Choice, Rule, choose, in_words
from .layers import LayerStatistics
from .settings import CalibrationOptions

VANILLA = get("vanilla")


def search(
    run: Run, candidates: Mapping[str, Sequence[Method]], rule: Rule, progress: Progress = no_progress,
    first: int | None = None, lineage: str = "pattern",
) -> dict[str, Choice[int]]:  # fmt: skip
    """Choose one of several candidates, or none, for each name; what is chosen is a place in its list.

    Args:
        run: On the images to choose with, after `begin`.
        candidates: For each name, what to choose from, gentle first: among equals the first is chosen.
        rule: What to choose by.
        progress: Is called with how many answers there are.
        first: Use this many of the images only.
        lineage: How CHAIR finds objects.

    Raises:
        InputError: The images have no annotations and the objective needs them.
    """
    if rule.labelled and run.task.kind != "chair":
        raise InputError(f"{rule.objective} needs annotations, and there are none: use --objective grounding")
    everything = [VANILLA, *(method for methods in candidates.values() for method in methods)]
    run.answer(everything, progress, first, wait=True)
    scored = run.scored([Variant.of(method) for method in everything], Scoring(lineage), first)
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
