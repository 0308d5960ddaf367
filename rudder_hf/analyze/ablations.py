"""Ablations of a calibration, from its `calibration.json`: layers, alpha_max and k, and POPE around the choice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..metrics.errors import InputError
from ..runtime.store import read_json

CALIBRATION_FILE = "calibration.json"


def read_calibration(path: Path) -> dict[str, Any]:
    """What the figures need of the newest result in a calibration's folder, or of the result at this path.

    Raises:
        InputError: There is none, it is damaged, or it has no scores of captions.
    """
    if path.is_dir():
        found = [*sorted(path.glob(f"result-*/{CALIBRATION_FILE}")), *path.glob(CALIBRATION_FILE)]
        if not found:
            raise InputError(f"{path} has no {CALIBRATION_FILE}: give the folder of a finished `rudder calibrate`")
        path = found[-1]
    numbers = read_json(path)
    try:
        kept = {name: numbers[name] for name in ("model", "layers", "probes", "settings", "pope")}
        kept["date"] = numbers["record"]["date"]
        vanilla = next(row for row in kept["settings"] if row.get("vanilla"))
        labelled = "chair_s" in vanilla["scores"] and "images" in vanilla
    except (KeyError, TypeError, StopIteration) as error:
        raise InputError(f"{path} is no result of `rudder calibrate` of this version: {error!r}") from error
    if not labelled:
        raise InputError(f"{path} has no CHAIR scores: the calibration was run without annotations")
    return kept
