"""Results as tables: methods side by side, and in the form of the paper's Tables 1 to 3."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..methods import CONTROL_OF
from ..metrics.chair import CAPTION_COLUMNS
from ..metrics.errors import InputError
from ..presets import PRESETS
from ..runtime.report import Table, heading, number, p_value, with_interval
from .folder import Compared
from .result import VANILLA, ControlResult, EvaluationResult, MethodResult, MetricDifference, MetricValue
from .statements import MARGIN, against_control, without_effect

METHOD_LABELS = {"vanilla": "Vanilla", "rudder-beta": "RUDDER-Beta", "rudder-add": "RUDDER-Add"}
DECODING_LABELS = {"greedy": "Greedy", "beam": "Beam Search", "nucleus": "Nucleus Sampling"}
COLUMNS: dict[str, tuple[str, ...]] = {
    "chair": (*CAPTION_COLUMNS, "distinct_2", "repeated_sentences", "broken_sentences", "log_likelihood"),
    "pope": ("accuracy", "f1", "yes_ratio", "unclear"),
    "mme": ("total",),
}
"""The metrics of a table with one row for each method, by kind of task; those that a run lacks are left out."""
_HEADLINES = {"chair": ("chair_s", "chair_i"), "pope": ("accuracy", "f1"), "mme": ("total",)}
# Methods and controls up to which a run has a column for each; beyond, it has a row for each.
_MOST_COLUMNS = 3
_NONE = "-"


@dataclass(frozen=True)
class PaperRow:
    """One row of one of the paper's tables for one model.

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
    """All rows of the paper's Tables 1 to 5."""
    file = Path(__file__).parent / "data" / "paper.json"
    return tuple(PaperRow(**row) for row in json.loads(file.read_text(encoding="utf-8"))["rows"])


def paper_value(kind: str, model: str, decoding: str, method: str, metric: str) -> float | None:
    """What the paper prints for a metric of a model (its Hub id or preset), or None."""
    if metric not in _HEADLINES.get(kind, ()):
        return None  # the paper's F1 is that of POPE, not of CHAIR
    wanted = (PRESETS[model].base_model if model in PRESETS else model, decoding, method)
    rows = (row for row in paper_rows() if (row.model, row.decoding, row.method) == wanted)
    return next((row.metrics[metric] for row in rows if metric in row.metrics), None)


def method_label(name: str) -> str:
    """A method's name in tables."""
    return METHOD_LABELS.get(name, name)


def control_label(method: str, control: ControlResult) -> str:
    """The name in tables of the truncated control of a method."""
    if control.mentions is None:
        return f"vanilla uncut, {method_label(method)} recalls no less"
    return f"vanilla cut to {method_label(method)}'s recall"


def with_controls(result: EvaluationResult) -> list[MethodResult]:
    """The methods of a run, each followed by its truncated control as a method of its own."""
    found = []
    for method in result.methods:
        found.append(method)
        if method.control is not None:
            found.append(MethodResult(control_label(method.name, method.control), {}, method.control.metrics, {}))
    return found


def difference(change: MetricDifference | None) -> str:
    """A difference, its interval and its p-value."""
    if change is None:
        return _NONE
    text = with_interval(change.value, change.low, change.high, change.unit, sign=True)
    return f"{text}, p {p_value(change.p_value)}"


def with_change(metric: MetricValue | None, change: MetricDifference | None) -> str:
    """A metric with the paired interval of its change; with its own interval where there is nothing to compare."""
    if metric is None:
        return _NONE
    if change is None:
        return with_interval(metric.value, metric.low, metric.high, metric.unit)
    text = with_interval(change.value, change.low, change.high, metric.unit, sign=True)
    return f"{number(metric.value, metric.unit)} ({text})"


def title(result: EvaluationResult) -> str:
    """One line about what was measured."""
    how = ", ".join(f"{name} {value}" for name, value in result.scoring.items() if name not in ("bootstrap", "margin"))
    decoding = ", ".join(str(v) if k == "name" else f"{k} {v}" for k, v in result.decoding.items())
    images = len(result.image_ids)
    questions = f", {result.samples} questions" if result.samples != images else ""
    return f"{result.task}{f' ({how})' if how else ''}: {result.model['name']}, {decoding}, {images} images{questions}"


