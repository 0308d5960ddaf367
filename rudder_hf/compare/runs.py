"""Running the cells of a comparison: one results folder for each method, settings, decoding and task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..evaluate.folder import RunFolder
from ..evaluate.methods import settings_record
from ..evaluate.run import RunOptions, write_answers
from ..evaluate.scoring import Scored, Scoring, score_run
from ..evaluate.tasks import Task
from ..runtime.decoding import Decoding
from ..runtime.models import Subject
from .record import Changes, Row, Values
from .variants import CALIBRATED, TUNED, Entry, same_settings

Progress = Callable[[str, int, int], None]
_VANILLA = "vanilla"
_KEPT = (
    *("chair_s", "chair_i", "recall", "precision", "f1", "length", "chair_i_distinct", "distinct_objects"),
    *("distinct_2", "repeated_sentences", "broken_sentences", "log_likelihood", "empty"),
    *("accuracy", "yes_ratio", "unclear"),
)
# Which RUDDER is compared with each method: the first of these that was run.
_REFERENCES = (("rudder-beta", TUNED), ("rudder-beta", CALIBRATED), ("rudder-add", TUNED), ("rudder-add", CALIBRATED))


class Cells:
    """Answers of all entries under all decodings.

    Args:
        subject: The model.
        folder: Where answers are kept.
        batch_size: Pictures per batch; beams share it.
        num_beams: Of beam search.
        top_p: Of nucleus sampling.
        seed: Of sampling.
        max_new_tokens: Longest caption; None is the task's own.
        progress: Is told what is done, how many of how many.
    """

    def __init__(
        self, subject: Subject, folder: Path, batch_size: int, num_beams: int, top_p: float, seed: int,
        max_new_tokens: int | None, progress: Progress,
    ) -> None:  # fmt: skip
        self.subject, self.folder, self.batch_size = subject, folder, batch_size
        self.num_beams, self.top_p, self.seed, self.progress = num_beams, top_p, seed, progress
        self.max_new_tokens = max_new_tokens
        self._done: dict[tuple[str, str, str], tuple[Entry, RunFolder | None]] = {}

    def captions(self, entry: Entry, decoding: str, task: Task) -> None:
        """Caption every picture."""
        self._run("captions", entry, decoding, task)

    def questions(self, entry: Entry, decoding: str, task: Task) -> None:
        """Answer every question."""
        self._run("questions", entry, decoding, task)

    def _run(self, what: str, entry: Entry, decoding: str, task: Task) -> None:
        beams = self.num_beams if decoding == "beam" else 1
        if entry.refuses(decoding):
            self._done[what, decoding, entry.key] = (entry, None)
            return
        for (kind, other_decoding, _), (other, folder) in self._done.items():
            if (kind, other_decoding) == (what, decoding) and folder is not None and same_settings(entry, other, what):
                self._done[what, decoding, entry.key] = (entry, folder)
                return
        longest = self.max_new_tokens if what == "captions" else None
        how = Decoding(decoding, longest or task.max_new_tokens, self.num_beams, self.top_p)
        options = RunOptions(max(1, self.batch_size // beams), self.seed, likelihood=False)
        methods = [entry.asked(what)]
        text = f"{what}, {decoding}, {entry.key}"
        folder, missing = write_answers(
            task, self.subject, methods, how, self.folder / what / decoding / entry.key, options,
            progress=lambda _, done, total: self.progress(text, done, total),
        )  # fmt: skip
        assert missing == 0
        self._done[what, decoding, entry.key] = (entry, folder)

    def reference(self, listed: Sequence[Entry]) -> str:
        """Which RUDDER the others are compared with, in words; empty if none was run."""
        entry = self._reference(listed)
        return "" if entry is None else f"{entry.method}, {entry.variant}"

    def _reference(self, listed: Sequence[Entry]) -> Entry | None:
        runnable = {(e.method, e.variant): e for e in listed if e.intervention is not None}
        return next((runnable[key] for key in _REFERENCES if key in runnable), None)

    def rows(self, listed: Sequence[Entry], decodings: Sequence[str], bootstrap: int) -> list[Row]:
        """Scores of everything that was run, with paired changes against vanilla."""
        reference = self._reference(listed)
        rows: list[Row] = []
        for decoding in decodings:
            captions = self._scored("captions", decoding)
            questions = self._scored("questions", decoding)
            ours = None if reference is None else captions.get(reference.key)
            for entry in listed:
                if ("captions", decoding, entry.key) not in self._done:
                    continue
                method = entry.intervention
                row = Row(entry.method, entry.variant, decoding, {} if method is None else settings_record(method))
                row = replace(row, note=entry.refuses(decoding))
                told = [(other.decoding, other.method, other.note) for other in rows[-1:]]
                if row.note and (decoding, entry.method, row.note) in told:
                    continue  # once for all settings of a method
                own = captions.get(entry.key)
                if own is not None:
                    values, changes = self._values(own, captions[_VANILLA], bootstrap)
                    row = replace(row, metrics=values, changes=changes)
                if own is not None and ours is not None and own is not ours:
                    row = replace(row, ours=ours.minus(own, bootstrap, self.seed))
                answers = questions.get(entry.key)
                if answers is not None:
                    values, changes = self._values(answers, questions[_VANILLA], bootstrap)
                    row = replace(row, answers=values, answer_changes=changes)
                rows.append(row)
        return rows

    def _scored(self, what: str, decoding: str) -> dict[str, Scored]:
        """Scores of the entries that were run, by key; a folder that serves two entries is scored once."""
        found: dict[str, Scored] = {}
        by_folder: dict[Path, Scored] = {}
        for (kind, name, key), (_, folder) in self._done.items():
            if (kind, name) != (what, decoding) or folder is None:
                continue
            if folder.path not in by_folder:
                by_folder[folder.path] = _score(folder)
            found[key] = by_folder[folder.path]
        return found

    def _values(self, own: Scored, vanilla: Scored, bootstrap: int) -> tuple[Values, Changes]:
        changes = {} if own is vanilla else own.minus(vanilla, bootstrap, self.seed)
        return own.values(bootstrap, self.seed), changes


def _score(folder: RunFolder) -> Scored:
    plan, samples, done = folder.plan(), folder.questions(), folder.done()
    name = next(iter(plan["methods"]))
    rows: list[dict[str, Any]] = [{"method": name, **done[name, sample.id]} for sample in samples]
    scored = score_run(plan, samples, rows, Scoring())[name]
    return replace(scored, metrics=tuple(metric for metric in scored.metrics if metric.name in _KEPT))
