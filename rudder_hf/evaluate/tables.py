"""Results as tables: for the terminal, in Markdown, and in LaTeX in the form of the paper's Tables 1 to 3."""

from __future__ import annotations

from collections.abc import Sequence

from .paper import paper_value
from .result import EvaluationResult, MethodResult, MetricDifference, MetricValue

HEADLINES: dict[str, tuple[str, ...]] = {
    "chair": ("chair_s", "chair_i"),
    "pope": ("accuracy", "f1"),
    "mme": ("total",),
}
METHOD_LABELS = {"vanilla": "Vanilla", "rudder-beta": "RUDDER-Beta", "rudder-add": "RUDDER-Add"}
DECODING_LABELS = {"greedy": "Greedy", "beam": "Beam Search", "nucleus": "Nucleus Sampling"}
ARROWS = {"lower": "↓", "higher": "↑", "none": ""}
LATEX_ARROWS = {"lower": r"$\downarrow$", "higher": r"$\uparrow$", "none": ""}
_DIGITS = {"percent": 1, "points": 2, "words": 2, "nats": 3}


def number(value: float, unit: str, sign: bool = False) -> str:
    """A number with the digits that its unit deserves."""
    return f"{value:{'+' if sign else ''}.{_DIGITS.get(unit, 2)}f}"


def with_interval(metric: MetricValue) -> str:
    """A metric and its interval."""
    return (
        f"{number(metric.value, metric.unit)} [{number(metric.low, metric.unit)}, {number(metric.high, metric.unit)}]"
    )


def difference(change: MetricDifference) -> str:
    """A difference, its interval and its p-value."""
    unit = change.unit
    low, high = number(change.low, unit, True), number(change.high, unit, True)
    return f"{number(change.value, unit, True)} [{low}, {high}], p {p_value(change.p_value)}"


def p_value(p: float) -> str:
    """A p-value; the number of permutations bounds it from below."""
    return f"{p:.3f}" if p >= 0.001 else "< 0.001"


def title(result: EvaluationResult) -> str:
    """One line about what was measured."""
    how = ", ".join(f"{name} {value}" for name, value in result.scoring.items() if name != "bootstrap")
    decoding = ", ".join(str(v) if k == "name" else f"{k} {v}" for k, v in result.decoding.items())
    images = len(result.image_ids)
    questions = f", {result.samples} questions" if result.samples != images else ""
    return f"{result.task}{f' ({how})' if how else ''}: {result.model['name']}, {decoding}, {images} images{questions}"


def run_table(result: EvaluationResult) -> tuple[list[str], list[list[str]]]:
    """Headings and cells of a run: one row per metric, so that fluency always stands beside the score.

    Each method has its value with interval; methods after the first also their paired difference to it.
    """
    first, *others = result.methods
    headings = ["", *[METHOD_LABELS.get(m.name, m.name) for m in result.methods]]
    headings += [f"{METHOD_LABELS.get(m.name, m.name)} - {METHOD_LABELS.get(first.name, first.name)}" for m in others]
    rows = []
    for name, metric in first.metrics.items():
        row = [f"{metric.label} {ARROWS[metric.direction]}".strip()]
        row += [with_interval(method.metrics[name]) for method in result.methods]
        row += [difference(method.differences[name]) for method in others]
        rows.append(row)
    return headings, rows


MOST_COLUMNS = 3
"""Methods up to which a run has a column for each; beyond, it has a row for each."""
_METHOD_COLUMNS = {
    "chair": (
        "chair_s", "chair_i", "recall", "length", "distinct_2", "repeated_sentences", "broken_sentences",
        "log_likelihood",
    ),
    "pope": ("accuracy", "f1", "yes_ratio", "unclear"),
    "mme": ("total",),
}  # fmt: skip


def method_table(result: EvaluationResult) -> tuple[list[str], list[list[str]]]:
    """Headings and cells of a run of many methods: one row for each, with its change against the first."""
    first = result.methods[0]
    shown = [name for name in _METHOD_COLUMNS[result.kind] if name in first.metrics]
    labels = [first.metrics[name] for name in shown]
    headings = ["", *(f"{metric.label} {ARROWS[metric.direction]}".strip() for metric in labels)]
    rows = [
        [METHOD_LABELS.get(m.name, m.name), *(with_change(m.metrics[n], m.differences.get(n)) for n in shown)]
        for m in result.methods
    ]
    return headings, rows


def with_change(metric: MetricValue, change: MetricDifference | None) -> str:
    """A metric with the paired interval of its change; with its own interval where there is nothing to compare."""
    if change is None:
        return with_interval(metric)
    unit = metric.unit
    value, low, high = (number(end, unit, True) for end in (change.value, change.low, change.high))
    return f"{number(metric.value, unit)} ({value} [{low}, {high}])"


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def notes(result: EvaluationResult) -> list[str]:
    """What has to be said below a table."""
    lines = [
        f"95 % bootstrap intervals over images ({result.scoring['bootstrap']} draws), paired for differences; p of a "
        "paired permutation test.",
        *result.notes,
    ]
    for method in result.methods:
        lines += [f"{METHOD_LABELS.get(method.name, method.name)}: {note}" for note in method.notes]
    return lines


def run_markdown(result: EvaluationResult) -> str:
    """A run as Markdown: the table, and below it what has to be said."""
    parts = [f"**{title(result)}**"]
    if len(result.methods) > MOST_COLUMNS:
        parts.append(markdown_table(*method_table(result)))
    parts.append(markdown_table(*run_table(result)))
    if any(_paper(result, method, metric) is not None for method in result.methods for metric in _headlines(result)):
        parts.append(paper_markdown([result]))
    return "\n\n".join([*parts, *notes(result)]) + "\n"


