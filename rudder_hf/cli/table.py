"""`rudder table`: several results in one table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .common import copyable, refusing_bad_input

EXAMPLES = copyable(
    "rudder table results/greedy results/beam --latex",
    "rudder table results/scenes results/pope costs.json",
)


def table(
    results: Annotated[
        list[Path],
        typer.Argument(metavar="RESULTS...", help="Folders of `rudder evaluate`, files of `rudder benchmark`."),
    ],
    latex: Annotated[bool, typer.Option("--latex", help="LaTeX instead of Markdown.")] = False,
) -> None:
    """Print results as one table, in the form of the paper's.

    Captions, questions and costs of one model are joined by method.
    """
    with refusing_bad_input():
        from ..compare.table import joined, markdown, read_parts
        from ..evaluate import tables

        found, costs = read_parts(results)
        if costs or len({result.kind for result in found}) > 1:
            if latex:
                raise ValueError("A table of several tasks or with costs is Markdown only: leave --latex out.")
            typer.echo(markdown(joined(found, costs)))
        else:
            typer.echo(tables.paper_latex(found) if latex else tables.paper_markdown(found))
