"""A benchmark's result as tables for people."""

from __future__ import annotations

import sys
from collections.abc import Callable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .report import BenchmarkReport, CaseResult, VariantResult
from .timing import Ratio
from .variants import VANILLA

NAMES = {VANILLA: "vanilla", "beta": "RUDDER-Beta", "add": "RUDDER-Add"}
STYLES = {"met": "green", "missed": "red", "undecided": "yellow"}


def report_tables(report: BenchmarkReport) -> RenderableType:
    """Everything a reader wants first, case by case."""
    parts: list[RenderableType] = []
    for case in report.cases:
        parts.extend([case_table(case, report), *_notes(case)])
    return Group(*parts)


def case_table(case: CaseResult, report: BenchmarkReport) -> Table:
    """One column per variant."""
    settings, rudder = report.settings, case.model["rudder"]
    table = Table(
        title=f"{case.name}: {case.model['class']}, {case.model['layers']} layers, RUDDER in layer {rudder['layer']}",
        caption=f"{settings['rounds']} interleaved rounds, {settings['new_tokens']} new tokens, prompt of "
        f"{case.prompt_tokens}, batch {settings['batch_size']}, {settings['dtype']} on {settings['device']}",
    )
    table.add_column("")
    for result in case.variants:
        table.add_column(NAMES[result.variant], justify="right")
    base = next(result for result in case.variants if result.variant == VANILLA)
    rows: dict[str, Callable[[VariantResult], str]] = {
        "ms per token": lambda result: f"{result.ms_per_token:.2f}",
        "throughput ratio (median)": lambda result: _of(result.ratio, lambda ratio: f"{ratio.median:.4f}"),
        "  95 % interval of median": lambda result: _of(result.ratio, lambda ratio: _range(*ratio.interval)),
        "  5 to 95 % of rounds": lambda result: _of(result.ratio, lambda ratio: _range(ratio.low, ratio.high)),
        "  by median step": lambda result: _of(result.step_ratio, lambda ratio: f"{ratio.median:.4f}"),
        "  by CPU time": lambda result: _of(result.cpu_ratio, lambda ratio: f"{ratio.median:.4f}"),
        "forward passes per token": lambda result: f"{result.forwards_per_token:.2f}",
        "operators per token": lambda result: _operators(result, base),
        "bytes kept while decoding": lambda result: _bytes([entry.kept for entry in result.extra_memory]),
        "extra bytes in prefill": lambda result: _bytes([entry.prefill for entry in result.extra_memory]),
        "extra bytes at the peak": lambda result: _bytes([entry.peak for entry in result.extra_memory]),
    }
    for name, cell in rows.items():
        table.add_row(name, *(cell(result) for result in case.variants))
    return table


def _of(ratio: Ratio | None, text: Callable[[Ratio], str]) -> str:
    return "" if ratio is None else text(ratio)


def _range(low: float, high: float) -> str:
    return f"{low:.3f} to {high:.3f}"


def _operators(result: VariantResult, base: VariantResult) -> str:
    added = result.operators_per_token - base.operators_per_token
    return f"{result.operators_per_token:.0f}" + (f" ({added:+.0f})" if result is not base else "")


def _bytes(sizes: list[int]) -> str:
    """Extra bytes at each prompt length; one number if they are equal."""
    return " / ".join(f"{size:,}" for size in dict.fromkeys(sizes))


def _notes(case: CaseResult) -> list[Text]:
    """Below the table: added operators, prompts of the memory rows, goals."""
    lines = [
        Text(f"{NAMES[result.variant]} adds per token: {', '.join(result.added_operators)}")
        for result in case.variants
        if result.added_operators
    ]
    lengths = " / ".join(str(entry.prompt_tokens) for entry in case.variants[-1].extra_memory)
    lines.append(
        Text(f"Bytes are beyond vanilla's, with prompts of {lengths} tokens; one number where they are equal.")
    )
    for target in case.targets:
        value = f"{target.measured:.4f}" if "ratio" in target.name else f"{target.measured:g}"
        text = f"{target.verdict}: {NAMES[target.variant]}, {target.name} (measured {value})"
        lines.append(Text(text, style=STYLES[target.verdict]))
    return [*lines, Text("")]


def markdown_table(report: BenchmarkReport) -> str:
    """The ratios of a report as Markdown, for the README: `python -m rudder_hf.benchmark.table FILE` prints it."""
    lines = [
        "| shape | variant | throughput / vanilla: median [95 % interval] | 5-95 % of rounds | forwards per token "
        "| operators per token | bytes kept |",
        "|---|---|---|---|---|---|---|",
    ]
    for case in report.cases:
        base = case.variants[0]
        for result in case.variants[1:]:
            ratio = result.ratio
            if ratio is None:
                continue
            low, high = ratio.interval
            lines.append(
                f"| {case.name} | {NAMES[result.variant]} | {ratio.median:.3f} [{low:.3f}, {high:.3f}] | "
                f"{ratio.low:.3f}-{ratio.high:.3f} | {result.forwards_per_token:.2f} | {_operators(result, base)} | "
                f"{_bytes([entry.kept for entry in result.extra_memory])} |"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown_table(BenchmarkReport.load(sys.argv[1])))
