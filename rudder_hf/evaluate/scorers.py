"""How each kind of task is scored: from samples and answers to counts and metrics, with fluency beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..metrics.chair import CHAIR_METRICS, chair, ground_truth
from ..metrics.coco import CocoData
from ..metrics.fluency import BROKEN_METRICS, FLUENCY_METRICS, broken, repetition
from ..metrics.mme import MmeQuestion, mme, mme_metrics
from ..metrics.pope import Question, pope, pope_mean
from ..metrics.statistics import Counts, Metric, share
from .tasks.base import Sample

Rows = Sequence[dict[str, Any]]

# Descriptive: steering lowers it a little by nature, and endless repetition raises it.
LIKELIHOOD_METRICS = (
    Metric("log_likelihood", "Log-likelihood per token", share("log_likelihood", "tokens"), None, "nats"),
)


@dataclass(frozen=True)
class Scored:
    """One method's counts and what to make of them.

    Attributes:
        counts: One row for each picture: pictures are what the bootstrap draws, their questions hang together.
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
    ids = tuple(sample.id for sample in samples)
    texts = [row["answer"] for row in rows]
    counts, metrics = repetition(texts, ids), (*scored.metrics, *FLUENCY_METRICS)
    if scenes:
        counts, metrics = counts.joined(broken(texts, ids)), (*metrics, *BROKEN_METRICS)
    if all(row["log_likelihood"] is not None for row in rows):
        values = np.asarray([[row["log_likelihood"], row["tokens"]] for row in rows], dtype=np.float64)
        counts = counts.joined(Counts(ids, ("log_likelihood", "tokens"), values))
        metrics = (*metrics, *LIKELIHOOD_METRICS)
    return Scored(scored.counts.joined(by_picture(counts, samples)), metrics, scored.notes)


def by_picture(counts: Counts, samples: Sequence[Sample]) -> Counts:
    """Counts of samples summed over the questions of each picture."""
    pictures = {sample.id: str(sample.image_id) for sample in samples}
    order = {picture: place for place, picture in enumerate(dict.fromkeys(pictures.values()))}
    values = np.zeros((len(order), len(counts.columns)))
    np.add.at(values, [order[pictures[sample]] for sample in counts.ids], counts.values)
    return Counts(tuple(order), counts.columns, values)


def score_pope(plan: dict[str, Any], samples: Sequence[Sample], rows: Rows, scoring: Any) -> Scored:
    """POPE by split and their plain mean, and the fluency of answers."""
    splits: dict[str, list[tuple[Question, str]]] = {}
    for number, (sample, row) in enumerate(zip(samples, rows, strict=True)):
        label = sample.reference["label"]
        question = Question(number, str(sample.image_id), sample.reference["question"], label)
        splits.setdefault(sample.reference["split"], []).append((question, row["answer"]))
    results = {
        split: pope([question for question, _ in asked], [answer for _, answer in asked], scoring.parser)
        for split, asked in splits.items()
    }
    counts, metrics = pope_mean(results)
    notes = _notes(rows)
    unclear = sum(result.unclear for result in results.values())
    if unclear:
        notes.append(f"{unclear} of {len(rows)} answers say neither yes nor no: they count as wrong")
    return _with_fluency(Scored(counts, metrics, notes), samples, rows)


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


def score_mme(plan: dict[str, Any], samples: Sequence[Sample], rows: Rows, scoring: Any) -> Scored:
    """MME by subtask and in sum, and the fluency of answers."""
    questions = [
        MmeQuestion(r["subtask"], Path(r["image"]), r["question"], r["label"]) for r in (s.reference for s in samples)
    ]
    result = mme(questions, [row["answer"] for row in rows])
    notes = _notes(rows)
    if result.other:
        notes.append(f"{result.other} of {len(rows)} answers are neither yes nor no: they count as wrong")
    return _with_fluency(Scored(result.counts, mme_metrics(result.subtasks), notes), samples, rows)


SCORERS: dict[str, Callable[[dict[str, Any], Sequence[Sample], Rows, Any], Scored]] = {
    "chair": score_chair,
    "pope": score_pope,
    "mme": score_mme,
}
