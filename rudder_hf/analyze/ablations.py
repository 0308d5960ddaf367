"""Ablations from a calibration's `calibration.json`: layers, alpha_max and k, and POPE around the chosen setting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..metrics.errors import InputError
from ..runtime.store import read_json

CALIBRATION_FILE = "calibration.json"
METRICS = {"chair_s": "CHAIR_S", "chair_i": "CHAIR_I", "recall": "Recall"}
_SAME_IN_A_GRID = ("layer", "mode", "pool", "span", "c", "g_min", "g_max", "norm_cap", "steer_first_token")


def read_calibration(path: Path) -> dict[str, Any]:
    """The newest result in a calibration's folder, or the one in a result's folder or file.

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
        ablations(numbers)
    except (KeyError, TypeError) as error:
        raise InputError(f"{path} is no result of `rudder calibrate`, or one of version 0.1: {error!r}") from error
    return numbers  # type: ignore[no-any-return]


def ablations(numbers: dict[str, Any]) -> dict[str, Any]:
    """What the figures show, from `calibration.json`.

    Raises:
        InputError: The calibration had no annotations, so that there are no such scores.
    """
    rows = numbers["settings"]
    vanilla = next((row for row in rows if row.get("vanilla")), None)
    if vanilla is None or "chair_s" not in vanilla["scores"]:
        raise InputError("the calibration has no CHAIR scores: it was run without annotations")
    chosen = next((row for row in rows if row.get("chosen") and not row.get("vanilla")), None)
    return {
        "model": numbers["model"]["name"],
        "images": vanilla["images"],
        "max_new_tokens": numbers.get("record", {}).get("max_new_tokens"),
        "vanilla": _percent(vanilla, METRICS),
        "chosen": chosen and {name: chosen.get(name) for name in ("alpha_max", "k", *_SAME_IN_A_GRID)},
        "sweep": _sweep(numbers.get("probes", [])),
        "grids": _grids([row for row in rows if not row.get("vanilla")], chosen),
        "pope": [
            {name: row[name] for name in ("setting", "steer_first_token", "change")}
            | _percent(row, ("accuracy", "f1"))
            for row in numbers.get("pope", [])
        ],
    }


def _percent(row: dict[str, Any], names: Any) -> dict[str, float]:
    return {name: 100 * row["scores"][name] for name in names}


def _sweep(probes: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Scores of every layer at the settings of the sweep, milder first."""
    vanilla = next((row for row in probes if row.get("vanilla")), None)
    if vanilla is None:
        return None
    layers: dict[int, list[dict[str, Any]]] = {}
    for row in sorted((r for r in probes if "layer" in r), key=lambda r: (r["layer"], r["alpha_max"], r["k"])):
        scores = {"alpha_max": row["alpha_max"], "k": row["k"], **_percent(row, METRICS)}
        layers.setdefault(row["layer"], []).append(scores)
    return {
        "images": vanilla["images"],
        "vanilla": _percent(vanilla, METRICS),
        "layers": [{"layer": layer, "settings": settings} for layer, settings in layers.items()],
    }


def _grids(rows: list[dict[str, Any]], chosen: dict[str, Any] | None) -> list[dict[str, Any]]:
    """A grid over alpha_max and k for each layer and each combination of the other settings; the chosen one first."""
    grids: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        same = {name: row.get(name) for name in _SAME_IN_A_GRID}
        grid = grids.setdefault(tuple(same.values()), {**same, "chosen": False, "cells": []})
        grid["chosen"] |= row is chosen
        grid["cells"].append(
            {
                "alpha_max": row["alpha_max"],
                "k": row["k"],
                **_percent(row, METRICS),
                "images": row["images"],
                "mark": "‡" if "dropped" in row else "†" if "breaks" in row else "",
                "chosen": row is chosen,
            }
        )
    return sorted(grids.values(), key=lambda grid: (not grid["chosen"], grid["layer"]))
