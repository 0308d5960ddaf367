"""What a calibration leaves behind: `config.json`, `report.md`, `calibration.json`, and figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..runtime.journal import write_new
from . import plots
from .outcome import Outcome
from .report import report

NUMBERS, REPORT, CONFIG = "calibration.json", "report.md", "config.json"
# What differs between two runs of the same command.
_FLEETING = ("seconds", "environment")


def save_outcome(outcome: Outcome, out: Path, base_model: str | None, revision: str | None) -> Path:
    """Write everything into a new numbered folder below `out`, or return the one that says the same already.

    Args:
        outcome: What was found.
        out: The calibration's folder.
        base_model: Hub id or folder of the model, for the config.
        revision: Its commit, if it has one.
    """
    numbers = outcome.to_dict()
    folders = sorted(out.glob("result-*"))
    for folder in folders:
        if (folder / NUMBERS).is_file() and _same(json.loads((folder / NUMBERS).read_text(encoding="utf-8")), numbers):
            return folder
    number = len(folders) + 1
    while (folder := out / f"result-{number:03d}").exists():
        number += 1
    folder.mkdir(parents=True)
    if outcome.choice.best is not None:
        outcome.config(base_model, revision).save_pretrained(folder)
    for mode, choice in outcome.by_mode.items():
        if choice.best is not None:
            outcome.config(base_model, revision, mode).save_pretrained(folder / mode)
    write_new(folder / REPORT, report(outcome))
    if plots.available():
        plots.save_figures(outcome, folder)
    # Last: a folder with this file is complete.
    write_new(folder / NUMBERS, json.dumps(numbers, indent=1, ensure_ascii=False) + "\n")
    return folder


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return _lasting(one) == _lasting(json.loads(json.dumps(other)))


def _lasting(numbers: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in numbers.items() if name not in _FLEETING}
    kept["record"] = {name: value for name, value in numbers["record"].items() if name not in ("date", "versions")}
    return kept
