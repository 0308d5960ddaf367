"""One comparison from separate results: captions, yes/no questions and costs of the same methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..benchmark.report import FORMAT, BenchmarkReport
from ..evaluate.result import EvaluationResult
from ..runtime.store import read_json
from .record import Comparison, Row
from .table import DECODINGS


def read_parts(paths: Sequence[Path]) -> tuple[list[EvaluationResult], list[BenchmarkReport]]:
    """Results of `rudder evaluate` and of `rudder benchmark`, whichever each path is.

    Raises:
        ValueError: A path is neither.
    """
    results: list[EvaluationResult] = []
    reports: list[BenchmarkReport] = []
    for path in paths:
        record = read_json(path) if path.is_file() else None
        if isinstance(record, dict) and record.get("format") == FORMAT:
            reports.append(BenchmarkReport.load(path))
        else:
            results.append(EvaluationResult.load(path))
    return results, reports


def joined(results: Sequence[EvaluationResult], reports: Sequence[BenchmarkReport]) -> Comparison:
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
                rows[key] = replace(row, metrics=method.metrics, changes=method.differences)
            else:
                rows[key] = replace(row, answers=method.metrics, answer_changes=method.differences)
    order = list(DECODINGS)
    return Comparison(
        title=models.pop(),
        rows=sorted(rows.values(), key=lambda row: (*order, row.decoding).index(row.decoding)),
        costs=[cost for report in reports for case in report.cases for cost in case.costs],
        notes=list(dict.fromkeys(note for result in results for note in result.notes)),
    )
