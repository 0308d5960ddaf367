"""A comparison as Markdown: one table for each decoding, and RUDDER against each method."""

from __future__ import annotations

from collections.abc import Callable

from ..benchmark.table import COST_COLUMNS, NONE
from ..evaluate.result import MetricDifference, MetricValue
from ..evaluate.tables import markdown_table, with_change
from ..runtime.report import ARROWS, number
from .record import Comparison, Row

CAPTIONS = ("chair_s", "chair_i", "recall", "length")
QUESTIONS = ("accuracy", "f1")
DECODINGS = {"greedy": "Greedy search", "beam": "Beam search", "nucleus": "Nucleus sampling"}
WINS, TIES, LOSES = "wins", "ties", "loses"


def decoding_table(comparison: Comparison, decoding: str) -> tuple[list[str], list[list[str]]]:
    """Headings and cells for one decoding; columns that no row has anything for are left out."""
    rows = [row for row in comparison.rows if row.decoding == decoding]
    captions = _present(rows, CAPTIONS, lambda row: row.metrics)
    questions = _present(rows, QUESTIONS, lambda row: row.answers)
    costs = {row.method: comparison.cost(row.method, decoding) for row in rows}
    with_costs = any(cost is not None for cost in costs.values())
    variants = any(row.variant for row in rows)
    headings = ["Method", *(["Settings"] if variants else []), *captions.values()]
    headings += [f"POPE {label}" for label in questions.values()]
    headings += list(COST_COLUMNS) if with_costs else []
    table = []
    for row in rows:
        cells = [row.method, *([row.variant or NONE] if variants else [])]
        if row.note and not row.metrics:
            table.append([*cells, row.note, *[""] * (len(headings) - len(cells) - 1)])
            continue
        cells += [_cell(row.metrics, row.changes, name) for name in captions]
        cells += [_cell(row.answers, row.answer_changes, name) for name in questions]
        if with_costs:
            cost = costs[row.method]
            cells += [NONE if cost is None or cost.refusal else cell(cost) for cell in COST_COLUMNS.values()]
        table.append(cells)
    return headings, table


def _present(
    rows: list[Row], names: tuple[str, ...], values: Callable[[Row], dict[str, MetricValue]]
) -> dict[str, str]:
    """Metrics that some row has, with their headings."""
    found = {name: metric for row in rows for name, metric in values(row).items() if name in names}
    return {name: f"{found[name].label} {ARROWS[found[name].direction]}".strip() for name in names if name in found}


def _cell(values: dict[str, MetricValue], changes: dict[str, MetricDifference], name: str) -> str:
    metric = values.get(name)
    return NONE if metric is None else with_change(metric, changes.get(name))


def verdict(change: MetricDifference) -> str:
    """Whether a difference "ours minus theirs" is for us, against us, or neither: does its interval hold 0?"""
    if change.low <= 0 <= change.high or change.direction == "none":
        return TIES
    return WINS if (change.value < 0) == (change.direction == "lower") else LOSES


def duel_table(comparison: Comparison, decoding: str) -> tuple[list[str], list[list[str]]]:
    """RUDDER minus each method: how much, and whether it wins, ties or loses."""
    rows = [row for row in comparison.rows if row.decoding == decoding and row.ours]
    names = [name for name in CAPTIONS if any(name in row.ours for row in rows)]
    labels = {name: row.ours[name] for row in rows for name in names if name in row.ours}
    headings = ["Method", "Settings", *(f"{labels[n].label} {ARROWS[labels[n].direction]}".strip() for n in names)]
    table = []
    for row in rows:
        cells = [row.method, row.variant or NONE]
        for name in names:
            change = row.ours[name]
            value, low, high = (number(end, change.unit, True) for end in (change.value, change.low, change.high))
            told = "" if change.direction == "none" else f"{verdict(change)}, "
            cells.append(f"{told}{value} [{low}, {high}]")
        table.append(cells)
    return headings, table


def markdown(comparison: Comparison) -> str:
    """Everything as Markdown."""
    parts = [f"**{comparison.title}**"]
    for decoding in comparison.decodings():
        parts += [DECODINGS.get(decoding, decoding), markdown_table(*decoding_table(comparison, decoding))]
    parts.append(
        "In parentheses the change against vanilla under the same decoding with its paired 95 % bootstrap interval "
        "over pictures; in brackets alone, intervals. Throughput is the median over interleaved rounds; forwards are "
        "positions that go through the decoder, after the prompt and of prompts, relative to vanilla's; memory is the "
        "most bytes of tensors alive, weights left out."
    )
    if comparison.reference:
        for decoding in comparison.decodings():
            headings, rows = duel_table(comparison, decoding)
            if rows:
                title = f"{comparison.reference}, against each method: {DECODINGS.get(decoding, decoding).lower()}"
                parts += [title, markdown_table(headings, rows)]
        parts.append(
            "A difference whose paired 95 % interval holds 0 is a tie; intervals are not corrected for number."
        )
    return "\n\n".join([*parts, *comparison.notes]) + "\n"
