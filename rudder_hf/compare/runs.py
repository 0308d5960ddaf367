"""Running variants under decodings: one results folder for each, scored, with paired differences."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..benchmark.timing import VANILLA
from ..evaluate.methods import settings_record
from ..evaluate.run import RunOptions, write_answers
from ..evaluate.scoring import Scored, Scoring, score_answers
from ..evaluate.tasks import Task
from ..runtime.decoding import Decoding
from ..runtime.models import LoadedModel
from ..runtime.progress import Progress, no_progress
from .options import CompareOptions, ComparisonData
from .record import Changes, Row
from .variants import CALIBRATED, CONTROL, PUBLISHED, TUNED, Variant

# What a result keeps: POPE has a set of metrics for each of its splits beside these.
_KEPT = (
    *("chair_s", "chair_i", "recall", "precision", "f1", "length", "chair_i_distinct", "distinct_objects"),
    *("distinct_2", "repeated_sentences", "broken_sentences", "log_likelihood", "empty"),
    *("accuracy", "yes_ratio", "unclear"),
)
# Which RUDDER is compared with each method: the first of these that can be run.
_REFERENCES = (("rudder-beta", TUNED), ("rudder-beta", CALIBRATED), ("rudder-add", TUNED), ("rudder-add", CALIBRATED))


def reference(variants: Sequence[Variant]) -> Variant | None:
    """Which RUDDER the others are compared with."""
    runnable = {(variant.name, variant.settings): variant for variant in variants if variant.method is not None}
    return next((runnable[key] for key in _REFERENCES if key in runnable), None)


class Runs:
    """Answers of variants, kept batch by batch, and their scores.

    Args:
        loaded: The model.
        folder: Where answers are kept.
        options: How to decode.
        progress: Is called with what is done.
    """

    def __init__(
        self, loaded: LoadedModel, folder: Path, options: CompareOptions, progress: Progress = no_progress
    ) -> None:
        self.loaded, self.folder, self.options, self.progress = loaded, folder, options, progress
        self._scored: dict[tuple[str, ...], Scored] = {}

    def score(self, what: str, variant: Variant, decoding: str, task: Task) -> Scored:
        """Scores of a variant; those of another variant with the same settings serve too.

        Args:
            what: "captions" or "questions".
            variant: One that does not refuse the decoding.
            decoding: "greedy", "beam" or "nucleus".
            task: The captions or questions.
        """
        method, options = variant.asked(what), self.options
        key = (what, decoding, method.name, json.dumps(method.settings(), sort_keys=True))
        if key not in self._scored:
            beams = options.num_beams if decoding == "beam" else 1
            longest = options.max_new_tokens if what == "captions" else None
            folder, _ = write_answers(
                task,
                self.loaded,
                [method],
                Decoding(decoding, longest or task.max_new_tokens, options.num_beams, options.top_p),
                self.folder / what / decoding / variant.key,
                RunOptions(max(1, options.batch_size // beams), options.seed, likelihood=False),
                progress=lambda _, done, total: self.progress(f"{what}, {decoding}, {variant.key}", done, total),
            )
            done = folder.done()
            rows = [done[method.name, sample.id] for sample in task.samples]
            scored = score_answers(task.name, task.kind, task.samples, rows, Scoring())
            kept = tuple(metric for metric in scored.metrics if metric.name in _KEPT)
            self._scored[key] = replace(scored, metrics=kept)
        return self._scored[key]

    def rows(self, variants: Sequence[Variant], data: ComparisonData) -> list[Row]:
        """Run everything that is not done yet, and compare it with vanilla and with RUDDER."""
        rows: list[Row] = []
        ours = reference(variants)
        first = {variant.key: variant.first_decoding(self.options.decodings) for variant in variants}
        tuned = {variant.name for variant in variants if variant.settings == TUNED and variant.method is not None}
        for decoding, task in data.captions.items():
            captions: dict[str, Scored] = {}
            questions: dict[str, Scored] = {}
            shown: list[Variant] = []
            for variant in variants:
                own = first[variant.key] == decoding
                # Controls, and published settings beside tuned ones, are run under one decoding unless asked for more.
                once = variant.settings == CONTROL or (variant.settings == PUBLISHED and variant.name in tuned)
                if reason := variant.refuses(decoding):
                    if (variant.name, reason) not in [(other.name, other.refuses(decoding)) for other in shown]:
                        shown.append(variant)
                elif own or self.options.everywhere or not once:
                    shown.append(variant)
                    captions[variant.key] = self.score("captions", variant, decoding, task)
                # Questions are asked once, and of vanilla wherever they are asked of another method.
                if own or (variant.name == VANILLA and decoding in first.values()):
                    questions[variant.key] = self.score("questions", variant, decoding, data.questions)
            rows += [self._row(variant, decoding, captions, questions, ours) for variant in shown]
        return rows

    def _row(
        self, variant: Variant, decoding: str, captions: Mapping[str, Scored], questions: Mapping[str, Scored],
        reference: Variant | None,
    ) -> Row:  # fmt: skip
        settings = {} if variant.method is None else settings_record(variant.method)
        found: dict[str, Any] = {}
        for values, changes, scored in (("metrics", "changes", captions), ("answers", "answer_changes", questions)):
            if variant.key in scored:
                own, vanilla = scored[variant.key], scored[VANILLA]
                found[values] = own.values(self.options.bootstrap, self.options.seed)
                found[changes] = {} if own is vanilla else self._minus(own, vanilla)
        ours = None if reference is None else captions.get(reference.key)
        if ours is not None and captions.get(variant.key, ours) is not ours:
            found["ours"] = self._minus(ours, captions[variant.key])
        return Row(variant.name, variant.settings, decoding, settings, variant.refuses(decoding), **found)

    def _minus(self, own: Scored, other: Scored) -> Changes:
        return own.minus(other, self.options.bootstrap, self.options.seed)
