"""Results as tables: five columns on a terminal, everything in the file, and the form of the paper's Tables 1 to 3."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..methods import CONTROL_OF
from ..metrics.chair import CAPTION_COLUMNS
from ..metrics.errors import InputError
from ..presets import PRESETS
from ..runtime.report import Table, heading, number, p_value, with_interval
from .result import VANILLA, MethodResult, MetricDifference, MetricValue, Result
from .score import Compared
from .statements import LEVEL, LOSES, TIES, WINS, against_control, verdict, without_effect

DECODING_LABELS = {"greedy": "Greedy", "beam": "Beam Search", "nucleus": "Nucleus Sampling"}
COLUMNS: dict[str, tuple[str, ...]] = {
    "chair": ("chair_s", "chair_i", "recall", "f1", "length"),
    "pope": ("accuracy", "f1", "yes_ratio", "precision", "recall"),
    "mme": ("total", "perception", "cognition"),
    "images": ("length", "distinct_2", "grounding"),
}
"""The metrics that a terminal shows, by kind of task; those that a run lacks are left out."""
THROUGHPUT, YES = "throughput", "yes_ratio"
_HEADLINES: dict[str, tuple[str, ...]] = {
    "chair": ("chair_s", "chair_i"), "pope": ("accuracy", "f1"), "mme": ("total",), "images": (),
}  # fmt: skip
_NONE = "-"


# The paper's numbers


@dataclass(frozen=True)
class PaperRow:
    """One row of one of the paper's tables for one model."""

    table: int
    model: str  # Hub id
    decoding: str
    method: str  # as this package names it, where it has it
    metrics: dict[str, float]


@cache
def paper_rows() -> tuple[PaperRow, ...]:
    """All rows of the paper's Tables 1 to 5."""
    file = Path(__file__).parent / "data" / "paper.json"
    return tuple(PaperRow(**row) for row in json.loads(file.read_text(encoding="utf-8"))["rows"])


def paper_value(kind: str, model: str, decoding: str, method: str, metric: str) -> float | None:
    """What the paper prints for a metric of a model (its Hub id or preset), or None."""
    if metric not in _HEADLINES[kind]:
        return None  # the paper's F1 is that of POPE, not of CHAIR
    wanted = (PRESETS[model].base_model if model in PRESETS else model, decoding, method)
    rows = (row for row in paper_rows() if (row.model, row.decoding, row.method) == wanted)
    return next((row.metrics[metric] for row in rows if metric in row.metrics), None)


# One result


def title(result: Result) -> str:
    """One line about what was measured."""
    how = ", ".join(f"{name} {value}" for name, value in result.scoring.items() if name != "bootstrap")
    decoding = ", ".join(str(v) if k == "name" else f"{k} {v}" for k, v in result.decoding.items())
    images = len(result.image_ids)
    questions = f", {result.samples} questions" if result.samples != images else ""
    return f"{result.task}{f' ({how})' if how else ''}: {result.model['name']}, {decoding}, {images} images{questions}"


def short_table(result: Result) -> Table:
    """The table of a terminal: a row for each method, five columns, and a mark where the change is significant."""
    first = result.methods[0].metrics
    shown = [name for name in COLUMNS[result.kind] if name in first]
    with_cost = any(method.cost for method in result.methods)
    if with_cost:  # instead of the last column
        shown = shown[:4]
    columns = [_short_column(result, name) for name in shown]
    headings = [heading(first[name].label, first[name].direction) for name in shown]
    if with_cost:
        headings.append("Throughput ↑")
        columns.append([f"{m.cost[THROUGHPUT]:.2f}" if THROUGHPUT in m.cost else _NONE for m in result.methods])
    rows = zip([method.name for method in result.methods], *columns, strict=True)
    return Table(["", *headings], [list(row) for row in rows], title(result))


def _short_column(result: Result, name: str) -> list[str]:
    """A metric of every method, with its change and a mark where that is significant, one below the other."""
    values = [number(method.metrics[name].value, method.metrics[name].unit) for method in result.methods]
    found = [method.differences.get(name) for method in result.methods]
    changes = ["" if c is None else number(c.value, c.unit, sign=True) for c in found]
    marks = ["" if c is None or verdict(c) == TIES else "*" for c in found]
    widest, signs = max(map(len, changes)), max(map(len, marks))
    cells = zip(values, changes, marks, strict=True)
    return [f"{value} {change:>{widest}}{mark:<{signs}}" if widest else value for value, change, mark in cells]


