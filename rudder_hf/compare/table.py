"""A comparison as Markdown: one table for each decoding, and RUDDER against each method."""

from __future__ import annotations

from ..benchmark.table import COST_COLUMNS, NONE
from ..evaluate.result import MetricDifference, MetricValue
from ..evaluate.tables import with_change
from ..runtime.report import Table, heading, with_interval
from .record import Changes, Comparison, Values

CAPTIONS = ("chair_s", "chair_i", "recall", "length")
QUESTIONS = ("accuracy", "f1")
DECODINGS = {"greedy": "Greedy search", "beam": "Beam search", "nucleus": "Nucleus sampling"}
WINS, TIES, LOSES = "wins", "ties", "loses"


def decoding_table(comparison: Comparison, decoding: str) -> Table:
    """All methods under one decoding; columns that no row has anything for are left out."""
    rows = [row for row in comparison.rows if row.decoding == decoding]
    captions = _headings([row.metrics for row in rows], CAPTIONS)
    questions = _headings([row.answers for row in rows], QUESTIONS)
    costs = {row.method: comparison.cost(row.method, decoding) for row in rows}
    columns = COST_COLUMNS if any(cost is not None for cost in costs.values()) else {}
    variants = any(row.variant for row in rows)
    headings = ["Method", *(["Settings"] if variants else []), *captions.values()]
    headings += [*(f"POPE {label}" for label in questions.values()), *columns]
    table = []
    for row in rows:
        cells = [row.method, *([row.variant or NONE] if variants else [])]
        if row.note and not row.metrics:
            table.append([*cells, row.note, *[""] * (len(headings) - len(cells) - 1)])
            continue
        cells += [_cell(row.metrics, row.changes, name) for name in captions]
        cells += [_cell(row.answers, row.answer_changes, name) for name in questions]
        cost = costs[row.method]
        cells += [NONE if cost is None or cost.refusal else cell(cost) for cell in columns.values()]
        table.append(cells)
    return Table(headings, table, labels=1 + variants)


def _headings(found: list[Values] | list[Changes], names: tuple[str, ...]) -> dict[str, str]:
    """Headings of the metrics that some row has."""
    metrics: dict[str, MetricValue | MetricDifference] = {}
    for values in found:
        metrics |= values
    return {name: heading(metrics[name].label, metrics[name].direction) for name in names if name in metrics}


def _cell(values: Values, changes: Changes, name: str) -> str:
    return with_change(values[name], changes.get(name)) if name in values else NONE


def verdict(change: MetricDifference) -> str:
    """Whether RUDDER wins, ties or loses, by the interval of RUDDER minus the other."""
    if change.low <= 0.0 <= change.high:
        return TIES
    return WINS if (change.value < 0) == (change.direction == "lower") else LOSES


def duel_table(comparison: Comparison, decoding: str) -> Table:
    """RUDDER minus each method: how much, and whether it wins, ties or loses."""
    rows = [row for row in comparison.rows if row.decoding == decoding and row.ours]
    headings = _headings([row.ours for row in rows], CAPTIONS)
    table = [[row.method, row.variant or NONE, *(_duel(row.ours[name]) for name in headings)] for row in rows]
    return Table(["Method", "Settings", *headings.values()], table, labels=2)


def _duel(change: MetricDifference) -> str:
    text = with_interval(change.value, change.low, change.high, change.unit, sign=True)
    return text if change.direction == "none" else f"{verdict(change)}, {text}"


def markdown(comparison: Comparison) -> str:
    """Everything as Markdown."""
    parts = [f"**{comparison.title}**"]
    for decoding in comparison.decodings():
        parts += [DECODINGS.get(decoding, decoding), decoding_table(comparison, decoding).markdown()]
    parts.append(
        "In parentheses the change against vanilla under the same decoding with its paired 95 % bootstrap interval "
        "over images; in brackets alone, intervals. Throughput is the median over interleaved rounds; forwards are "
        "positions that go through the decoder, after the prompt and of prompts, relative to vanilla's; memory is the "
        "most bytes of tensors alive, weights left out."
    )
    duels = {decoding: duel_table(comparison, decoding) for decoding in comparison.decodings()}
    for decoding, table in duels.items():
        if table.rows:
            name = DECODINGS.get(decoding, decoding).lower()
            parts += [f"{comparison.reference}, against each method: {name}", table.markdown()]
    if comparison.reference:
        parts.append(
            "A difference whose paired 95 % interval holds 0 is a tie; intervals are not corrected for number."
        )
    return "\n\n".join([*parts, *comparison.notes]) + "\n"
