"""Costs as tables for people. `python -m rudder_hf.benchmark.table FILE` prints a report's table in Markdown."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

from ..runtime.report import Table, size
from .bench import VANILLA
from .costs import Cost
from .report import BenchmarkReport, Case

NONE = "-"
Cell = Callable[[Cost], str]


def _throughput(cost: Cost) -> str:
    if cost.ratio is None:
        return "1" if cost.method == VANILLA else NONE
    low, high = cost.ratio.interval
    return f"{cost.ratio.median:.3f} [{low:.3f}, {high:.3f}]"


def _number(value: float | None, digits: int = 2) -> str:
    return NONE if value is None else f"{value:.{digits}f}"


def _memory(cost: Cost) -> str:
    if cost.peak_bytes is None or cost.peak_ratio is None:
        return NONE
    return f"{size(cost.peak_bytes)} ({cost.peak_ratio:.2f})"


COST_COLUMNS: dict[str, Cell] = {
    "Throughput / vanilla ↑": _throughput,
    "Forwards per token ↓": lambda cost: _number(cost.forwards_per_token),
    "Prompt forwards ↓": lambda cost: _number(cost.prompt_forwards),
    "Peak memory (/ vanilla) ↓": _memory,
}
"""Heading and cell of what a comparison says about costs."""


def _columns(base: Cost) -> dict[str, Cell]:
    """All that is known about costs; `base` is vanilla's."""

    def operators(cost: Cost) -> str:
        if cost.operators_per_token is None or base.operators_per_token is None:
            return NONE
        added = cost.operators_per_token - base.operators_per_token
        return f"{cost.operators_per_token:.0f}" + (f" ({added:+.0f})" if cost.method != VANILLA else "")

    throughput, *others = COST_COLUMNS.items()
    return dict(
        (
            ("ms per token", lambda cost: _number(cost.ms_per_token)),
            throughput,
            ("5-95 % of rounds", lambda c: NONE if c.ratio is None else f"{c.ratio.low:.3f}-{c.ratio.high:.3f}"),
            ("by CPU time", lambda cost: NONE if cost.cpu_ratio is None else _number(cost.cpu_ratio.median, 3)),
            *others,
            ("Operators per token ↓", operators),
            ("Bytes kept ↓", lambda cost: _bytes(entry.kept for entry in cost.extra_memory)),
        )
    )


def _bytes(sizes: Iterable[int]) -> str:
    """Extra bytes at each prompt length; one number if they are equal."""
    return " / ".join(f"{count:,}" for count in dict.fromkeys(sizes)) or NONE


def cost_table(report: BenchmarkReport) -> Table:
    """One row for each model, decoding and method; columns that say nothing are left out."""
    rows: list[list[str]] = []
    headings: list[str] = []
    for case in report.cases:
        for cost in case.costs:
            base = next(c for c in case.costs if (c.method, c.decoding) == (VANILLA, cost.decoding))
            columns = _columns(base)
            headings = ["Model", "Decoding", "Method", *columns]
            cells = [cell(cost) for cell in columns.values()]
            if cost.refusal:
                cells = [cost.refusal, *[NONE] * (len(cells) - 1)]
            rows.append([case.name, cost.decoding, cost.method, *cells])
    told = [place for place in range(len(headings)) if {row[place] for row in rows} != {NONE}]
    return Table([headings[place] for place in told], [[row[place] for place in told] for row in rows], labels=3)


def notes(report: BenchmarkReport) -> list[str]:
    """What has to be said below the table."""
    settings = report.settings
    lines = [
        f"{settings['rounds']} interleaved rounds, {settings['new_tokens']} new tokens, batch size "
        f"{settings['batch_size']}, {settings['dtype']} on {settings['device']}. In brackets: 95 % interval of the "
        "median."
    ]
    for case in report.cases:
        lines += _case_notes(case)
    return lines


def _case_notes(case: Case) -> list[str]:
    model = case.model
    where = f"{model['layers']} layers, RUDDER in layer {model['rudder']['layer']}"
    lines = [f"{case.name}: {model['class']}, {where}, prompt of {case.prompt_tokens} tokens"]
    lines += [
        f"{case.name}: {cost.method} adds per token: {', '.join(cost.added_operators)}"
        for cost in case.costs
        if cost.extra_memory
    ]
    lengths = dict.fromkeys(entry.prompt_tokens for cost in case.costs for entry in cost.extra_memory)
    if lengths:
        told = " / ".join(map(str, lengths))
        lines.append(f"{case.name}: extra bytes are beyond vanilla's with prompts of {told} tokens.")
    return lines


if __name__ == "__main__":
    print(cost_table(BenchmarkReport.load(sys.argv[1])).markdown())