def summary(result: Result) -> list[str]:
    """What a terminal says below the table: what the marks mean, and what the intervals allow to be said."""
    lines = list(result.notes)
    if len(result.methods) > 1:
        lines.append(
            f"Beside each value: its change against {result.methods[0].name}. * the paired 95 % interval leaves out 0 "
            f"and p is at most {LEVEL}."
        )
    told: dict[str, list[str]] = {}
    for method in result.methods:
        if method.control is not None:
            change = method.control.differences["chair_s"]
            told.setdefault(verdict(change), []).append(method.name)
    words = {WINS: "fewer captions with absent objects", LOSES: "more of these", TIES: "no significant difference"}
    if told:
        names = {key: ", ".join(of) if len(of) < 5 else f"{len(of)} methods" for key, of in told.items()}
        found = "; ".join(f"{words[key]}: {names[key]}" for key in (WINS, LOSES, TIES) if key in told)
        lines.append(f"Against vanilla's captions cut to the same recall: {found}.")
    if unsteered := [method.name for method in result.methods if _cannot_change(result.kind, method)]:
        lines.append(
            f"{', '.join(unsteered)}: nothing can change, because a yes or no is the first token, which is steered "
            "with --set steer_first_token=true only."
        )
    if noted := [method.name for method in result.methods if method.notes]:
        lines.append(f"Empty, cut off or unclear answers of {', '.join(noted)} are counted in the file.")
    return lines


def _cannot_change(kind: str, method: MethodResult) -> bool:
    """Whether a method cannot change a yes or no, and did not."""
    unsteered = method.settings.get("steer_first_token") is False and kind in ("pope", "mme")
    judged = (method.differences[name] for name in COLUMNS[kind] if name in method.differences)
    return unsteered and bool(method.differences) and not any(change.value for change in judged)


def full_table(result: Result) -> Table:
    """Everything: a row for each metric; for each method value, difference to the first, and to its control."""
    columns: dict[str, Mapping[str, MetricValue]] = {}
    for method in result.methods:
        columns[method.name] = method.metrics
        if method.differences:
            columns[f"{method.name} - {result.methods[0].name}"] = method.differences
        if method.control is not None:
            cut = "vanilla" if method.control.mentions is None else "vanilla cut to its recall"
            columns[f"{cut} ({method.name})"] = method.control.metrics
            columns[f"{method.name} - {cut}"] = method.control.differences
    rows = [
        [heading(metric.label, metric.direction), *(_full_cell(found.get(name)) for found in columns.values())]
        for name, metric in result.methods[0].metrics.items()
    ]
    return Table(["", *columns], rows, title(result))


def _full_cell(found: MetricValue | None) -> str:
    if found is None:
        return _NONE
    if isinstance(found, MetricDifference):
        text = with_interval(found.value, found.low, found.high, found.unit, sign=True)
        return f"{text}, p {p_value(found.p_value)}"
    return with_interval(found.value, found.low, found.high, found.unit)


def notes(result: Result) -> list[str]:
    """What has to be said below the full table: intervals, warnings, and what controls show."""
    lines = [
        f"95 % bootstrap intervals over images ({result.scoring['bootstrap']} draws), paired for differences; p of a "
        "paired permutation test.",
        *result.notes,
        *(f"{method.name}: {note}" for method in result.methods for note in method.notes),
    ]
    named = {method.method: method for method in result.methods}
    if result.kind == "chair" and VANILLA not in named:
        lines.append("The run has no vanilla, so it is not known whether CHAIR is lower than by saying less.")
    lines += [against_control(method.name, method.control) for method in result.methods if method.control is not None]
    for method in result.methods:
        steered = named.get(CONTROL_OF.get(method.method, ""))
        if steered is None or not steered.differences:
            continue
        for name in _HEADLINES[result.kind]:
            if name in method.differences:
                effect = steered.differences[name]
                lines.append(without_effect(method.name, method.differences[name], effect, steered.name))
    return lines