def _headlines(result: EvaluationResult) -> list[str]:
    return [name for name in HEADLINES[result.kind] if name in result.methods[0].metrics]


def _paper(result: EvaluationResult, method: MethodResult, metric: str) -> float | None:
    return paper_value(result.kind, result.model["name"], result.decoding["name"], method.name, metric)


def _check_same_kind(results: Sequence[EvaluationResult]) -> None:
    if not results:
        raise ValueError("There is no result to put into a table.")
    kinds = {(r.kind, r.scoring.get("lineage"), r.scoring.get("parser")) for r in results}
    if len(kinds) > 1:
        told = ", ".join(sorted(" ".join(part for part in kind if part) for kind in kinds))
        raise ValueError(f"Results of different kinds do not fit into one table: {told}.")
    cells = [(r.model["name"], r.decoding["name"], m.name) for r in results for m in r.methods]
    twice = sorted({cell for cell in cells if cells.count(cell) > 1})
    if twice:
        raise ValueError(f"Two results are about the same cell of the table: {', '.join(twice[0])}.")


def _grid(results: Sequence[EvaluationResult]) -> tuple[list[str], list[tuple[str, str]]]:
    """The table's models and its rows of decoding and method, in the paper's order."""
    models = list(dict.fromkeys(result.model["name"] for result in results))
    rows = [
        (decoding, method)
        for decoding in DECODING_LABELS
        for method in dict.fromkeys(m.name for r in results if r.decoding["name"] == decoding for m in r.methods)
    ]
    return models, rows


def _cell(results: Sequence[EvaluationResult], model: str, decoding: str, method: str, metric: str) -> tuple[str, str]:
    """Our number and the paper's, or blanks."""
    for result in results:
        if (result.model["name"], result.decoding["name"]) == (model, decoding):
            for entry in result.methods:
                if entry.name == method:
                    value = entry.metrics[metric]
                    paper = _paper(result, entry, metric)
                    digits = 2 if result.kind != "chair" else 1
                    return f"{value.value:.{digits}f}", "" if paper is None else f"{paper:.{digits}f}"
    return "", ""


def paper_markdown(results: Sequence[EvaluationResult]) -> str:
    """Results in the form of the paper's tables: decoding and method down, models across, the paper's number beside.

    Raises:
        ValueError: The results are of different kinds, or two are about the same cell.
    """
    _check_same_kind(results)
    models, grid = _grid(results)
    metrics = _headlines(results[0])
    labels = [results[0].methods[0].metrics[metric] for metric in metrics]
    columns = [(model, metric, label) for model in models for metric, label in zip(metrics, labels, strict=True)]
    headings = ["Decoding", "Method"]
    headings += [f"{model} {label.label} {ARROWS[label.direction]} ours (paper)" for model, _, label in columns]
    rows = []
    for decoding, method in grid:
        row = [DECODING_LABELS[decoding], METHOD_LABELS.get(method, method)]
        for model, metric, _ in columns:
            ours, paper = _cell(results, model, decoding, method, metric)
            row.append(f"{ours or '-'} ({paper or '-'})")
        rows.append(row)
    return markdown_table(headings, rows)


def paper_latex(results: Sequence[EvaluationResult]) -> str:
    r"""The same as LaTeX (booktabs, multirow); the paper's numbers are small, in parentheses.

    Raises:
        ValueError: The results are of different kinds, or two are about the same cell.
    """
    _check_same_kind(results)
    models, grid = _grid(results)
    metrics = _headlines(results[0])
    labels = [results[0].methods[0].metrics[metric] for metric in metrics]
    heads = [
        rf"{_tex(label.label).replace('CHAIR' + chr(92) + '_', 'CHAIR$_')}"
        + ("$" if label.label.startswith("CHAIR_") else "")
        + LATEX_ARROWS[label.direction]
        for label in labels
    ]
    lines = [
        rf"% {title(results[0]).replace('%', '')}; in parentheses: numbers printed in the RUDDER paper (ICML 2026)",
        rf"\begin{{tabular}}{{ll{'c' * (len(models) * len(metrics))}}}",
        r"\toprule",
        r"\multirow{2}{*}{Decoding} & \multirow{2}{*}{Method} & "
        + " & ".join(rf"\multicolumn{{{len(metrics)}}}{{c}}{{{_tex(model)}}}" for model in models)
        + r" \\",
        " & & " + " & ".join(heads * len(models)) + r" \\",
    ]
    for decoding in dict.fromkeys(row[0] for row in grid):
        methods = [method for name, method in grid if name == decoding]
        lines.append(r"\midrule")
        for index, method in enumerate(methods):
            head = rf"\multirow{{{len(methods)}}}{{*}}{{{DECODING_LABELS[decoding]}}}" if index == 0 else ""
            cells = []
            for model in models:
                for metric in metrics:
                    ours, paper = _cell(results, model, decoding, method, metric)
                    cells.append((ours or "-") + (rf" {{\scriptsize ({paper})}}" if paper else ""))
            lines.append(f"{head} & {_tex(METHOD_LABELS.get(method, method))} & {' & '.join(cells)} " + r"\\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _tex(text: str) -> str:
    for sign in "&%$#_{}":
        text = text.replace(sign, f"\\{sign}")
    return text
