"""Running settings on images, in rounds that drop those without a chance; every batch is stored before the next."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self, TypedDict

import numpy as np
import torch

from ..evaluate.run import encode_samples
from ..evaluate.scoring import Scored, Scoring, score_answers
from ..evaluate.tasks.base import Sample, Task
from ..metrics.statistics import Counts
from ..runtime.models import LoadedModel
from ..runtime.progress import Progress
from ..runtime.store import Store
from .choice import GROUNDING, hopeless, looks
from .decoding import Decoded, decode_settings
from .settings import VANILLA, CalibrationOptions, Setting


class _Answer(TypedDict):
    answer: str
    tokens: int
    log_likelihood: float | None
    contrast: float | None


class _Batch(TypedDict):
    settings: list[dict[str, Any]]
    other_card: bool
    answers: dict[str, list[_Answer]]


@dataclass
class SettingSearch:
    """Runs settings on images, all of a layer at once, remembers the answers, and chooses by them; a context manager.

    Attributes:
        loaded: The stock model and its processor.
        task: Reads the images.
        samples: The questions about the images, in random order.
        store: Keeps the answers; `answers` is what it holds of every setting, by sample id.
        options: Objective, limits, bootstrap.
        stages: A `Progress` for each `run`, and for each other call of `decode`.
        other_card: The control: each image is steered by the CARD, and contrasted by the values, of the next one.
        rows: Largest batch: that of the options, halved when memory runs out.
    """

    loaded: LoadedModel
    task: Task
    samples: list[Sample]
    store: Store
    options: CalibrationOptions
    stages: Iterator[Progress]
    other_card: bool = False
    rows: int = 0
    answers: dict[Setting, dict[str, dict[str, Any]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rows = self.rows or self.options.batch_size

    def __enter__(self) -> Self:
        self.store.__enter__()
        self.refresh()
        return self

    def __exit__(self, *exception: Any) -> None:
        self.store.__exit__(*exception)

    def refresh(self) -> None:
        """Read what all processes have stored."""
        self.answers.clear()
        for batch in self.store.batches(_Batch):
            self._take(batch)

    def _take(self, batch: Mapping[str, Any]) -> None:
        if batch["other_card"] == self.other_card:
            settings = [Setting.of(record) for record in batch["settings"]]
            for sample, rows in batch["answers"].items():
                for setting, row in zip(settings, rows, strict=True):
                    self.answers.setdefault(setting, {})[sample] = row

    def run(self, candidates: Sequence[Setting]) -> dict[Setting, str]:
        """Run candidates, and vanilla, on all samples.

        Returns:
            The candidates that were dropped on the way, and the limit that they would break.
        """
        total = len(self.samples)
        dropped: dict[Setting, str] = {}
        report = self._reporter([VANILLA, *candidates], self.samples, dropped)
        for stop in [*(looks(total) if self.options.early_stopping else []), total]:
            running = [candidate for candidate in candidates if candidate not in dropped]
            self.decode([VANILLA, *running], self.samples[:stop], report)
            if stop == total:
                break
            vanilla = self.scored(VANILLA, stop).counts
            for candidate in running:
                counts = self.scored(candidate, stop).counts
                limit = hopeless(counts, vanilla, self.options.limits, self.labelled, total)
                if limit is not None:
                    dropped[candidate] = f"{limit} after {stop} images"
        return dropped

    @property
    def labelled(self) -> bool:
        """Whether there is a ground truth."""
        return self.task.kind == "chair"

    def scored(self, candidate: Setting, first: int | None = None) -> Scored:
        """Counts of a candidate on those of the first samples that it was run on, and their metrics."""
        rows = self.answers.get(candidate, {})
        samples = [sample for sample in self.samples[:first] if sample.id in rows]
        answers = [rows[sample.id] for sample in samples]
        scored = score_answers(self.task.name, self.task.kind, samples, answers, Scoring(self.options.lineage))
        contrasts = [answer["contrast"] for answer in answers]
        if None in contrasts:
            return scored
        ids = tuple(str(sample.image_id) for sample in samples)
        column = Counts(ids, ("contrast",), np.asarray(contrasts, dtype=np.float64)[:, None])
        return replace(scored, counts=scored.counts.joined(column), metrics=(*scored.metrics, GROUNDING))

    @property
    def other_image(self) -> bool:
        """Whether answers are also scored given another image, for the criterion without labels."""
        return self.options.label_free or self.options.objective == "grounding"

    def _reporter(
        self, candidates: Sequence[Setting], samples: Sequence[Sample], dropped: Collection[Setting] = ()
    ) -> Callable[[str], None]:
        """Begin a stage: a function that reports how many of its answers are there or, if dropped, not needed."""
        progress, total = next(self.stages), len(candidates) * len(samples)

        def report(text: str) -> None:
            missing = self._missing([candidate for candidate in candidates if candidate not in dropped], samples)
            progress(text, total - sum(map(len, missing.values())), total)

        return report

    def decode(
        self, candidates: Sequence[Setting], samples: Sequence[Sample], report: Callable[[str], None] | None = None
    ) -> None:
        """Decode layer by layer: this process's share, then wait for the others."""
        report = report or self._reporter(candidates, samples)
        for layer in dict.fromkeys(c.layer for c in candidates if c.alpha_max) or [0]:
            settings = [c for c in candidates if not c.alpha_max or c.layer == layer]
            self._decode_layer(settings, samples, partial(report, f"layer {layer}, {len(settings)} settings"))

    def _decode_layer(
        self, settings: Sequence[Setting], samples: Sequence[Sample], report: Callable[[], None]
    ) -> None:
        missing = self._missing(settings, samples)
        process = self.store.process
        # Contiguous shares, so that most other images are in the batch anyway; and the same whatever is done already,
        # so that processes which look at different moments agree on them.
        mine = range(*(rank * len(samples) // process.count for rank in (process.rank, process.rank + 1)))
        share = [place for place in mine if samples[place].id in missing]
        report()
        done = 0
        while done < len(share):
            wanted = missing[samples[share[done]].id]
            batch = [share[done]]
            for place in share[done + 1 : done + max(1, self.rows // len(wanted))]:
                if place != batch[-1] + 1 or missing[samples[place].id] != wanted:
                    break
                batch.append(place)
            try:
                self._decode_batch(wanted, batch)
            except torch.OutOfMemoryError:
                if self.rows == 1:
                    raise  # the model alone is too large
                self.rows = max(1, min(self.rows, len(batch) * len(wanted)) // 2)
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()
                continue
            done += len(batch)
            report()

        def left() -> int:
            self.refresh()
            return len(self._missing(settings, samples))

        if process.count > 1:
            self.store.wait(left)
            report()

    def _missing(self, settings: Sequence[Setting], samples: Sequence[Sample]) -> dict[str, list[Setting]]:
        """For each sample the settings that have no answer yet (or none given another image, if that is needed)."""
        found: dict[str, list[Setting]] = {}
        for setting in settings:
            rows = self.answers.get(setting, {})
            for sample in samples:
                row = rows.get(sample.id)
                if row is None or (self.other_image and row["contrast"] is None):
                    found.setdefault(sample.id, []).append(setting)
        return found

    def _decode_batch(self, settings: Sequence[Setting], places: Sequence[int]) -> None:
        """Decode consecutive samples and store them.

        The other image of each, for grounding and for the control, is the next of all samples, and the first for the
        last.
        """
        samples = [self.samples[place] for place in places]
        shown = list(samples)
        if self.other_image or self.other_card:
            shown.append(self.samples[(places[-1] + 1) % len(self.samples)])
        decoded = decode_settings(
            self.loaded.model,
            encode_samples(self.loaded, self.task, shown),
            settings,
            batch_size=self.rows,
            score=True,
            other_image=self.other_image,
            other_card=self.other_card,
            max_new_tokens=self.options.max_new_tokens or self.task.max_new_tokens,
        )
        answers = {sample.id: [self._row(a) for a in row] for sample, row in zip(samples, decoded, strict=True)}
        records = [setting.record() for setting in settings]
        stored = {"settings": records, "other_card": self.other_card, "answers": answers}
        self.store.append(stored)
        self._take(stored)

    def _row(self, answer: Decoded) -> dict[str, Any]:
        tokenizer = getattr(self.loaded.processor, "tokenizer", self.loaded.processor)
        return {
            "answer": tokenizer.decode(list(answer.tokens), skip_special_tokens=True).strip(),
            "tokens": len(answer.tokens),
            "log_likelihood": None if answer.nll is None else round(-answer.nll, 4),
            "contrast": None if answer.other_nll is None else round(-answer.other_nll, 4),
        }
