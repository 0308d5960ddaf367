"""What is compared: each method with its published and its tuned settings, RUDDER also as calibrated, and controls.

Variants are run under each decoding, in one results folder for each, and scored with paired differences.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..benchmark.timing import VANILLA
from ..calibrate.peers import Tuning, run_and_score
from ..evaluate.methods import settings_record
from ..evaluate.run import RunOptions
from ..evaluate.scoring import Scored, Scoring
from ..evaluate.tasks import Task
from ..methods import GROUPS, Method, Sources, method_class
from ..metrics.chair import CHAIR_METRICS
from ..runtime.decoding import Decoding
from ..runtime.models import LoadedModel
from ..runtime.progress import Progress, consecutive
from .options import CompareOptions, ComparisonData
from .table import CONTROL, Row

PUBLISHED, TUNED, CALIBRATED = "published", "tuned", "calibrated"
NOTHING_BETTER = "no setting within the limits is better than vanilla"
_SETTINGS = {"rudder": CALIBRATED, "peers": PUBLISHED, "controls": CONTROL}
# Which RUDDER is compared with each method: the first of these that can be run.
_REFERENCES = (("rudder-beta", TUNED), ("rudder-beta", CALIBRATED), ("rudder-add", TUNED), ("rudder-add", CALIBRATED))
# What a result keeps: POPE has a set of metrics for each of its splits beside these.
_KEPT = (
    *(metric.name for metric in CHAIR_METRICS),
    *("distinct_2", "repeated_sentences", "broken_sentences", "log_likelihood", "empty"),
    *("accuracy", "yes_ratio", "unclear"),
)


@dataclass(frozen=True)
class Variant:
    """One method with certain settings.

    Attributes:
        name: Of the method.
        settings: Which settings: "published", "tuned", "calibrated" (RUDDER's own), "control"; empty for vanilla.
        method: The method with these settings; None if there is nothing to run.
        note: Why there is nothing to run.
    """

    name: str
    settings: str
    method: Method | None
    note: str = ""

    @property
    def key(self) -> str:
        """A name for folders."""
        return f"{self.name}-{self.settings}" if self.settings else self.name

    def refuses(self, decoding: str) -> str:
        """Why it does not support a way to decode; empty if it does."""
        return self.note if self.method is None else self.method.refuses(decoding)

    def asked(self, what: str) -> Method:
        """The method for "captions" or "questions": published settings may differ between them."""
        assert self.method is not None
        if self.settings != PUBLISHED or what != "questions":
            return self.method
        return replace(self.method, **self.method.for_questions)  # type: ignore[type-var]


def untuned(names: Sequence[str], loaded: LoadedModel, sources: Sources) -> dict[str, Variant]:
    """Each method as published, RUDDER and its controls as calibrated, with a note where it cannot be made."""
    made: dict[str, Variant] = {}
    for name in names:
        settings = next((word for group, word in _SETTINGS.items() if name in GROUPS[group]), "")
        try:
            made[name] = Variant(name, settings, method_class(name).for_model(loaded.model, sources))
        except ValueError as error:
            made[name] = Variant(name, settings, None, f"not run: {error}")
    return made


def candidates(made: Mapping[str, Variant], hidden_norms: Mapping[int, float]) -> dict[str, list[Method]]:
    """The settings that each of the `untuned` methods chooses from; none for a method that lacks something.

    `hidden_norms` are those of `Method.search_space`.
    """
    found: dict[str, list[Method]] = {}
    for name, variant in made.items():
        kind, base = method_class(name), variant.method
        space = kind.search_space(hidden_norms)
        try:
            tried = [kind(**s) if base is None else replace(base, **s) for s in space]  # type: ignore[type-var]
        except ValueError:
            continue
        if tried:
            found[name] = tried
    return found


def with_tuned(
    made: Mapping[str, Variant], tried: Mapping[str, Sequence[Method]], tunings: Mapping[str, Tuning]
) -> list[Variant]:
    """All variants, vanilla first: the `untuned` ones, each followed by what was chosen for it among `candidates`."""
    found: list[Variant] = []
    for name, variant in made.items():
        found.append(variant)
        if name in tunings:
            chosen = tunings[name].chosen
            method, note = (None, NOTHING_BETTER) if chosen is None else (tried[name][chosen], "")
            found.append(Variant(name, TUNED, method, note))
    return found


def reference(variants: Sequence[Variant]) -> Variant | None:
    """Which RUDDER the others are compared with."""
    runnable = {(variant.name, variant.settings): variant for variant in variants if variant.method is not None}
    return next((runnable[key] for key in _REFERENCES if key in runnable), None)


def _same(what: str, variant: Variant) -> tuple[str, ...]:
    """Equal for variants whose answers are the same."""
    method = variant.asked(what)
    return what, method.name, json.dumps(method.settings(), sort_keys=True)


class Runs:
    """Answers of variants, kept batch by batch in a folder, and their scores."""

    def __init__(self, loaded: LoadedModel, folder: Path, options: CompareOptions) -> None:
        self.loaded, self.folder, self.options = loaded, folder, options

    def rows(self, variants: Sequence[Variant], data: ComparisonData, stage: Iterator[Progress]) -> list[Row]:
        """Run everything that is not done yet, a stage for each decoding; compare it with vanilla and with RUDDER."""
        rows: list[Row] = []
        ours, decodings = reference(variants), self.options.decodings
        first = {v.key: next((name for name in decodings if not v.refuses(name)), None) for v in variants}
        tuned = {variant.name for variant in variants if variant.settings == TUNED and variant.method is not None}
        for decoding, task in data.captions.items():
            shown: list[Variant] = []
            asked: list[tuple[str, Task, Variant]] = []
            for variant in variants:
                own = first[variant.key] == decoding
                # Controls, and published settings beside tuned ones, are run under one decoding unless asked for more.
                once = variant.settings == CONTROL or (variant.settings == PUBLISHED and variant.name in tuned)
                if reason := variant.refuses(decoding):
                    if (variant.name, reason) not in [(other.name, other.refuses(decoding)) for other in shown]:
                        shown.append(variant)
                elif own or self.options.everywhere or not once:
                    shown.append(variant)
                    asked.append(("captions", task, variant))
                # Questions are asked once, and of vanilla wherever they are asked of another method.
                if own or (variant.name == VANILLA and decoding in first.values()):
                    asked.append(("questions", data.questions, variant))
            captions, questions = self._scores(decoding, asked, next(stage))
            theirs = None if ours is None else captions.get(ours.key)
            rows += [self._row(variant, decoding, captions, questions, theirs) for variant in shown]
        return rows

    def _scores(
        self, decoding: str, asked: Sequence[tuple[str, Task, Variant]], progress: Progress
    ) -> tuple[dict[str, Scored], dict[str, Scored]]:
        """Scores of captions and of questions, by variant; those with the same settings are run once."""
        runs: dict[tuple[str, ...], tuple[str, Task, Variant]] = {}
        for what, task, variant in asked:
            runs.setdefault(_same(what, variant), (what, task, variant))
        parts = consecutive(progress, [len(task.samples) for _, task, _ in runs.values()])
        scored = {same: self._run(decoding, *run, part) for (same, run), part in zip(runs.items(), parts, strict=True)}
        captions, questions = (
            {variant.key: scored[_same(what, variant)] for what, _, variant in asked if what == kind}
            for kind in ("captions", "questions")
        )
        return captions, questions

    def _run(self, decoding: str, what: str, task: Task, variant: Variant, progress: Progress) -> Scored:
        options, beams = self.options, self.options.costs.num_beams
        size = options.batch_size // beams if decoding == "beam" else options.batch_size
        longest = options.calibration.max_new_tokens if what == "captions" else None
        scored = run_and_score(
            task,
            self.loaded,
            variant.asked(what),
            Decoding(decoding, longest or task.max_new_tokens, beams, options.top_p),
            self.folder / what / decoding / variant.key,
            RunOptions(max(1, size), options.seed, likelihood=False),
            Scoring(),
            lambda _, done, total: progress(f"{what}, {decoding}, {variant.key}", done, total),
        )
        return replace(scored, metrics=tuple(metric for metric in scored.metrics if metric.name in _KEPT))

    def _row(
        self, variant: Variant, decoding: str, captions: Mapping[str, Scored], questions: Mapping[str, Scored],
        ours: Scored | None,
    ) -> Row:  # fmt: skip
        draws, key = (self.options.bootstrap, self.options.seed), variant.key
        found: dict[str, Any] = {}
        for values, changes, scored in (("metrics", "changes", captions), ("answers", "answer_changes", questions)):
            if key in scored:
                own, vanilla = scored[key], scored[VANILLA]
                found[values] = own.values(*draws)
                found[changes] = {} if own is vanilla else own.minus(vanilla, *draws)
        if key in captions:
            found["control"] = captions[key].control(captions[VANILLA], *draws)
        if ours is not None and captions.get(key, ours) is not ours:
            found["ours"] = ours.minus(captions[key], *draws)
        settings = {} if variant.method is None else settings_record(variant.method)
        return Row(variant.name, variant.settings, decoding, settings, variant.refuses(decoding), **found)
