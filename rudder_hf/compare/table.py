"""A comparison and its tables: one row for each method, settings and decoding, and RUDDER against each method.

It comes from `rudder compare`, or is joined from separate results: captions, yes/no questions and costs of the same
methods.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ..benchmark import report as benchmark
from ..benchmark.costs import Cost
from ..benchmark.table import COST_COLUMNS, NONE
from ..evaluate.result import VANILLA, ControlResult, EvaluationResult, MetricDifference, MetricValue
from ..evaluate.statements import MARGIN, against_control, verdict, without_effect
from ..evaluate.tables import control_label, with_change
from ..methods import CONTROL_OF
from ..metrics.chair import CAPTION_COLUMNS
from ..runtime.report import Table, heading, with_interval
from ..runtime.store import read_json, read_result, to_json

FORMAT = "rudder-comparison-2"
# The first format had no truncated controls; it is read as a comparison without them.
_READ = (FORMAT, "rudder-comparison-1")
DECODINGS = {"greedy": "Greedy search", "beam": "Beam search", "nucleus": "Nucleus sampling"}
QUESTIONS = ("accuracy", "f1")
CONTROL = "control"
_JUDGED = ("chair_s", "chair_i")
Values = dict[str, MetricValue]
Changes = dict[str, MetricDifference]


@dataclass(frozen=True)
class Row:
    """One method with certain settings under one decoding.

    Attributes:
        method: Its name.
        variant: Which settings: "published", "tuned", "calibrated" (RUDDER's own), "control", or nothing to choose.
        decoding: "greedy", "beam" or "nucleus".
        settings: Of the method.
        note: Why there are no numbers, or what has to be known about them.
        metrics: Of captions, by name.
        changes: Against vanilla under the same decoding, paired by image.
        ours: RUDDER minus this method, paired by image; which RUDDER, the comparison says.
        answers: Metrics of yes/no questions.
        answer_changes: Their changes against vanilla.
        control: Vanilla's captions cut to this method's recall, and this method minus them; None for vanilla itself.
    """

    method: str
    variant: str
    decoding: str
    settings: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    metrics: Values = field(default_factory=dict)
    changes: Changes = field(default_factory=dict)
    ours: Changes = field(default_factory=dict)
    answers: Values = field(default_factory=dict)
    answer_changes: Changes = field(default_factory=dict)
    control: ControlResult | None = None

    @property
    def label(self) -> str:
        """Method and settings, in words."""
        return f"{self.method}, {self.variant}" if self.variant else self.method


@dataclass(frozen=True)
class Comparison:
    """A whole comparison.

    Attributes:
        title: What was compared on what.
        rows: In the order of the tables.
        costs: One for each method and decoding that was timed.
        reference: The row that `Row.ours` is about, such as "rudder-beta, tuned"; empty if there is none.
        notes: What has to be said below the tables.
        tunings: How settings were chosen, by method.
        record: Model, data, versions, hardware, command.
        margin: Share of RUDDER's own change within which a control counts as without effect.
        format: Version of this layout.
    """

    title: str
    rows: list[Row]
    costs: list[Cost]
    reference: str = ""
    notes: list[str] = field(default_factory=list)
    tunings: dict[str, dict[str, Any]] = field(default_factory=dict)
    record: dict[str, Any] = field(default_factory=dict)
    margin: float = MARGIN
    format: str = FORMAT

    def decodings(self) -> list[str]:
        """Those that there are rows of, in their order."""
        return list(dict.fromkeys(row.decoding for row in self.rows))

    def cost(self, method: str, decoding: str) -> Cost | None:
        """What a method costs; sampling costs what greedy search does."""
        wanted = "beam" if decoding == "beam" else "greedy"
        return next((c for c in self.costs if (c.method, c.decoding) == (method, wanted)), None)

    def to_json(self) -> str:
        """The text of the result file."""
        return to_json(asdict(self))

    @classmethod
    def load(cls, path: str | Path) -> Comparison:
        """Read a result file.

        Raises:
            ValueError: It is not a result of rudder compare.
        """
        return read_result(Path(path), cls, _READ, "a result of rudder compare")


# From separate results


def read_parts(paths: Sequence[Path]) -> tuple[list[EvaluationResult], list[benchmark.BenchmarkReport]]:
    """Results of `rudder evaluate` and of `rudder benchmark`, whichever each path is.

    Raises:
        ValueError: A path is neither.
    """
    results: list[EvaluationResult] = []
    reports: list[benchmark.BenchmarkReport] = []
    for path in paths:
        record = read_json(path) if path.is_file() else None
        if isinstance(record, dict) and record.get("format") == benchmark.FORMAT:
            reports.append(benchmark.BenchmarkReport.load(path))
        else:
            results.append(EvaluationResult.load(path))
    return results, reports


def joined(results: Sequence[EvaluationResult], reports: Sequence[benchmark.BenchmarkReport]) -> Comparison:
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
                rows[key] = replace(row, metrics=method.metrics, changes=method.differences, control=method.control)
            else:
                rows[key] = replace(row, answers=method.metrics, answer_changes=method.differences)
    order = list(DECODINGS)
    return Comparison(
        title=models.pop(),
        rows=sorted(rows.values(), key=lambda row: (*order, row.decoding).index(row.decoding)),
        costs=[cost for report in reports for case in report.cases for cost in case.costs],
        notes=list(dict.fromkeys(note for result in results for note in result.notes)),
    )


# Tables


def decoding_table(comparison: Comparison, decoding: str) -> Table:
    """All methods under one decoding, each followed by its truncated control; empty columns are left out."""
    rows = [row for row in comparison.rows if row.decoding == decoding]
    captions = _headings([row.metrics for row in rows], CAPTION_COLUMNS)
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
        if row.control is not None:
            cut = [control_label(row.method, row.control), *([row.variant or NONE] if variants else [])]
            cut += [_cell(row.control.metrics, {}, name) for name in captions]
            table.append([*cut, *[NONE] * (len(headings) - len(cut))])
    return Table(headings, table, labels=1 + variants)


def _headings(found: list[Values] | list[Changes], names: tuple[str, ...]) -> dict[str, str]:
    """Headings of the metrics that some row has."""
    metrics: dict[str, MetricValue | MetricDifference] = {}
    for values in found:
        metrics |= values
    return {name: heading(metrics[name].label, metrics[name].direction) for name in names if name in metrics}


def _cell(values: Values, changes: Changes, name: str) -> str:
    return with_change(values[name], changes.get(name)) if name in values else NONE


def statements(comparison: Comparison, decoding: str) -> list[str]:
    """What the intervals allow to be said of each method against its truncated control, and of other controls."""
    rows = [row for row in comparison.rows if row.decoding == decoding]
    lines = [against_control(row.label, row.control) for row in rows if row.control is not None]
    if any(row.metrics and row.control is None for row in rows if row.method != VANILLA):
        lines.append("The truncated control is missing: there is no vanilla, or the result is older than it.")
    for row in rows:
        steered = _controlled(row, rows)
        if steered is not None:
            lines += [
                without_effect(row.method, row.changes[name], steered.changes[name], steered.label, comparison.margin)
                for name in _JUDGED
            ]
    return lines


def _controlled(control: Row, rows: Sequence[Row]) -> Row | None:
    """The row whose settings a control has: RUDDER as calibrated, the contrast before it was tuned."""
    controlled = CONTROL_OF.get(control.method) if control.changes else None
    found = [row for row in rows if row.method == controlled and row.changes]
    return next((row for row in found if row.variant != "tuned"), found[0] if found else None)


def duel_table(comparison: Comparison, decoding: str) -> Table:
    """RUDDER minus each method: how much, and whether it wins, ties or loses."""
    rows = [row for row in comparison.rows if row.decoding == decoding and row.ours]
    headings = _headings([row.ours for row in rows], CAPTION_COLUMNS)
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
        if said := statements(comparison, decoding):
            parts.append("\n".join(f"- {line}" for line in said))
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
            "A difference whose paired 95 % interval holds 0, or whose p is above 0.05, is a tie. They "
            "are not corrected for number."
        )
    return "\n\n".join([*parts, *comparison.notes]) + "\n"
