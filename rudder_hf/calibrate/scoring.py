"""From stored answers to counts, one row per image; objectives and limits are functions of their sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..evaluate.scoring import LIKELIHOOD_METRICS, Scored, Scoring, score_answers
from ..evaluate.tasks.base import Sample, Task
from ..metrics.errors import InputError
from ..metrics.fluency import FLUENCY_METRICS, repetition
from ..metrics.statistics import Counts, Floats, Metric, Sums, ratio, share

Rows = Mapping[str, dict[str, Any]]
"""The stored answers of one setting, by sample id."""


def _grounding(sums: Sums) -> Floats:
    return ratio(sums["log_likelihood"] - sums["contrast"], sums["tokens"])


def nll(sums: Sums) -> Floats:
    """Negative log-likelihood per token under the unsteered model."""
    return -ratio(sums["log_likelihood"], sums["tokens"])


GROUNDING = Metric("grounding", "Grounding", _grounding, True, "nats")
recall = share("found", "truth")
_chair_s, _chair_i = share("hallucinated_captions", "captions"), share("hallucinated_mentions", "mentions")
_distinct, _length = share("distinct_2", "sequences_2"), share("words", "answers")

OBJECTIVES: dict[str, Callable[[Sums], Floats]] = {
    "chair_s": _chair_s,
    "chair_i": _chair_i,
    "mean": lambda sums: (_chair_s(sums) + _chair_i(sums)) / 2,
    # Needs no labels; less is better for all objectives.
    "grounding": lambda sums: -_grounding(sums),
}
LABELLED = ("chair_s", "chair_i", "mean")


@dataclass(frozen=True)
class Limits:
    """How much worse than vanilla a setting may be.

    The defaults were set on an embedded model, where broken sentences can be counted, and are no law for others.

    Attributes:
        recall_floor: Least recall as a share of vanilla's; needs labels.
        length_floor: Least number of words as a share of vanilla's; stands in for recall where there are no labels.
        nll_rise: Most that the negative log-likelihood per token under the unsteered model may rise, in nats.
        distinct_drop: Most that the share of distinct word pairs may fall, as a fraction.
    """

    recall_floor: float = 0.95
    length_floor: float = 0.8
    nll_rise: float = 0.05
    distinct_drop: float = 0.05

    def __post_init__(self) -> None:
        for name in ("recall_floor", "length_floor"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name} is {getattr(self, name)}; give a share between 0 and 1, such as 0.95")
        for name in ("nll_rise", "distinct_drop"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} is {getattr(self, name)}; give 0 or more")

    def margins(self, sums: Sums, vanilla: Sums, labelled: bool) -> dict[str, Floats]:
        """For each limit how far a setting is from it: below 0 means that it is broken."""
        if labelled:
            first = {"recall": recall(sums) - self.recall_floor * recall(vanilla)}
        else:
            first = {"length": _length(sums) - self.length_floor * _length(vanilla)}
        return first | {
            "nll_rise": self.nll_rise - (nll(sums) - nll(vanilla)),
            "distinct_drop": self.distinct_drop - (_distinct(vanilla) - _distinct(sums)),
        }

    def record(self, labelled: bool) -> dict[str, float]:
        """The limits that apply, as JSON values."""
        return {k: v for k, v in asdict(self).items() if k != ("length_floor" if labelled else "recall_floor")}


def score(task: Task, samples: Sequence[Sample], rows: Rows, lineage: str) -> Scored:
    """Counts of the answered samples and the metrics that can be made of them.

    Args:
        task: Its kind says how answers are scored; images without annotations are scored for fluency alone.
        samples: The questions, in order.
        rows: The answers.
        lineage: How CHAIR finds objects.
    """
    samples = [sample for sample in samples if sample.id in rows]
    answers = [rows[sample.id] for sample in samples]
    ids = tuple(sample.id for sample in samples)

    def column(names: Sequence[str], values: Sequence[Sequence[float]]) -> Counts:
        return Counts(ids, tuple(names), np.asarray(values, dtype=np.float64).reshape(len(ids), len(names)))

    if task.kind != "images":
        scored = score_answers(task.name, task.kind, samples, answers, Scoring(lineage))
    else:
        texts = [answer["answer"] for answer in answers]
        values = [(len(a["answer"].split()), a["log_likelihood"], a["tokens"]) for a in answers]
        counts = repetition(texts, ids).joined(column(("words", "log_likelihood", "tokens"), values))
        scored = Scored(counts, (*FLUENCY_METRICS, *LIKELIHOOD_METRICS))
    if any(answer.get("contrast") is None for answer in answers):
        return scored
    contrast = column(("contrast",), [[answer["contrast"]] for answer in answers])
    return Scored(scored.counts.joined(contrast), (*scored.metrics, GROUNDING))
