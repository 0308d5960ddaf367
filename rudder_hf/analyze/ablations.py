"""Ablations from a calibration's `calibration.json`: layers, alpha_max and k, and POPE around the chosen setting."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..metrics.errors import InputError

NUMBERS = "calibration.json"
METRICS = {"chair_s": "CHAIR_S", "chair_i": "CHAIR_I", "recall": "Recall"}
_SAME = ("mode", "pool", "span", "c", "g_min", "g_max", "norm_cap", "steer_first_token")


def read_calibration(path: Path) -> dict[str, Any]:
    """The newest result in a calibration's folder, or the one in a result's folder or file.

    Raises:
        InputError: There is none, or it is damaged.
    """
    if path.is_dir():
        inside = [path / NUMBERS] if (path / NUMBERS).is_file() else sorted(path.glob(f"result-*/{NUMBERS}"))
        if not inside:
            raise InputError(f"{path} has no {NUMBERS}: give the folder of a finished `rudder calibrate`")
        path = inside[-1]
    try:
        numbers = json.loads(path.read_text(encoding="utf-8"))
        numbers["settings"], numbers["layers"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is no result of `rudder calibrate`: {error}") from error
    return numbers  # type: ignore[no-any-return]


def ablations(numbers: dict[str, Any]) -> dict[str, Any]:
    """What the figures show, from `calibration.json`.

    Raises:
        InputError: The calibration had no annotations, so that there are no such scores.
    """
    vanilla = next((row for row in numbers["settings"] if row.get("vanilla")), None)
    if vanilla is None or "chair_s" not in vanilla["scores"]:
        raise InputError("the calibration has no CHAIR scores: it was run without annotations")
    chosen = next((row for row in numbers["settings"] if row.get("chosen") and not row.get("vanilla")), None)
    record = numbers.get("record", {})
    return {
        "model": numbers["model"]["name"],
        "pictures": vanilla["pictures"],
        "max_new_tokens": record.get("max_new_tokens"),
        "vanilla": _scores(vanilla),
        "chosen": None if chosen is None else _setting(chosen),
        "sweep": _sweep(numbers.get("probes", [])),
        "grids": _grids(numbers["settings"], chosen),
        "pope": _pope(numbers.get("pope", [])),
    }


def _scores(row: dict[str, Any]) -> dict[str, float]:
    return {name: 100 * row["scores"][name] for name in METRICS}


def _setting(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("layer", "alpha_max", "k", *_SAME) if name in row}


def _sweep(probes: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Scores of every layer at the settings of the sweep, milder first."""
    vanilla = next((row for row in probes if row.get("vanilla")), None)
    if vanilla is None:
        return None
    rows = sorted(
        (row for row in probes if "layer" in row), key=lambda row: (row["layer"], row["alpha_max"], row["k"])
    )
    found: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["layer"], []).append({"alpha_max": row["alpha_max"], "k": row["k"], **_scores(row)})
    return {
        "pictures": vanilla["pictures"],
        "vanilla": _scores(vanilla),
        "layers": [{"layer": layer, "settings": settings} for layer, settings in sorted(found.items())],
    }


def _grids(rows: list[dict[str, Any]], chosen: dict[str, Any] | None) -> list[dict[str, Any]]:
    """A grid over alpha_max and k for each layer and each combination of the other settings; the chosen one first."""
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        if not row.get("vanilla"):
            found.setdefault((row["layer"], *(row.get(name) for name in _SAME)), []).append(row)
    grids = []
    for key, inside in found.items():
        grids.append(
            {
                "layer": key[0],
                **dict(zip(_SAME, key[1:], strict=True)),
                "chosen": chosen is not None and any(row is chosen for row in inside),
                "cells": [
                    {
                        "alpha_max": row["alpha_max"],
                        "k": row["k"],
                        **_scores(row),
                        "pictures": row["pictures"],
                        "dropped": "dropped" in row,
                        "breaks": "breaks" in row,
                        "chosen": row is chosen,
                    }
                    for row in inside
                ],
            }
        )
    return sorted(grids, key=lambda grid: (not grid["chosen"], grid["layer"]))


def _pope(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "setting": row["setting"],
            "steer_first_token": row["steer_first_token"],
            "accuracy": 100 * row["scores"]["accuracy"],
            "f1": 100 * row["scores"]["f1"],
            "change": row["change"],
        }
        for row in rows
    ]
