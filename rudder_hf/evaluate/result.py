"""The result of an evaluation, typed, versioned and read back as it was; and how saved answers become one: scores,
fluency, intervals over images, paired differences to the first method.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..methods import CONTROL_OF
from ..metrics.chair import CaptionDetail
from ..metrics.statistics import SAMPLES, Counts, Difference, Floats, Metric, Sums, compare, interval, ratio, share
from ..metrics.truncation import CONTROL_METRICS, cut_to_recall
from ..metrics.words import BROKEN_METRICS, FLUENCY_METRICS, broken, repetition
from ..runtime.errors import InputError
from ..runtime.store import RESULT_FILE, read_result, to_json
from .tasks import Sample, scorer

FORMAT = "rudder-result-3"
VANILLA = "vanilla"
"""The method whose captions are cut as a control of the others."""


@dataclass(frozen=True)
class MetricValue:
    """One number."""

    label: str  # Its name in tables
    value: float  # The number, in percent where the unit is "percent"
    direction: str  # "lower" or "higher" is better, or "none" where neither is
    unit: str  # "percent", "points", "words" or "nats"
    low: float  # Lower end of the 95 % bootstrap interval over images
    high: float  # Upper end


@dataclass(frozen=True)
class MetricDifference(MetricValue):
    """One method minus another on the same images; the interval is paired."""

    p_value: float  # Of a permutation test that swaps the two answers of an image


@dataclass(frozen=True)
class ControlResult:
    """Vanilla's captions cut until their recall is a method's (`rudder_hf.metrics.truncation`)."""

    # After how many mentions captions are cut; None if the method recalls as much as vanilla or more
    mentions: int | None
    shorter: float  # Which share of the captions is cut one mention earlier
    metrics: dict[str, MetricValue]  # Of the cut captions, by name
    differences: dict[str, MetricDifference]  # The method minus its control, by metric


@dataclass(frozen=True)
class MethodResult:
    """All numbers of one method."""

    name: str  # As tables call it
    method: str  # Which method it is, where `name` says more than that
    settings: dict[str, Any]  # Its settings
    metrics: dict[str, MetricValue]  # By name, in the order of the tables
    counts: dict[str, int]  # What the metrics were computed from
    # To the first method of the run, by metric; empty for the first one
    differences: dict[str, MetricDifference] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # Counted warnings about its answers
    # Of captions: vanilla's, cut to this method's recall; None for vanilla itself and without vanilla
    control: ControlResult | None = None
    # Throughput and the like against vanilla, where they were measured
    cost: dict[str, float] = field(default_factory=dict)
    # Of a control: the method that it is a control of, minus it; what is left is the image's own
    steered_minus: dict[str, MetricDifference] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """A whole run. Everything but `run` is the same however the work was cut up."""

    task: str  # What was asked: "chair", "pope", "mme", "scenes" or "scenes-pope"
    kind: str  # How it was scored: "chair", "pope" or "mme"
    model: dict[str, Any]  # Name, revision of the base, class, parameters, dtype, generation options of its own
    data: dict[str, Any]  # Where samples come from, with a hash of them
    prompt: str  # The prompt, or its form with {question} in it
    decoding: dict[str, Any]  # Name and options
    scoring: dict[str, Any]  # Lineage or parser, draws of the bootstrap
    seed: int  # Of the choice of images, of sampling and of the bootstrap
    image_ids: list[int | str]  # The images that were evaluated
    samples: int  # How many questions each method answered
    methods: list[MethodResult]  # One result for each method
    notes: list[str]  # Counted warnings about the data
    run: dict[str, Any]  # When, how long, with what command, versions and hardware
    format: str = FORMAT  # Version of this layout

    def method(self, name: str) -> MethodResult:
        """The result of one method.

        Raises:
            InputError: It is not part of the run.
        """
        found = {method.name: method for method in self.methods}
        if name not in found:
            raise InputError(f"there is no method {name!r} in this run; methods: {', '.join(found)}")
        return found[name]

    def to_json(self) -> str:
        """The text of the result file."""
        return to_json(asdict(self))

    @classmethod
    def load(cls, path: str | Path) -> Result:
        """Read a result file, or the one in a results folder.

        Raises:
            InputError: It is no result of this format.
        """
        path = Path(path)
        if path.is_dir():
            path = path / RESULT_FILE
        if not path.is_file():
            raise InputError(f"there is no result {path}: the run has not finished, or this is no results folder")
        return read_result(path, cls, FORMAT, "a result of this version of rudder")


# From answers to a result

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
    parser: str = "robust"  # Of POPE: "robust", "official" or "opera"
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
    scored: Scored = scorer(kind)(samples, rows, scoring)
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
