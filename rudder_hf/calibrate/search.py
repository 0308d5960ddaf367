"""Step 2: decode the settings of a layer on the pictures, in rounds, and drop those without a chance."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..evaluate.tasks.base import Sample, Task
from ..runtime.inputs import encode
from ..runtime.models import Subject
from .decoding import Decoded, SettingsDecoder
from .scoring import Limits, Scorer
from .selection import Candidate
from .settings import VANILLA, Setting
from .stopping import hopeless, looks
from .store import UNSTEERED, Store

Progress = Callable[[str, int, int], None]

ROWS = 256


@dataclass
class Search:
    """Decodes and remembers.

    Attributes:
        subject: The stock model and its processor.
        task: Reads the pictures.
        samples: The pictures to choose on, in random order; the contrast of each is the next one.
        store: Keeps the answers.
        scorer: Counts them.
        limits: What a setting must not break.
        max_new_tokens: Longest answer.
        contrast: Whether answers are also scored given another picture, for the criterion without labels.
        shuffled: Whether pictures are steered by the CARD of the next one, as a control.
        rows: Largest batch; halved when memory runs out.
        early: Whether settings without a chance are dropped.
        progress: Is told what is done, how many pictures of how many.
    """

    subject: Subject
    task: Task
    samples: list[Sample]
    store: Store
    scorer: Scorer
    limits: Limits
    max_new_tokens: int
    contrast: bool = False
    shuffled: bool = False
    rows: int = ROWS
    early: bool = True
    progress: Progress | None = None

    def layer(self, layer: int, settings: Sequence[Setting]) -> dict[Candidate, str]:
        """Decode the settings of a layer on all pictures, vanilla among them.

        Returns:
            The candidates that were dropped on the way, and the limit that they would break.
        """
        stops = looks(len(self.samples)) if self.early else []
        dropped: dict[Candidate, str] = {}
        running = [VANILLA, *(setting for setting in settings if setting != VANILLA)]
        for stop in [*stops, len(self.samples)]:
            self.decode(layer, running, self.samples[:stop])
            if stop == len(self.samples):
                break
            vanilla = self.counts(UNSTEERED, self.samples[:stop])
            for setting in running[1:]:
                counts = self.counts((layer, setting), self.samples[:stop])
                limit = hopeless(counts, vanilla, self.limits, self.scorer.labelled, len(self.samples), len(stops))
                if limit is not None:
                    dropped[layer, setting] = f"{limit} after {stop} pictures"
            running = [setting for setting in running if (layer, setting) not in dropped]
        return dropped

    def counts(self, candidate: Candidate, samples: Sequence[Sample]) -> Any:
        """Counts of a candidate on some samples."""
        rows = self.store.rows(candidate)
        return self.scorer.counts({sample.id: rows[sample.id] for sample in samples})

    def decode(self, layer: int, settings: Sequence[Setting], samples: Sequence[Sample]) -> None:
        """See that every setting has an answer to every sample: this process's share, then wait for the others.

        Args:
            layer: The layer.
            settings: The settings.
            samples: The samples, the beginning of `self.samples`. The other picture of each, for contrasts and for
                the control, is the next one there, and the first for the last.
        """
        ids = [sample.id for sample in samples]
        missing = self.store.missing(layer, settings, ids, self.contrast)
        process = self.store.process
        # Contiguous shares, so that most contrasts are in the batch anyway; and the same whatever is done already, so
        # that processes which look at different moments agree on them.
        mine = range(process.rank * len(ids) // process.count, (process.rank + 1) * len(ids) // process.count)
        share = [place for place in mine if ids[place] in missing]
        done = 0
        with SettingsDecoder(self.subject.model, layer) as decoder:
            while done < len(share):
                wanted = missing[samples[share[done]].id]
                size = max(1, self.rows // len(wanted))
                batch = [share[done]]
                for place in share[done + 1 : done + size]:
                    if place != batch[-1] + 1 or missing[samples[place].id] != wanted:
                        break
                    batch.append(place)
                following = self.samples[(batch[-1] + 1) % len(self.samples)]
                try:
                    self._batch(decoder, wanted, [samples[place] for place in batch], following)
                except torch.OutOfMemoryError as error:
                    self._take_fewer(len(batch) * len(wanted), error)
                    continue
                done += len(batch)
                if self.progress is not None:
                    self.progress(f"layer {decoder.layer}, {len(wanted)} settings", done, len(share))
        self.store.wait_for(layer, settings, ids, self.contrast)

    def _take_fewer(self, tried: int, error: Exception) -> None:
        """Halve the batch after memory ran out; with one row it is the model that is too large."""
        if self.rows == 1:
            raise error
        self.rows = max(1, min(self.rows, tried) // 2)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _batch(
        self, decoder: SettingsDecoder, settings: Sequence[Setting], samples: list[Sample], following: Sample
    ) -> None:
        """Decode consecutive samples and store them."""
        start = time.perf_counter()
        shown = [*samples, following] if self.contrast or self.shuffled else samples
        inputs = encode(
            self.subject.model,
            self.subject.processor,
            [self.task.image(sample) for sample in shown],
            [sample.prompt for sample in shown],
        )
        decoded = decoder(
            inputs,
            settings,
            rows=self.rows,
            score=True,
            contrast=self.contrast,
            shuffled=self.shuffled,
            max_new_tokens=self.max_new_tokens,
        )
        answers = {
            sample.id: [self._row(answer) for answer in row] for sample, row in zip(samples, decoded, strict=True)
        }
        self.store.add(decoder.layer, settings, answers, time.perf_counter() - start)

    def _row(self, answer: Decoded) -> dict[str, Any]:
        tokenizer = getattr(self.subject.processor, "tokenizer", self.subject.processor)
        return {
            "answer": tokenizer.decode(list(answer.tokens), skip_special_tokens=True).strip(),
            "tokens": len(answer.tokens),
            "log_likelihood": None if answer.nll is None else round(-answer.nll, 4),
            "contrast": None if answer.contrast is None else round(-answer.contrast, 4),
        }
