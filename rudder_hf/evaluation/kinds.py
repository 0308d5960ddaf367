"""How each kind of task is scored: from samples and answers to counts and metrics, with fluency beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .chair import CHAIR_METRICS, chair, ground_truth
from .coco import CocoData
from .fluency import BROKEN_METRICS, FLUENCY_METRICS, broken, repetition
from .statistics import Counts, Metric, share
from .tasks.base import Sample

Rows = Sequence[dict[str, Any]]

LIKELIHOOD_METRICS = (
    Metric("log_likelihood", "log p per token (unsteered)", share("log_likelihood", "tokens"), None, "nats"),
)


@dataclass(frozen=True)
class Scored:
    """One method's counts and what to make of them.

    Attributes:
        counts: One row for each sample.
        metrics: In the order of the tables.
        notes: Counted warnings.
    """

    counts: Counts
    metrics: tuple[Metric, ...]
    notes: list[str] = field(default_factory=list)


def score_chair(plan: dict[str, Any], samples: Sequence[Sample], rows: Rows, scoring: Any) -> Scored:
    """CHAIR and the fluency of captions."""
    data = CocoData(
        files={int(s.image_id): s.image for s in samples},
        objects={int(s.image_id): tuple(s.reference["objects"]) for s in samples},
        references={int(s.image_id): tuple(s.reference["captions"]) for s in samples},
        categories=tuple(dict.fromkeys(name for s in samples for name in s.reference["objects"])),
    )
    truth = ground_truth(data, scoring.lineage)
    texts = [row["answer"] for row in rows]
    result = chair([(int(s.image_id), text) for s, text in zip(samples, texts, strict=True)], truth, scoring.lineage)
    scored = Scored(result.counts, CHAIR_METRICS, _notes(rows))
    if result.silent:
        scored.notes.append(f"{result.silent} captions mention no object: they count for CHAIR_S and recall only")
    return _with_fluency(scored, samples, rows, scenes=plan["task"] == "scenes")


def _with_fluency(scored: Scored, samples: Sequence[Sample], rows: Rows, scenes: bool = False) -> Scored:
    """Add how fluent the answers are: a hallucination score can be bought with broken text."""
    ids = [sample.id for sample in samples]
    texts = [row["answer"] for row in rows]
    counts, metrics = scored.counts.joined(repetition(texts, ids)), (*scored.metrics, *FLUENCY_METRICS)
    if scenes:
        counts, metrics = counts.joined(broken(texts, ids)), (*metrics, *BROKEN_METRICS)
    if all(row["log_likelihood"] is not None for row in rows):
        values = np.asarray([[row["log_likelihood"], row["tokens"]] for row in rows], dtype=np.float64)
        counts = counts.joined(Counts(tuple(ids), ("log_likelihood", "tokens"), values))
        metrics = (*metrics, *LIKELIHOOD_METRICS)
    return Scored(counts, metrics, scored.notes)


def _notes(rows: Rows) -> list[str]:
    """What is odd about answers, whatever the task."""
    notes = []
    empty = sum(not row["answer"] for row in rows)
    if empty:
        notes.append(f"{empty} of {len(rows)} answers are empty")
    cut = sum(not row.get("finished", True) for row in rows)
    if cut:
        notes.append(f"{cut} of {len(rows)} answers were cut off at the longest length")
    return notes


SCORERS: dict[str, Callable[[dict[str, Any], Sequence[Sample], Rows, Any], Scored]] = {"chair": score_chair}
