"""From saved answers to a result: scores, fluency, intervals over images, paired differences to the first method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..methods import CONTROL_OF
from ..metrics.chair import CHAIR_METRICS, CaptionDetail, Lineage, chair, check_lineage, ground_truth
from ..metrics.coco import CocoData
from ..metrics.mme import MmeQuestion, mme, mme_metrics
from ..metrics.pope import Parser, Question, pope, pope_mean
from ..metrics.statistics import SAMPLES, Counts, Difference, Floats, Metric, Sums, compare, interval, ratio, share
from ..metrics.truncation import CONTROL_METRICS, cut_to_recall
from ..metrics.words import BROKEN_METRICS, FLUENCY_METRICS, broken, repetition
from .result import VANILLA, ControlResult, MethodResult, MetricDifference, MetricValue, Result
from .tasks.base import Sample

Rows = Sequence[dict[str, Any]]


def _grounding(sums: Sums) -> Floats:
    return ratio(sums["log_likelihood"] - sums["other_log_likelihood"], sums["tokens"])


LIKELIHOOD_METRICS = (
    # Descriptive: steering lowers it a little by nature, and endless repetition raises it.
    Metric("log_likelihood", "Log-likelihood per token", share("log_likelihood", "tokens"), None, "nats"),
    # What is said from habit is as likely with any image, what is seen is not.
    Metric("grounding", "Grounding", _grounding, True, "nats"),
)
"""Of answers under the unsteered model; grounding is how much likelier they are with their own image."""


@dataclass(frozen=True)
class Scoring:
    """How answers are scored."""

    lineage: str = "pattern"  # Of CHAIR: "pattern", "wordnet" or "strict"
    parser: Parser = "robust"  # Of POPE: "robust", "official" or "opera"
    bootstrap: int = SAMPLES  # Draws for intervals and p-values

    def record(self, kind: str) -> dict[str, Any]:
        """The options that matter for a kind of task."""
        mine = {"chair": "lineage", "pope": "parser"}.get(kind)
        return {name: value for name, value in asdict(self).items() if name in (mine, "bootstrap")}


@dataclass(frozen=True)
class Scored:
    """One method's counts and what to make of them."""

    counts: Counts  # One row for each image: images are what the bootstrap draws, their questions hang together
    metrics: tuple[Metric, ...]  # In the order of the tables
    notes: list[str] = field(default_factory=list)  # Counted warnings
    details: tuple[CaptionDetail, ...] = ()  # Of captions: what was found in each

    def values(self, draws: int, seed: int) -> dict[str, MetricValue]:
        """Every metric with its interval, as results have it: percent instead of fractions."""
        estimates = interval(self.counts, self.metrics, draws, seed)
        return {metric.name: MetricValue(**_shown(metric, estimates[metric.name])) for metric in self.metrics}

    def changes(self, other: Scored, draws: int, seed: int, *more: Metric) -> list[tuple[Metric, Difference]]:
        """This method minus another on the same images, for every metric that both have, and for more of them."""
        theirs = {metric.name for metric in other.metrics}
        metrics = [*(metric for metric in self.metrics if metric.name in theirs), *more]
        columns = [column for column in self.counts.columns if column in other.counts.columns]
        found = compare(other.counts.only(columns), self.counts.only(columns), metrics, draws, seed)
        return [(metric, found[metric.name]) for metric in metrics]

    def minus(self, other: Scored, draws: int, seed: int) -> dict[str, MetricDifference]:
        """The changes from another method, as results have them."""
        return {
            metric.name: MetricDifference(**_shown(metric, change), p_value=change.p_value)
            for metric, change in self.changes(other, draws, seed)
        }

    def control(self, vanilla: Scored, draws: int, seed: int) -> ControlResult | None:
        """Vanilla's captions cut to this method's recall, and this method minus them; None if there are none."""
        if self is vanilla or not vanilla.details:
            return None
        cut = cut_to_recall(vanilla.details, self.counts)
        scored = Scored(cut.counts, CONTROL_METRICS)
        values, differences = scored.values(draws, seed), self.minus(scored, draws, seed)
        return ControlResult(cut.mentions, cut.shorter, values, differences)


def _shown(metric: Metric, estimate: Any) -> dict[str, Any]:
    factor = 100.0 if metric.unit == "percent" else 1.0
    return {
        "label": metric.label,
        "direction": {True: "higher", False: "lower", None: "none"}[metric.higher_is_better],
        "unit": metric.unit,
        **{name: round(factor * getattr(estimate, name), 6) for name in ("value", "low", "high")},
    }


def score_answers(task: str, kind: str, samples: Sequence[Sample], rows: Rows, scoring: Scoring) -> Scored:
    """Score the answers of one method, with their fluency: a hallucination score can be bought with broken text.

    Of the kind "images" nothing is known: fluency and length alone. Sentences of the task "scenes" are checked against
    the scenes' grammar.
    """
    scorer = {"chair": _score_chair, "pope": _score_pope, "mme": _score_mme, "images": _score_images}[kind]
    scored = scorer(samples, rows, scoring)
    empty, cut = sum(not row["answer"] for row in rows), sum(not row.get("finished", True) for row in rows)
    notes = [f"{empty} of {len(rows)} answers are empty"] if empty else []
    notes += [f"{cut} of {len(rows)} answers were cut off at the longest length"] if cut else []
    ids = tuple(sample.id for sample in samples)
    texts = [row["answer"] for row in rows]
    counts, metrics = repetition(texts, ids), (*scored.metrics, *FLUENCY_METRICS)
    if task == "scenes":
        counts, metrics = counts.joined(broken(texts, ids)), (*metrics, *BROKEN_METRICS)
    likely = [name for name in ("log_likelihood", "other_log_likelihood") if all(name in row for row in rows)]
    if likely:
        values = np.asarray([[row[name] for name in (*likely, "tokens")] for row in rows], dtype=np.float64)
        counts = counts.joined(Counts(ids, (*likely, "tokens"), values))
        metrics = (*metrics, *LIKELIHOOD_METRICS[: len(likely)])
    joined = scored.counts.joined(_by_image(counts, samples))
    return Scored(joined, metrics, notes + scored.notes, scored.details)


