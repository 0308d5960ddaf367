"""From what was gathered to all numbers of the report; figures are drawn from these numbers and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ..core.configuration import RudderConfig
from ..evaluate.scoring import chair_truth
from ..metrics.chair_parsers import Lineage
from ..metrics.statistics import Counts, Metric, Sums, interval, ratio
from .gather import ImageTraces, open_gate
from .study import AnalysisOptions, Study
from .tokens import MEASURES, SIDES, answer_mentions, token_view

_DRAWS = 2000
_BINS = 20
_LEAST = 5  # images with mentions of either kind: with fewer, many bootstrap draws have none to compare
SHOWN = 8  # images that the report shows token by token
Present = Sequence[frozenset[str]] | None
"""The objects in each image, as CHAIR's ground truth has them; None if they are not known."""


def present_objects(study: Study, lineage: Lineage) -> Present:
    """Return the objects in each image, or None without annotations."""
    if study.task.kind != "chair":
        return None
    truth = chair_truth(study.task.samples, lineage)
    return [truth[int(sample.image_id)] for sample in study.task.samples]


def answer_numbers(traces: Sequence[ImageTraces], present: Present, lineage: Lineage) -> dict[str, Any]:
    """Count the answers that differ, and the mentions of objects that are not in the image."""
    found: dict[str, Any] = {"differ": sum(entry.vanilla.text != entry.steered.text for entry in traces)}
    if present is not None:
        for side in SIDES:
            pairs = zip(traces, present, strict=True)
            named = [m for entry, inside in pairs for m in answer_mentions(getattr(entry, side), inside, lineage)]
            found[side] = {"mentions": len(named), "absent": sum(bool(mention.absent) for mention in named)}
    return found


def token_numbers(traces: Sequence[ImageTraces], present: Present, lineage: Lineage) -> dict[str, Any]:
    """Return the answers of the first images token by token, and the scale of the shades."""
    views: list[dict[str, Any]] = []
    for place, entry in enumerate(traces[:SHOWN]):
        inside = None if present is None else present[place]
        answers = {side: token_view(getattr(entry, side), inside, lineage) for side in SIDES}
        views.append({"id": entry.sample, "present": None if inside is None else sorted(inside), **answers})
    return {"scale": {measure: _scale(traces, measure) for measure in MEASURES}, "shown": views}


def _scale(traces: Sequence[ImageTraces], measure: str) -> list[float]:
    """Return the ends of the shades: nearly all values of all answers lie between them."""
    values = np.asarray([v for t in traces for side in SIDES for v in getattr(t, side).trace[measure]])
    values = values[np.isfinite(values)]
    if not len(values):
        return [0.0, 1.0]
    low, high = (float(end) for end in np.quantile(values, (0.02, 0.98)))
    return [low, high] if high - low > 1e-6 else [low - 0.5, high + 0.5]


def gate_numbers(
    traces: Sequence[ImageTraces], present: Present, config: RudderConfig, options: AnalysisOptions
) -> dict[str, Any]:
    """Return the gate over the similarity, and the similarities of tokens and of mentions.

    Mentions are those of the unsteered answers: what RUDDER would have to tell apart.
    """
    steered = [entry.steered.trace for entry in traces]
    # The first token is not steered unless `steer_first_token` is on.
    gates = np.asarray([gate for trace in steered for gate in trace["gate"] if gate > 0])
    similarities = np.asarray([value for trace in steered for value in trace["similarity"]])
    kinds: dict[str, list[float]] = {"present": [], "absent": []}
    table = np.zeros((len(traces), 4))
    for row, (entry, inside) in enumerate(zip(traces, present or (), strict=False)):
        for mention in answer_mentions(entry.vanilla, inside, options.lineage):
            value = float(np.mean([entry.vanilla.trace["similarity"][token] for token in mention.tokens]))
            kinds["absent" if mention.absent else "present"].append(value)
            table[row, 2 * bool(mention.absent) :][:2] += value, 1
    everything = np.concatenate([similarities, *map(np.asarray, kinds.values())])
    bins = np.linspace(everything.min(initial=0.0), everything.max(initial=0.1), _BINS + 1)
    found: dict[str, Any] = {
        "bins": bins.tolist(),
        "curve": open_gate(torch.from_numpy(bins), config).tolist(),
        "tokens": {"n": len(similarities), "histogram": np.histogram(similarities, bins)[0].tolist()},
        "mean_gate": float(gates.mean()) if len(gates) else 0.0,
    }
    if min((table[:, [1, 3]] > 0).sum(0)) >= _LEAST:
        counts = Counts(tuple(entry.sample for entry in traces), _SUMS, table)
        between = interval(counts, [Metric("gap", "gap", _gap, None)], _DRAWS, options.seed)["gap"]
        found["present_minus_absent"] = [between.value, between.low, between.high]
        for name, values in kinds.items():
            found[name] = {"n": len(values), "histogram": np.histogram(values, bins)[0].tolist()}
    return found


_SUMS = ("present", "present_count", "absent", "absent_count")


def _gap(sums: Sums) -> Any:
    """Return the mean similarity at mentions of present objects minus that of absent ones."""
    return ratio(sums["present"], sums["present_count"]) - ratio(sums["absent"], sums["absent_count"])