def notes(result: EvaluationResult) -> list[str]:
    """What has to be said below a table."""
    lines = [
        f"95 % bootstrap intervals over images ({result.scoring['bootstrap']} draws), paired for differences; p of a "
        "paired permutation test.",
        *result.notes,
    ]
    for method in result.methods:
        lines += [f"{method_label(method.name)}: {note}" for note in method.notes]
    return lines + _control_notes(result)


def _control_notes(result: EvaluationResult) -> list[str]:
    """What the intervals allow to be said about the truncated control and about other controls."""
    lines = []
    names = {method.name: method for method in result.methods}
    if result.kind == "chair" and VANILLA not in names:
        lines.append(
            "The truncated control is missing, because the run has no vanilla: whether CHAIR is lower than by saying "
            "less is not known."
        )
    elif result.kind == "chair" and any(m.control is None for m in result.methods if m.name != VANILLA):
        lines.append("The truncated control is missing, because the result is older than it: use `rudder score`.")
    lines += [against_control(method_label(m.name), m.control) for m in result.methods if m.control is not None]
    for method in result.methods:
        controlled = CONTROL_OF.get(method.name, "")
        # Where a run has no RUDDER-Beta, its controls are RUDDER-Add's.
        own = names.get(controlled) or (names.get("rudder-add") if controlled == "rudder-beta" else None)
        steered = own if own is not None and own.differences else None
        if steered is not None:
            share = result.scoring.get("margin", MARGIN)
            lines += [
                without_effect(
                    method.name, method.differences[name], steered.differences[name], method_label(steered.name), share
                )
                for name in _headlines(result)
                if name in method.differences
            ]
    return lines


def run_table(result: EvaluationResult) -> Table:
    """A run with one row per metric, so that fluency always stands beside the score.

    Each method has its value with interval; methods after the first also their paired difference to it, and of
    captions to their truncated control.
    """
    first, *others = result.methods
    columns = with_controls(result)
    headings = ["", *(method_label(method.name) for method in columns)]
    changes: dict[str, dict[str, MetricDifference]] = {}
    for method in others:
        changes[f"{method_label(method.name)} - {method_label(first.name)}"] = method.differences
    for method in result.methods:
        if method.control is not None:
            control = control_label(method.name, method.control)
            changes[f"{method_label(method.name)} - {control}"] = method.control.differences
    rows = [
        [
            heading(metric.label, metric.direction),
            *(with_change(method.metrics.get(name), None) for method in columns),
            *(difference(found.get(name)) for found in changes.values()),
        ]
        for name, metric in first.metrics.items()
    ]
    return Table([*headings, *changes], rows, title(result))


def method_table(result: EvaluationResult) -> Table:
    """A run of many methods: one row for each, with its change against the first, and for each truncated control."""
    first = result.methods[0].metrics
    shown = [name for name in COLUMNS[result.kind] if name in first]
    headings = ["", *(heading(first[name].label, first[name].direction) for name in shown)]
    rows = [
        [method_label(m.name), *(with_change(m.metrics.get(n), m.differences.get(n)) for n in shown)]
        for m in with_controls(result)
    ]
    return Table(headings, rows, title(result))


def terminal_table(result: EvaluationResult) -> Table:
    """The table of a run that fits a terminal best."""
    return method_table(result) if len(with_controls(result)) > _MOST_COLUMNS else run_table(result)


def run_markdown(result: EvaluationResult) -> str:
    """A run as Markdown: the tables, and below them what has to be said."""
    parts = [f"**{title(result)}**"]
    if len(with_controls(result)) > _MOST_COLUMNS:
        parts.append(method_table(result).markdown())
    parts.append(run_table(result).markdown())
    if any(_paper(result, method, metric) is not None for method in result.methods for metric in _headlines(result)):
        parts.append(paper_table([result]).markdown())
    return "\n\n".join([*parts, *notes(result)]) + "\n"