def _by_image(counts: Counts, samples: Sequence[Sample]) -> Counts:
    """Counts of samples summed over the questions of each image."""
    images = {sample.id: str(sample.image_id) for sample in samples}
    order = {image: place for place, image in enumerate(dict.fromkeys(images.values()))}
    values = np.zeros((len(order), len(counts.columns)))
    np.add.at(values, [order[images[sample]] for sample in counts.ids], counts.values)
    return Counts(tuple(order), counts.columns, values)


def chair_truth(samples: Sequence[Sample], lineage: Lineage) -> dict[int, frozenset[str]]:
    """The objects in each image of CHAIR's samples, by image id."""
    data = CocoData(
        files={int(s.image_id): s.image for s in samples},
        objects={int(s.image_id): tuple(s.reference["objects"]) for s in samples},
        references={int(s.image_id): tuple(s.reference["captions"]) for s in samples},
        categories=tuple(dict.fromkeys(name for s in samples for name in s.reference["objects"])),
    )
    return ground_truth(data, lineage)


def _score_chair(samples: Sequence[Sample], rows: Rows, scoring: Scoring) -> Scored:
    lineage = check_lineage(scoring.lineage)
    captions = [(int(sample.image_id), row["answer"]) for sample, row in zip(samples, rows, strict=True)]
    result = chair(captions, chair_truth(samples, lineage), lineage)
    silent = f"{result.silent} captions mention no object: they count for CHAIR_S and recall only"
    return Scored(result.counts, CHAIR_METRICS, [silent] if result.silent else [], result.details)


def _score_pope(samples: Sequence[Sample], rows: Rows, scoring: Scoring) -> Scored:
    """POPE by split and their plain mean."""
    splits: dict[str, list[tuple[Question, str]]] = {}
    for number, (sample, row) in enumerate(zip(samples, rows, strict=True)):
        reference = sample.reference
        question = Question(number, str(sample.image_id), reference["question"], reference["label"])
        splits.setdefault(reference["split"], []).append((question, row["answer"]))
    results = {
        split: pope([question for question, _ in asked], [answer for _, answer in asked], scoring.parser)
        for split, asked in splits.items()
    }
    counts, metrics = pope_mean(results)
    unclear = sum(result.unclear for result in results.values())
    note = f"{unclear} of {len(rows)} answers say neither yes nor no: they count as wrong"
    return Scored(counts, metrics, [note] if unclear else [])


def _score_mme(samples: Sequence[Sample], rows: Rows, scoring: Scoring) -> Scored:
    """MME by subtask and in sum."""
    questions = [
        MmeQuestion(r["subtask"], Path(r["image"]), r["question"], r["label"]) for r in (s.reference for s in samples)
    ]
    result = mme(questions, [row["answer"] for row in rows])
    note = f"{result.other} of {len(rows)} answers are neither yes nor no: they count as wrong"
    return Scored(result.counts, mme_metrics(result.subtasks), [note] if result.other else [])


def _score_images(samples: Sequence[Sample], rows: Rows, scoring: Scoring) -> Scored:
    """Numbers of words."""
    values = np.asarray([[len(row["answer"].split())] for row in rows], dtype=np.float64).reshape(len(rows), 1)
    return Scored(Counts(tuple(str(sample.image_id) for sample in samples), ("words",), values), ())


def build_result(
    plan: dict[str, Any], samples: Sequence[Sample], variants: Sequence[Any], scored: Sequence[Scored],
    scoring: Scoring, run: dict[str, Any],
) -> Result:  # fmt: skip
    """Put a result together from a plan, its samples, its variants with their scores, and how the run came about."""
    first = scored[0]
    vanilla = next((own for variant, own in zip(variants, scored, strict=True) if variant.method == VANILLA), None)
    draws = scoring.bootstrap, plan["seed"]
    # Of several variants of a method the first is what controls are about.
    by_method: dict[str, Scored] = {}
    for variant, own in zip(variants, scored, strict=True):
        by_method.setdefault(variant.method, own)
    controlled = [by_method.get(CONTROL_OF.get(variant.method, "")) for variant in variants]
    methods = [
        MethodResult(
            name=variant.label,
            method=variant.method,
            settings=dict(variant.settings),
            metrics=own.values(*draws),
            counts={column: round(float(total)) for column, total in own.counts.total().items()},
            differences={} if own is first else own.minus(first, *draws),
            notes=own.notes,
            control=None if vanilla is None else own.control(vanilla, *draws),
            steered_minus={} if steered is None else steered.minus(own, *draws),
        )
        for variant, own, steered in zip(variants, scored, controlled, strict=True)
    ]
    return Result(
        **{name: plan[name] for name in ("task", "kind", "model", "data", "prompt", "decoding", "seed")},
        scoring=scoring.record(plan["kind"]),
        image_ids=list(dict.fromkeys(sample.image_id for sample in samples)),
        samples=len(samples),
        methods=methods,
        notes=list(plan["notes"]),
        run=run,
    )
