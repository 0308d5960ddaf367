"""Answers on disk: every batch is stored before the next begins, by each process in a file of its own."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from ..metrics.errors import InputError
from ..runtime.journal import Journal, read_batches, write_new
from ..runtime.processes import Process
from .selection import Candidate
from .settings import VANILLA, Setting

UNSTEERED: Candidate = (-1, VANILLA)
"""Where vanilla's answers are kept: they belong to no layer."""

_POLL = 0.5
PATIENCE = 1800.0


class Store:
    """The state of a calibration.

    Args:
        folder: Where it is kept.
        plan: What all answers have in common: model, pictures, prompt, longest answer. The grid may grow later.
        process: Which of several processes this is.

    Raises:
        InputError: The folder belongs to another calibration.
    """

    def __init__(self, folder: Path, plan: Mapping[str, Any], process: Process) -> None:
        self.folder = folder
        self.process = process
        text = json.dumps(plan, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        path = folder / "plan.json"
        if not write_new(path, text):
            known = json.loads(path.read_text(encoding="utf-8"))
            wanted = json.loads(text)
            if different := sorted(k for k in {*known, *wanted} if known.get(k) != wanted.get(k)):
                raise InputError(
                    f"{folder} holds a calibration with another {', '.join(different)}: choose another --out, or "
                    "repeat its command. Grid, layers, limits and objective may change, these may not."
                )
        self.answers: dict[Candidate, dict[str, dict[str, Any]]] = {}
        self.seconds = 0.0
        self._journal = Journal(folder / "answers", process.rank, process.count)

    def __enter__(self) -> Store:
        self._journal.__enter__()
        self.refresh()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._journal.__exit__(kind, error, trace)

    def refresh(self) -> None:
        """Read what all processes have stored."""
        self.answers = {}
        self.seconds = 0.0
        for batch in read_batches(self.folder / "answers"):
            self._take(batch)

    def _take(self, batch: Mapping[str, Any]) -> None:
        self.seconds += batch["seconds"]
        settings = [Setting.of(record) for record in batch["settings"]]
        for sample, rows in batch["answers"].items():
            for setting, row in zip(settings, rows, strict=True):
                self.answers.setdefault(_key(batch["layer"], setting), {})[sample] = row

    def add(
        self, layer: int, settings: Sequence[Setting], answers: Mapping[str, list[dict[str, Any]]], seconds: float
    ) -> None:
        """Store a batch: for each sample one answer per setting."""
        batch = {
            "layer": layer,
            "settings": [setting.record() for setting in settings],
            "answers": dict(answers),
            "seconds": round(seconds, 4),
        }
        self._journal.append(batch)
        self._take(batch)

    def rows(self, candidate: Candidate) -> dict[str, dict[str, Any]]:
        """The answers of a candidate by sample id."""
        return self.answers.get(_key(*candidate), {})

    def missing(
        self, layer: int, settings: Sequence[Setting], samples: Collection[str], contrast: bool = False
    ) -> dict[str, list[Setting]]:
        """For each sample the settings that have no answer yet (or none with a contrast, if that is needed)."""
        found: dict[str, list[Setting]] = {}
        for setting in settings:
            rows = self.rows((layer, setting))
            for sample in samples:
                row = rows.get(sample)
                if row is None or (contrast and row["contrast"] is None):
                    found.setdefault(sample, []).append(setting)
        return {sample: found[sample] for sample in samples if sample in found}

    def wait_for(
        self,
        layer: int,
        settings: Sequence[Setting],
        samples: Collection[str],
        contrast: bool,
        patience: float = PATIENCE,
    ) -> None:
        """Wait until the other processes have stored their part.

        Raises:
            RuntimeError: Nothing comes any more.
        """
        left, since = -1, time.monotonic()
        while lacking := self.missing(layer, settings, samples, contrast):
            if self.process.count == 1:
                raise RuntimeError(f"{len(lacking)} pictures have no answers; this is a bug.")
            if len(lacking) != left:
                left, since = len(lacking), time.monotonic()
            if time.monotonic() - since > patience:
                raise RuntimeError(
                    f"{left} pictures of other processes are missing and nothing has come for {patience:.0f} s: "
                    "repeat the command, nothing that is stored will be done again."
                )
            time.sleep(_POLL)
            self.refresh()


def _key(layer: int, setting: Setting) -> Candidate:
    return UNSTEERED if setting.alpha_max == 0 else (layer, setting)