def compared_markdown(pair: Compared) -> str:
    """Two methods compared, as Markdown: right minus left, and of captions minus the left one cut to its recall."""
    headings, control = [f"{pair.right} - {pair.left}", "difference [95 % interval]"], pair.control
    cut = {} if control is None else control.differences
    rows = [
        [heading(change.label, change.direction), difference(change), *([difference(cut.get(name))] if cut else [])]
        for name, change in pair.differences.items()
    ]
    if control is None:
        return Table(headings, rows).markdown()
    told = against_control(pair.right, control, pair.left)
    return Table([*headings, f"to {pair.left} cut to its recall"], rows).markdown() + f"\n\n{told}"


def paper_table(results: Sequence[EvaluationResult]) -> Table:
    """Results in the form of the paper's tables: decoding and method down, models across, the paper's number beside.

    Raises:
        InputError: The results are of different kinds, or two are about the same cell.
    """
    if not results:
        raise InputError("there is no result to put into a table")
    kinds = {(r.kind, r.scoring.get("lineage"), r.scoring.get("parser")) for r in results}
    if len(kinds) > 1:
        names = ", ".join(sorted(" ".join(part for part in kind if part) for kind in kinds))
        raise InputError(f"results of different kinds do not fit into one table: {names}")
    cells: dict[tuple[str, str, str], tuple[EvaluationResult, MethodResult]] = {}
    for result in results:
        for method in with_controls(result):
            cell = (result.model["name"], result.decoding["name"], method.name)
            if cell in cells:
                raise InputError(f"two results are about the same cell of the table: {', '.join(cell)}")
            cells[cell] = (result, method)
    models = list(dict.fromkeys(model for model, _, _ in cells))
    kind, first = results[0].kind, results[0].methods[0].metrics
    shown = CAPTION_COLUMNS if kind == "chair" else _HEADLINES[kind]
    metrics = [name for name in shown if name in first]
    headings = [
        heading(first[name].label, first[name].direction) + (" ours (paper)" if name in _HEADLINES[kind] else "")
        for name in metrics
    ]
    rows = []
    for decoding in dict.fromkeys([*DECODING_LABELS, *(decoding for _, decoding, _ in cells)]):
        for name in dict.fromkeys(method for _, how, method in cells if how == decoding):
            found = [cells.get((model, decoding, name)) for model in models]
            numbers = [_NONE if one is None else _cell(*one, metric) for one in found for metric in metrics]
            rows.append([DECODING_LABELS.get(decoding, decoding), method_label(name), *numbers])
    groups = [("", 2), *((model, len(metrics)) for model in models)]
    return Table(["Decoding", "Method", *headings * len(models)], rows, labels=2, groups=groups)


def paper_markdown(results: Sequence[EvaluationResult]) -> str:
    """`paper_table` in Markdown, and below it what the intervals allow to be said."""
    said = [f"- {line}" for result in results for line in _control_notes(result)]
    return "\n\n".join([paper_table(results).markdown(), *(["\n".join(said)] if said else [])])


def paper_latex(results: Sequence[EvaluationResult]) -> str:
    """`paper_table` in LaTeX, with a line above that says what it is."""
    text = f"% {title(results[0])}; in parentheses: numbers printed in the RUDDER paper" if results else ""
    said = "".join(f"% {line}\n" for result in results for line in _control_notes(result))
    return f"{text}\n{paper_table(results).latex()}{said}"


def _cell(result: EvaluationResult, method: MethodResult, metric: str) -> str:
    """Our number, and the paper's where the paper has the metric."""
    if metric not in method.metrics:
        return _NONE
    digits = 1 if result.kind == "chair" else 2
    ours = f"{method.metrics[metric].value:.{digits}f}"
    if metric not in _HEADLINES[result.kind]:
        return ours
    paper = _paper(result, method, metric)
    return f"{ours} ({_NONE if paper is None else f'{paper:.{digits}f}'})"


def _headlines(result: EvaluationResult) -> list[str]:
    return [name for name in _HEADLINES[result.kind] if name in result.methods[0].metrics]


def _paper(result: EvaluationResult, method: MethodResult, metric: str) -> float | None:
    return paper_value(result.kind, result.model["name"], result.decoding["name"], method.name, metric)
