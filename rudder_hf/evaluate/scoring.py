"""From saved answers to a result: scores, fluency, intervals over pictures, paired differences to the first method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..metrics.statistics import SAMPLES, Difference, Metric, compare, interval
from .result import EvaluationResult, MethodResult, MetricDifference, MetricValue
from .scorers import SCORERS, Scored
from .tasks.base import Sample

Rows = Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Scoring:
    """How answers are scored.

    Attributes:
        lineage: Of CHAIR: "pattern", "wordnet" or "strict".
        parser: Of POPE: "robust" or "official".
        bootstrap: Draws for intervals and p-values.
    """

    lineage: str = "pattern"
    parser: str = "robust"
    bootstrap: int = SAMPLES

    def record(self, kind: str) -> dict[str, Any]:
        """The options that matter for a kind of task."""
        mine = {"chair": "lineage", "pope": "parser"}.get(kind)
        return {name: value for name, value in asdict(self).items() if name in (mine, "bootstrap")}


def score(plan: dict[str, Any], samples: Sequence[Sample], rows: Rows, scoring: Scoring) -> dict[str, Scored]:
    """Scores of each method of a run.

    Args:
        plan: The run's plan.
        samples: Its samples.
        rows: Its answers, all methods.
        scoring: How to score.

    Raises:
        ValueError: Answers are missing, doubled or of unknown samples.
    """
    known = {sample.id for sample in samples}
    by_method: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in plan["methods"]}
    for row in rows:
        if row["method"] not in by_method or row["id"] not in known:
            raise ValueError(f"There is an answer of {row['method']!r} to {row['id']!r}, which the run does not have.")
        if row["id"] in by_method[row["method"]]:
            raise ValueError(f"There are two answers of {row['method']!r} to {row['id']!r}.")
        by_method[row["method"]][row["id"]] = row
    for name, answered in by_method.items():
        if len(answered) < len(known):
            raise ValueError(f"{len(known) - len(answered)} of {len(known)} answers of {name!r} are missing.")
    return {
        name: SCORERS[plan["kind"]](plan, samples, [answered[sample.id] for sample in samples], scoring)
        for name, answered in by_method.items()
    }


def build_result(
    plan: dict[str, Any], samples: Sequence[Sample], rows: Rows, scoring: Scoring, run: dict[str, Any]
) -> EvaluationResult:
    """Put a result together."""
    scored = score(plan, samples, rows, scoring)
    first = next(iter(scored))
    methods = []
    for name, entry in scored.items():
        estimates = interval(entry.counts, entry.metrics, scoring.bootstrap, plan["seed"])
        differences: dict[str, Difference] = {}
        if name != first:
            differences = compare(scored[first].counts, entry.counts, entry.metrics, scoring.bootstrap, plan["seed"])
        methods.append(
            MethodResult(
                name=name,
                settings=plan["methods"][name],
                metrics={m.name: metric_value(m, estimates[m.name]) for m in entry.metrics},
                counts={column: round(float(total)) for column, total in entry.counts.total().items()},
                differences={m.name: metric_difference(m, differences[m.name]) for m in entry.metrics if differences},
                notes=entry.notes,
            )
        )
    return EvaluationResult(
        task=plan["task"],
        kind=plan["kind"],
        model=plan["model"],
        data=plan["data"],
        prompt=plan["prompt"],
        decoding=plan["decoding"],
        scoring=scoring.record(plan["kind"]),
        seed=plan["seed"],
        image_ids=list(dict.fromkeys(sample.image_id for sample in samples)),
        samples=len(samples),
        methods=methods,
        notes=list(plan["notes"]),
        run=run,
    )


def _factor(metric: Metric) -> float:
    return 100.0 if metric.unit == "percent" else 1.0


def _direction(metric: Metric) -> str:
    return {True: "higher", False: "lower", None: "none"}[metric.higher_is_better]


def metric_value(metric: Metric, estimate: Any) -> MetricValue:
    """A metric with its interval, as results have it: percent instead of fractions."""
    low, value, high = (round(_factor(metric) * end, 6) for end in (estimate.low, estimate.value, estimate.high))
    return MetricValue(metric.label, value, _direction(metric), metric.unit, low, high)


def metric_difference(metric: Metric, difference: Difference) -> MetricDifference:
    """A difference, as results have it."""
    ends = (difference.low, difference.value, difference.high)
    low, value, high = (round(_factor(metric) * end, 6) for end in ends)
    return MetricDifference(metric.label, value, _direction(metric), metric.unit, low, high, difference.p_value)
