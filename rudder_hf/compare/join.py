"""One comparison from separate results: captions, yes/no questions and costs of the same methods."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..benchmark.report import FORMAT as COSTS
from ..benchmark.report import BenchmarkReport
from ..evaluate.result import EvaluationResult
from .record import Comparison, Row


def read_parts(paths: Sequence[Path]) -> tuple[list[EvaluationResult], list[BenchmarkReport]]:
    """Results of `rudder evaluate` and of `rudder benchmark`, whichever each path is.

    Raises:
        ValueError: A path is neither.
    """
    results: list[EvaluationResult] = []
    costs: list[BenchmarkReport] = []
    for path in paths:
        if path.is_file() and _format(path) == COSTS:
            costs.append(BenchmarkReport.load(path))
        else:
            results.append(EvaluationResult.load(path))
    return results, costs


def _format(path: Path) -> object:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return None
    return record.get("format") if isinstance(record, dict) else None


def joined(results: Sequence[EvaluationResult], costs: Sequence[BenchmarkReport]) -> Comparison:
    """Join results by method and decoding.

    Raises:
        ValueError: Results are about different models, of a kind without a place in the table, or twice the same.
    """
    models = {result.model["name"] for result in results}
    if len(models) != 1:
        raise ValueError(f"One table is about one model; these are {', '.join(sorted(models)) or 'none'}.")
    rows: dict[tuple[str, str], Row] = {}
    for result in results:
        if result.kind not in ("chair", "pope"):
            raise ValueError(f"Captions, yes/no questions and costs fit into one table, {result.kind} does not.")
        for method in result.methods:
            key = (result.decoding["name"], method.name)
            row = rows.get(key, Row(method.name, "", key[0], method.settings))
            if row.metrics if result.kind == "chair" else row.answers:
                raise ValueError(f"Two results of one kind are about {method.name}, {key[0]}.")
            if result.kind == "chair":
                row = replace(row, metrics=method.metrics, changes=method.differences)
            else:
                row = replace(row, answers=method.metrics, answer_changes=method.differences)
            rows[key] = row
    order = ("greedy", "beam", "nucleus")
    ordered = sorted(rows.values(), key=lambda row: order.index(row.decoding) if row.decoding in order else len(order))
    notes = list(dict.fromkeys(note for result in results for note in result.notes))
    measured = [cost for report in costs for case in report.cases for cost in case.costs]
    return Comparison(models.pop(), ordered, measured, notes=notes)
