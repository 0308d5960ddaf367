"""The numbers that the paper prints, to be shown beside measured ones."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..presets import PRESETS

_FILE = Path(__file__).parent / "data" / "paper.json"
TABLES = {"chair": (1, 5), "pope": (2, 5), "mme": (3,)}


@dataclass(frozen=True)
class PaperRow:
    """One row of one table for one model.

    Attributes:
        table: Number of the table.
        model: Hub id of the model.
        decoding: "greedy", "beam" or "nucleus".
        method: As this package names it, where it has it.
        metrics: Numbers by metric.
    """

    table: int
    model: str
    decoding: str
    method: str
    metrics: dict[str, float]


@cache
def paper_rows() -> tuple[PaperRow, ...]:
    """All rows of Tables 1 to 5."""
    return tuple(PaperRow(**row) for row in json.loads(_FILE.read_text(encoding="utf-8"))["rows"])


def paper_value(kind: str, model: str, decoding: str, method: str, metric: str) -> float | None:
    """What the paper prints for a metric of a model, or None.

    Args:
        kind: "chair", "pope" or "mme".
        model: Hub id or preset of the model.
        decoding: "greedy", "beam" or "nucleus".
        method: The method's name.
        metric: The metric's name.
    """
    if model in PRESETS:
        model = PRESETS[model].base_model
    for row in paper_rows():
        same = (row.model, row.decoding, row.method) == (model, decoding, method)
        if same and row.table in TABLES.get(kind, ()) and metric in row.metrics:
            return row.metrics[metric]
    return None