def markdown(result: Result) -> str:
    """The file `table.md`: the short table, everything, and what has to be said."""
    parts = [f"**{title(result)}**", short_table(result).markdown(), *summary(result), full_table(result).markdown()]
    if any(_paper(result, method, metric) is not None for method in result.methods for metric in _headlines(result)):
        parts.append(paper_table([result]).markdown())
    return "\n\n".join([*parts, *notes(result)]) + "\n"


def compared_markdown(pair: Compared) -> str:
    """Two methods compared, as Markdown: right minus left, and of captions minus the left one cut to its recall."""
    headings, control = [f"{pair.right} - {pair.left}", "difference [95 % interval]"], pair.control
    cut = {} if control is None else control.differences
    rows = [
        [heading(change.label, change.direction), _full_cell(change), *([_full_cell(cut.get(name))] if cut else [])]
        for name, change in pair.differences.items()
    ]
    if control is None:
        return Table(headings, rows).markdown()
    told = against_control(pair.right, control, pair.left)
    return Table([*headings, f"to {pair.left} cut to its recall"], rows).markdown() + f"\n\n{told}"


# Several results


def paper_table(results: Sequence[Result]) -> Table:
    """Results in the form of the paper's tables: decoding and method down, models across, the paper's number beside.

    Raises:
        InputError: The results are of different kinds, or two are about the same cell.
    """
    kinds = {(r.kind, r.scoring.get("lineage"), r.scoring.get("parser")) for r in results}
    if len(kinds) > 1:
        names = ", ".join(sorted(" ".join(part for part in kind if part) for kind in kinds))
        raise InputError(f"results of different kinds do not fit into one table: {names}")
    cells: dict[tuple[str, str, str], tuple[Result, MethodResult]] = {}
    for result in results:
        for method in result.methods:
            cell = (result.model["name"], result.decoding["name"], method.name)
            if cell in cells:
                raise InputError(f"two results are about the same cell of the table: {', '.join(cell)}")
            cells[cell] = (result, method)
    models = list(dict.fromkeys(model for model, _, _ in cells))
    kind, first = results[0].kind, results[0].methods[0].metrics
    shown = {"chair": CAPTION_COLUMNS, "pope": (*_HEADLINES["pope"], YES)}.get(kind, _HEADLINES[kind])
    metrics = [name for name in shown if name in first]
    beside = dict.fromkeys(_HEADLINES[kind], " ours (paper)") | {YES: " (change)"}
    headings = [heading(first[name].label, first[name].direction) + beside.get(name, "") for name in metrics]
    rows = []
    for decoding in dict.fromkeys([*DECODING_LABELS, *(decoding for _, decoding, _ in cells)]):
        for name in dict.fromkeys(method for _, how, method in cells if how == decoding):
            found = [cells.get((model, decoding, name)) for model in models]
            numbers = [_NONE if one is None else _cell(*one, metric) for one in found for metric in metrics]
            rows.append([DECODING_LABELS.get(decoding, decoding), name, *numbers])
    groups = [("", 2), *((model, len(metrics)) for model in models)]
    return Table(["Decoding", "Method", *headings * len(models)], rows, labels=2, groups=groups)


def paper_latex(results: Sequence[Result]) -> str:
    """`paper_table` in LaTeX, with a line above that says what it is."""
    about = f"% {title(results[0])}; in parentheses: numbers printed in the RUDDER paper"
    return f"{about}\n{paper_table(results).latex()}"


def _cell(result: Result, method: MethodResult, metric: str) -> str:
    """Our number, and the paper's where the paper has the metric."""
    if metric not in method.metrics:
        return _NONE
    digits = 1 if result.kind == "chair" else 2
    ours = f"{method.metrics[metric].value:.{digits}f}"
    if metric == YES and metric in method.differences:  # a shift of the threshold changes accuracy and F1 too
        return f"{ours} ({method.differences[metric].value:+.{digits}f})"
    if metric not in _HEADLINES[result.kind]:
        return ours
    paper = _paper(result, method, metric)
    return f"{ours} ({_NONE if paper is None else f'{paper:.{digits}f}'})"


def _headlines(result: Result) -> list[str]:
    return [name for name in _HEADLINES[result.kind] if name in result.methods[0].metrics]


def _paper(result: Result, method: MethodResult, metric: str) -> float | None:
    return paper_value(result.kind, result.model["name"], result.decoding["name"], method.method, metric)
