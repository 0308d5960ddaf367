"""`rudder score`: saved answers scored again, and runs compared, without a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options
from .common import copyable, next_steps, print_result, refusing_bad_input

EXAMPLES = copyable(
    "rudder score results/chair --lineage wordnet",
    "rudder score results/a:vanilla results/b:rudder-beta",
    "rudder score results/greedy results/beam --table",
)


def score(
    sources: Annotated[
        list[str],
        typer.Argument(metavar="RESULTS...", help="Folders of `rudder evaluate`, or FOLDER:METHOD."),
    ],
    table: Annotated[
        bool, typer.Option("--table", help="Print Markdown with all metrics, intervals and p-values.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for result.json, table.md and table.tex.", show_default="they are printed only"),
    ] = None,
    lineage: options.LineageOption = "pattern",
    parser: options.ParserOption = "robust",
) -> None:
    """Score saved answers again, with another lineage or parser, or methods of several runs.

    Several runs have to be on the same images: every method is compared with the first, image by image.
    """
    with refusing_bad_input():
        from ..evaluate import tables
        from ..evaluate.result import Scoring
        from ..evaluate.score import score_runs
        from ..runtime.store import check_folder

        if out is not None:
            check_folder(out, own=False)
        result = score_runs(sources, Scoring(lineage, parser))
        if out is not None:
            tables.save_result(result, out)
    if table:
        typer.echo(tables.markdown([result]))
        return
    print_result(result, out)
    keep = [] if out is not None else ["keep this: with --out FOLDER"]
    next_steps("all metrics, intervals and p-values: the same command with --table", *keep)
