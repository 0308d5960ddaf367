"""Results as tables: five columns on a terminal and in LaTeX, everything in the file. And results of saved answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..methods import CONTROL_OF
from ..runtime.errors import InputError
from ..runtime.report import Table, heading, number, p_value, with_interval
from ..runtime.store import RESULT_FILE, write_over
from .result import VANILLA, MethodResult, MetricDifference, MetricValue, Result, Scored, Scoring, build_result
from .run import Run, Variant
from .statements import LEVEL, LOSES, TIES, WINS, against_control, verdict, without_effect

TABLE_FILE, LATEX_FILE = "table.md", "table.tex"
SHORT_TABLE_METRICS: dict[str, tuple[str, ...]] = {
    "chair": ("chair_s", "chair_i", "recall", "f1", "length"),
    "pope": ("accuracy", "f1", "yes_ratio", "precision", "recall"),
    "mme": ("total", "perception", "cognition"),
    "images": ("length", "distinct_2", "grounding"),
}
"""The metrics that a terminal shows, by kind of task; those that a run lacks are left out."""
THROUGHPUT = "throughput"
_HEADLINES: dict[str, tuple[str, ...]] = {
    "chair": ("chair_s", "chair_i"), "pope": ("accuracy", "f1"), "mme": ("total",), "images": (),
}  # fmt: skip
_NONE = "-"


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
    shown = [name for name in SHORT_TABLE_METRICS[result.kind] if name in first]
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
        found = "; ".join(f"{words[key]}: {_named(told[key])}" for key in (WINS, LOSES, TIES) if key in told)
        lines.append(f"Against vanilla's captions cut to the same recall: {found}.")
    if unsteered := [method.name for method in result.methods if _cannot_change(result.kind, method)]:
        lines.append(
            f"{_named(unsteered)}: nothing can change, because a yes or no is the first token, which is steered "
            "with --set steer_first_token=true only."
        )
    if noted := [method.name for method in result.methods if method.notes]:
        lines.append(f"Empty, cut off or unclear answers of {_named(noted)} are counted in the file.")
    return lines


def _named(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) < 5 else f"{len(names)} methods"


def _cannot_change(kind: str, method: MethodResult) -> bool:
    """Whether a method cannot change a yes or no, and did not."""
    unsteered = method.settings.get("steer_first_token") is False and kind in ("pope", "mme")
    judged = (method.differences[name] for name in SHORT_TABLE_METRICS[kind] if name in method.differences)
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


# Files


def markdown(results: Sequence[Result]) -> str:
    """The file `table.md`: for each result the short table, then everything, and what has to be said."""
    parts = []
    for result in results:
        parts += [f"**{title(result)}**", short_table(result).markdown(), *summary(result)]
        parts += ["**Everything**", full_table(result).markdown(), *notes(result)]
    return "\n\n".join(parts) + "\n"


def latex(result: Result) -> str:
    """The file `table.tex`: the short table in LaTeX, with a line above that says what it is."""
    return f"% {title(result)}\n{short_table(result).latex()}"


def save_result(result: Result, folder: Path, tables: bool = True) -> Result:
    """Write a result, and its tables if wanted, or return the one that is there, if it says the same."""
    try:
        stored = Result.load(folder)
    except InputError:
        stored = None
    if stored is not None and replace(stored, run={}) == replace(result, run={}):
        return stored
    if tables:
        write_over(folder / TABLE_FILE, markdown([result]))
        write_over(folder / LATEX_FILE, latex(result))
    # Last: a folder with this file is complete.
    write_over(folder / RESULT_FILE, result.to_json())
    return result


# Saved answers, scored again without a model


def score_runs(references: Sequence[str], scoring: Scoring) -> Result:
    """Score saved answers anew: the methods of one folder, or methods of several; differences are to the first.

    Args:
        references: FOLDER, for all of its methods, or FOLDER:METHOD.
        scoring: How to score all of them, so that lineages never mix.

    Raises:
        InputError: A folder is no finished run, lacks the method, or has other samples than the first.
    """
    (first, chosen), *others = (_split_reference(text) for text in references)
    if not others:
        return first.result(scoring, chosen)
    plan, asked = first.plan(), _asked(first)
    variants, scored = list[Variant](), list[Scored]()
    names: dict[str, list[str]] = {"model": [], "decoding": []}
    for run, found in ((first, chosen), *others):
        own = run.plan()
        if own["kind"] != plan["kind"]:
            kinds = f"{first.path} is {plan['kind']} and {run.path} is {own['kind']}"
            raise InputError(f"{kinds}: compare runs of one kind")
        if _asked(run) != asked:
            raise InputError(
                f"{first.path} and {run.path} do not have the same images and questions: compare runs on the same"
            )
        for part, seen in names.items():
            seen.append(own[part]["name"])
        variants += [replace(variant, label=f"{run.path}:{variant.label}") for variant in found]
        scored += run.scored(found, scoring)
    # Runs may differ in these.
    plan |= {part: {"name": " and ".join(dict.fromkeys(seen))} for part, seen in names.items()}
    return build_result(plan, first.samples(), variants, scored, scoring, {})


def _asked(run: Run) -> dict[str, Any]:
    return {sample.id: (sample.image_id, sample.reference) for sample in run.samples()}


def _split_reference(text: str) -> tuple[Run, list[Variant]]:
    """A run, and its variants, or the one that the text names after a colon."""
    path, label = (text, "") if Path(text).is_dir() else text.rpartition(":")[::2]
    if not path or not Path(path).is_dir():
        raise InputError(f"there is no results folder {text!r}; write FOLDER or FOLDER:METHOD")
    run = Run(path)
    run.plan()  # or this is no folder of a run
    found = {variant.label: variant for variant in run.variants()}
    if not label:
        return run, list(found.values())
    if label not in found:
        raise InputError(f"the run {path} has no method {label!r}; it has {', '.join(found)}")
    return run, [found[label]]
