"""From stored answers to sums: one row of counts per picture and setting, objectives and limits over them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..evaluate.scoring import LIKELIHOOD_METRICS, Scoring, score_answers
from ..evaluate.tasks.base import Sample
from ..metrics.errors import InputError
from ..metrics.fluency import FLUENCY_METRICS, repetition
from ..metrics.statistics import (
    Counts,
    Floats,
    Metric,
    Sums,
    ratio,
    share,
)

Rows = Mapping[str, dict[str, Any]]
"""The stored answers of one setting, by sample id."""


def _grounding(sums: Sums) -> Floats:
    return ratio(sums["log_likelihood"] - sums["contrast"], sums["tokens"])


CHAIR_S, CHAIR_I = share("hallucinated_captions", "captions"), share("hallucinated_mentions", "mentions")
OBJECTIVES: dict[str, Callable[[Sums], Floats]] = {
    "chair_s": CHAIR_S,
    "chair_i": CHAIR_I,
    "mean": lambda sums: (CHAIR_S(sums) + CHAIR_I(sums)) / 2,
    # Needs no labels; less is better for all objectives.
    "grounding": lambda sums: -_grounding(sums),
}
LABELLED = ("chair_s", "chair_i", "mean")
GROUNDING = Metric("grounding", "Grounding", _grounding, True, "nats")


@dataclass(frozen=True)
class Limits:
    """How much worse than vanilla a setting may be.

    The defaults were set on an embedded model, where broken sentences can be counted, and are no law for others: the
    report of every calibration on the scenes says how many broken sentences each limit lets through there
    (`evidence.fluency_evidence`), which is the evidence for or against them.

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
        found = {
            "nll_rise": self.nll_rise - (_nll(sums) - _nll(vanilla)),
            "distinct_drop": self.distinct_drop - (_distinct(vanilla) - _distinct(sums)),
        }
        if labelled:
            return {"recall": _recall(sums) - self.recall_floor * _recall(vanilla), **found}
        words = ratio(sums["words"], sums["answers"]) - self.length_floor * ratio(vanilla["words"], vanilla["answers"])
        return {"length": words, **found}

    def record(self, labelled: bool) -> dict[str, float]:
        """The limits that apply, as JSON values."""
        return {k: v for k, v in asdict(self).items() if k != ("length_floor" if labelled else "recall_floor")}


_recall = share("found", "truth")
_distinct = share("distinct_2", "sequences_2")


def _nll(sums: Sums) -> Floats:
    return -ratio(sums["log_likelihood"], sums["tokens"])


@dataclass(frozen=True)
class Scorer:
    """Counts answers.

    Attributes:
        samples: What was asked, in order.
        task: Name of the task; "scenes" also counts broken sentences.
        labelled: Whether there is a ground truth.
        lineage: How CHAIR finds objects.
    """

    samples: Sequence[Sample]
    task: str
    labelled: bool
    lineage: str = "pattern"

    def counts(self, rows: Rows) -> Counts:
        """One row per answered sample, in the order of the samples."""
        samples = [sample for sample in self.samples if sample.id in rows]
        answers = [rows[sample.id] for sample in samples]
        ids = tuple(sample.id for sample in samples)
        if self.labelled:
            counts = score_answers(self.task, "chair", samples, answers, Scoring(self.lineage)).counts
        else:
            texts = [answer["answer"] for answer in answers]
            values = np.asarray(
                [[len(a["answer"].split()), a["log_likelihood"], a["tokens"]] for a in answers], dtype=np.float64
            )
            counts = repetition(texts, ids).joined(Counts(ids, ("words", "log_likelihood", "tokens"), values))
        if all(answer.get("contrast") is not None for answer in answers):
            column = np.asarray([[answer["contrast"]] for answer in answers], dtype=np.float64)
            counts = counts.joined(Counts(ids, ("contrast",), column))
        return counts

    def metrics(self, counts: Counts) -> tuple[Metric, ...]:
        """What can be told from counts, in the order of tables."""
        from ..metrics.chair import CHAIR_METRICS
        from ..metrics.fluency import BROKEN_METRICS

        found = (*(CHAIR_METRICS if self.labelled else ()), *FLUENCY_METRICS, *LIKELIHOOD_METRICS)
        found += BROKEN_METRICS if "broken_sentences" in counts.columns else ()
        return (*found, GROUNDING) if "contrast" in counts.columns else found
