"""A calibration from beginning to end: layer, settings, choice, held-out check, and what is written about it."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.backbones import find_backbone, resolve_layer
from ..evaluate.tasks.base import Task
from ..metrics.errors import InputError
from ..metrics.statistics import Counts
from ..runtime.environment import hardware, timestamp, versions
from ..runtime.inputs import encode
from ..runtime.journal import write_new
from ..runtime.models import Subject
from ..runtime.processes import Process
from .data import CalibrationData, batches
from .grid import Grid
from .heldout import check, finalists
from .layers import LayerStatistics, layer_statistics, score, shortlist
from .outcome import Outcome
from .popecheck import check_pope
from .scoring import LABELLED, OBJECTIVES, Limits, Scorer
from .search import ROWS, Progress, Search
from .selection import CONFIDENCE, DRAWS, Candidate, Choice, choose
from .settings import VANILLA
from .store import UNSTEERED, Store

STATE = "state"
STATISTICS_PICTURES = 100
STATISTICS_BATCH = 20


@dataclass(frozen=True)
class CalibrationOptions:
    """How to calibrate.

    Attributes:
        grid: What is tried at each layer.
        layers: Layers to try; None takes a short list from the statistics.
        shortlist: Length of that list.
        probe: Number of pictures for the sweep over all layers that the list comes from; 0 uses statistics alone.
        objective: "chair_s", "chair_i", "mean" of both, or "grounding", which needs no labels.
        limits: What a setting must not break.
        lineage: How CHAIR finds objects.
        max_new_tokens: Longest answer; None is the task's own.
        early: Whether settings without a chance are dropped on the way.
        contrast: Whether to compute the criterion without labels beside the labelled one.
        runners_up: How many settings that come next are checked on the held-out pictures too.
        rows: Largest batch.
        draws: Of the bootstrap.
        confidence: In which share of the bootstrap draws a setting has to keep the limits to be chosen.
        seed: Of the bootstrap.
    """

    grid: Grid = field(default_factory=Grid)
    layers: tuple[int, ...] | None = None
    shortlist: int = 3
    probe: int = 40
    objective: str = "mean"
    limits: Limits = field(default_factory=Limits)
    lineage: str = "pattern"
    max_new_tokens: int | None = None
    early: bool = True
    contrast: bool = False
    runners_up: int = 2
    rows: int = ROWS
    draws: int = DRAWS
    confidence: float = CONFIDENCE
    seed: int = 0

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise InputError(f"there is no objective {self.objective!r}; choose one of {', '.join(OBJECTIVES)}")
        if not 0 <= self.confidence < 1:
            raise InputError(f"confidence is {self.confidence}; give a share from 0 to below 1, such as 0.8")
        if self.runners_up < 0:
            raise InputError(f"runners_up is {self.runners_up}; give 0 or more")
        if self.probe < 0:
            raise InputError(f"probe is {self.probe}; give a number of pictures, or 0 for statistics alone")
        for name in ("shortlist", "rows", "draws"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; give at least 1")


def calibrate(
    subject: Subject,
    data: CalibrationData,
    out: Path,
    options: CalibrationOptions | None = None,
    process: Process | None = None,
    progress: Progress | None = None,
    pope: Task | None = None,
) -> Outcome:
    """Find settings for a model; interrupted, the same call goes on where it was.

    Args:
        subject: The stock model and its processor.
        data: Pictures to choose and to check with.
        out: Folder of this calibration, new or its own.
        options: How to calibrate.
        process: Which of several processes this is; they share `out` and come to the same choice.
        progress: Is told how far it is.
        pope: POPE's questions about held-out pictures, to see how the choice transfers (`data.pope_task`).

    Raises:
        InputError: The options do not fit the data, or the folder belongs to another calibration.
    """
    options, process = options or CalibrationOptions(), process or Process()
    if options.objective in LABELLED and not data.labelled:
        raise InputError(f"{options.objective} needs annotations, and there are none: use --objective grounding")
    given = None if options.layers is None else _resolved(subject, options.layers)
    longest = options.max_new_tokens or data.task.max_new_tokens
    started = time.perf_counter()
    plan = _plan(subject, data, longest)
    with Store(out / STATE, plan, process) as store:
        statistics = _statistics(subject, data, out / STATE, progress)
        search = _search(subject, data, store, options, longest, progress)
        found = _layers(search, statistics, options) if given is None else (given, "given by the user", {})
        results = _settings(search, found[0], statistics, options)
        free = [] if results["without_labels"] is None else [results["without_labels"]]
        choices = [results["choice"], *results["by_mode"].values(), *free]
        chosen = finalists(choices, results["counts"], options.runners_up)
        results["held_out"] = check(search, data, chosen, out / STATE, plan)
        results["pope"] = _pope(search, results, options, pope)
    return Outcome(
        subject=subject.record(),
        data=data.record,
        choosing=[sample.image_id for sample in data.choosing],
        checking=[sample.image_id for sample in data.checking],
        labelled=data.labelled,
        prompt=data.choosing[0].prompt,
        max_new_tokens=longest,
        objective=options.objective,
        limits=options.limits,
        lineage=options.lineage,
        statistics=statistics,
        layers=found[0],
        reason=found[1],
        probes=found[2],
        grid=options.grid.record(),
        metrics=search.scorer.metrics(results["counts"][UNSTEERED]),
        seconds=round(time.perf_counter() - started, 1),
        draws=options.draws,
        confidence=options.confidence,
        seed=options.seed,
        environment={"versions": versions(), "hardware": hardware()},
        finished=timestamp(),
        **results,
    )


def _search(
    subject: Subject,
    data: CalibrationData,
    store: Store,
    options: CalibrationOptions,
    longest: int,
    progress: Progress | None,
) -> Search:
    """What decodes and scores settings on the pictures to choose with."""
    return Search(
        subject=subject,
        task=data.task,
        samples=data.choosing,
        store=store,
        scorer=Scorer(data.choosing, data.task.name, data.labelled, options.lineage),
        limits=options.limits,
        max_new_tokens=longest,
        contrast=options.contrast or options.objective == "grounding",
        rows=options.rows,
        early=options.early,
        progress=progress,
    )


def _plan(subject: Subject, data: CalibrationData, longest: int) -> dict[str, Any]:
    """What all answers of a folder have in common."""
    record = subject.record()
    return {
        "model": {name: record[name] for name in ("name", "revision", "class", "dtype")},
        "generation_config": record["generation_config"],
        "data": data.record,
        "choosing": [sample.id for sample in data.choosing],
        "checking": [sample.id for sample in data.checking],
        "prompt": data.choosing[0].prompt,
        "max_new_tokens": longest,
    }


def _statistics(
    subject: Subject, data: CalibrationData, folder: Path, progress: Progress | None
) -> list[LayerStatistics]:
    """Statistics of every layer: from the folder, else from one pass over the pictures, which one process writes."""
    path = folder / "layers.json"
    if not path.exists():
        samples = data.choosing[:STATISTICS_PICTURES]
        parts = batches(samples, STATISTICS_BATCH)

        def inputs() -> Any:
            for number, part in enumerate(parts):
                if progress is not None:
                    progress("layer statistics", number, len(parts))
                pictures = [data.task.image(sample) for sample in part]
                yield encode(subject.model, subject.processor, pictures, [sample.prompt for sample in part])

        found = layer_statistics(subject.model, inputs())
        write_new(path, json.dumps([s.record() for s in found], indent=1) + "\n")
    # Also the process that computed them reads them back: all go on from the same numbers.
    return [LayerStatistics(**record) for record in json.loads(path.read_text(encoding="utf-8"))]


def _resolved(subject: Subject, layers: Sequence[int]) -> list[int]:
    """Layers that the user gave, from 0 on."""
    backbone = find_backbone(subject.model)
    try:
        return list(dict.fromkeys(resolve_layer(backbone, layer) for layer in layers))
    except ValueError as error:
        raise InputError(str(error)) from error


def _layers(
    search: Search, statistics: Sequence[LayerStatistics], options: CalibrationOptions
) -> tuple[list[int], str, dict[Candidate, Counts]]:
    """The short list: by a sweep of two settings over all layers on the first pictures, or by statistics alone."""
    if options.probe == 0:
        return *shortlist(statistics, options.shortlist), {}
    samples = search.samples[: options.probe]
    probes: dict[Candidate, Counts] = {}
    best: dict[int, float] = {}
    for layer in statistics:
        settings = options.grid.probes(layer.hidden_norm)
        search.decode(layer.layer, [VANILLA, *settings], samples)
        counts = {(layer.layer, setting): search.counts((layer.layer, setting), samples) for setting in settings}
        vanilla = probes.setdefault(UNSTEERED, search.counts(UNSTEERED, samples))
        probes |= counts
        labelled = search.scorer.labelled
        best[layer.layer] = choose(counts, vanilla, options.objective, options.limits, labelled, 1).score
    ranked = sorted(statistics, key=lambda s: (best[s.layer], -score(s)))[: options.shortlist]
    told = ", ".join(f"layer {s.layer} ({best[s.layer]:.4f})" for s in ranked)
    reason = (
        f"least {options.objective} within the limits in a sweep of {len(options.grid.probes(1.0))} settings over all "
        f"layers on {len(samples)} pictures, among equals by alignment x specificity of CARD: {told}"
    )
    return [s.layer for s in ranked], reason, probes


def _settings(
    search: Search, layers: Sequence[int], statistics: Sequence[LayerStatistics], options: CalibrationOptions
) -> dict[str, Any]:
    """Decode the grid of each layer and choose."""
    dropped: dict[Candidate, str] = {}
    tried: list[Candidate] = []
    for layer in layers:
        norm = next(s.hidden_norm for s in statistics if s.layer == layer)
        settings = options.grid.settings(norm)
        dropped |= search.layer(layer, settings)
        tried += [(layer, setting) for setting in settings]
    vanilla = search.counts(UNSTEERED, search.samples)
    counts = {c: search.counts(c, search.samples) for c in tried if c not in dropped}

    def best(among: dict[Candidate, Counts], objective: str, labelled: bool) -> Choice:
        rules = (objective, options.limits, labelled, options.draws, options.seed, options.confidence)
        return choose(among, vanilla, *rules)

    modes = options.grid.modes if len(options.grid.modes) > 1 else ()
    labelled, free = search.scorer.labelled, "contrast" in vanilla.columns and options.objective != "grounding"
    return {
        "counts": {UNSTEERED: vanilla, **counts},
        "dropped": dropped,
        "partial": {c: search.scorer.counts(search.store.rows(c)) for c in dropped},
        "choice": best(counts, options.objective, labelled),
        "by_mode": {
            mode: best({c: found for c, found in counts.items() if c[1].mode == mode}, options.objective, labelled)
            for mode in modes
        },
        "without_labels": best(counts, "grounding", False) if free else None,
    }


def _pope(
    search: Search, results: dict[str, Any], options: CalibrationOptions, task: Task | None
) -> list[dict[str, Any]]:
    """The choice and its neighbours on POPE's questions about held-out pictures."""
    best: Candidate | None = results["choice"].best
    if task is None or best is None:
        return []
    tried = [s for candidates in (results["counts"], results["dropped"]) for at, s in candidates if at == best[0]]
    return check_pope(
        search.subject, task, search.store, best, tried, options.rows, options.draws, options.seed, search.progress
    )
