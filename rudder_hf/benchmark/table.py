"""Costs as tables for people. `python -m rudder_hf.benchmark.table FILE` prints a report's table in Markdown."""

from __future__ import annotations

import sys
from collections.abc import Callable

from ..methods import GROUPS
from ..runtime.report import Table, size
from .costs import Cost
from .report import BenchmarkReport
from .timing import VANILLA

NONE = "-"


def _throughput(cost: Cost) -> str:
    if cost.ratio is None:
        return "1" if cost.method == VANILLA else NONE
    low, high = cost.ratio.interval
    return f"{cost.ratio.median:.3f} [{low:.3f}, {high:.3f}]"


def _memory(cost: Cost) -> str:
    if cost.peak_bytes is None or cost.peak_ratio is None:
        return NONE
    return f"{size(cost.peak_bytes)} ({cost.peak_ratio:.2f})"


COST_COLUMNS: dict[str, Callable[[Cost], str]] = {
    "Throughput / vanilla ↑": _throughput,
    "Forwards per token ↓": lambda cost: f"{cost.forwards_per_token:.2f}",
    "Prompt forwards ↓": lambda cost: f"{cost.prompt_forwards:.2f}",
    "Peak memory (/ vanilla) ↓": _memory,
}
"""Heading and cell of what a comparison says about costs."""


def _operators(cost: Cost, base: Cost) -> str:
    added = cost.operators_per_token - base.operators_per_token
    return f"{cost.operators_per_token:.0f}" + (f" ({added:+.0f})" if cost.method != VANILLA else "")


def cost_table(report: BenchmarkReport) -> Table:
    """One row for each model, decoding and method; columns that say nothing are left out."""
    rows: list[dict[str, str]] = []
    for case in report.cases:
        for cost in case.costs:
            ratio = cost.ratio
            row = {
                "Model": case.name,
                "Decoding": cost.decoding,
                "Method": cost.method,
                "ms per token ↓": f"{cost.ms_per_token:.2f}",
                **{heading: cell(cost) for heading, cell in COST_COLUMNS.items()},
                "5-95 % of rounds": NONE if ratio is None else f"{ratio.low:.3f}-{ratio.high:.3f}",
                "Operators per token ↓": _operators(cost, case.cost(VANILLA, cost.decoding)),
            }
            rows.append(row)
    headings = [heading for heading in rows[0] if {row[heading] for row in rows} != {NONE}]
    return Table(headings, [[row[heading] for heading in headings] for row in rows], labels=3)


def notes(report: BenchmarkReport) -> list[str]:
    """What has to be said below the table."""
    settings = report.settings
    lines = [
        f"{settings['rounds']} interleaved rounds, {settings['new_tokens']} new tokens, batch size "
        f"{settings['batch_size']}, {settings['dtype']} on {settings['device']}. In brackets: 95 % interval of the "
        "median."
    ]
    for case in report.cases:
        model, where = case.model, f"RUDDER in layer {case.model['rudder']['layer']} of {case.model['layers']}"
        lines.append(f"{case.name}: {model['class']}, {where}, prompt of {case.prompt_tokens} tokens")
        lines += [
            f"{case.name}: {cost.method} adds per token: {', '.join(cost.added_operators)}"
            for cost in case.costs
            if cost.method in GROUPS["rudder"]
        ]
    return lines


if __name__ == "__main__":
    print(cost_table(BenchmarkReport.load(sys.argv[1])).markdown())
