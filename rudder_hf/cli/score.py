"""`rudder score`: saved answers scored again, or two runs compared, without a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import options
from .common import copyable, next_steps, refuse_typed, refusing_bad_input

if TYPE_CHECKING:
    from ..evaluate.result import Result
    from ..evaluate.scoring import Scoring

EXAMPLES = copyable(
    "rudder score results/chair --lineage wordnet",
    "rudder score results/a:vanilla results/b:rudder-beta",
    "rudder score results/greedy results/beam --table --latex",
    "rudder score captions.json --data coco --split val2014",
)


def score(
    context: typer.Context,
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="RESULTS [OTHER]...",
            help="Folder of `rudder evaluate`, or a file of captions with --data. A second folder: its difference to "
            "the first, image by image. With --table any number.",
        ),
    ],
    table: Annotated[
        bool, typer.Option("--table", help="Print results as one table, in the form of the paper's.")
    ] = False,
    latex: Annotated[bool, typer.Option("--latex", help="With --table: LaTeX instead of Markdown.")] = False,
    data: Annotated[
        Path | None, typer.Option(help="For a file of captions: COCO's folder or instances_*.json.")
    ] = None,
    captions: options.CaptionsOption = None,
    split: options.SplitOption = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for result.json and its tables.", show_default="they are printed only")
    ] = None,
    seed: options.SeedOption = 0,
    lineage: options.LineageOption = "pattern",
    parser: options.ParserOption = "robust",
    bootstrap: options.BootstrapOption = 10_000,
) -> None:
    """Score saved answers again, with another lineage, parser or number of draws; compare two runs; or show several.

    Two runs are compared on the same images, with paired intervals: each is FOLDER, or FOLDER:METHOD. A file of
    captions is a JSON list, or lines, of {"image_id": 139, "caption": "..."}.
    """
    with refusing_bad_input():
        from ..evaluate.scoring import Scoring

        scoring = Scoring(lineage, parser, bootstrap)
        data_options = ("data", "captions", "split", "seed")
        if table:
            why = "has no effect on a table of results, which are shown as they were scored"
            refuse_typed(context, why, "out", *data_options, "lineage", "parser", "bootstrap")
            typer.echo(_table(sources, latex))
            if not latex:
                next_steps(f"rudder score {' '.join(sources)} --table --latex")
            return
        refuse_typed(context, "goes with --table", "latex")
        source, *others = sources
        if len(others) > 1:
            raise ValueError(f"There are {len(sources)} results: give one to score, two to compare, or add --table.")
        if others:
            why = "has no effect where two runs are compared: their differences are printed only"
            refuse_typed(context, why, "out", *data_options)
            _print_differences(source, others[0], scoring)
            next_steps(f"rudder score {source} {others[0]} --lineage strict")
            return
        from ..evaluate.evaluate import save_result
        from ..evaluate.run import Run
        from ..evaluate.score import score_captions
        from ..evaluate.tasks import DataOptions
        from ..evaluate.tasks.captions import coco_annotations
        from ..runtime.store import check_folder

        path = Path(source)
        if path.is_dir():
            refuse_typed(context, "has no effect on a results folder, which has its data and its seed", *data_options)
            result = Run(path).result(scoring)
        elif path.is_file():
            found = coco_annotations(DataOptions(data, captions, split=split))
            result = score_captions(path, *found, scoring, seed)
        else:
            raise ValueError(f"There is no {source}: give a results folder, or a file of captions with --data.")
        if out is not None:
            check_folder(out, own=False)
            save_result(result, out)
    print_result(result, out)
    next_steps(f"rudder score {out} --table" if out else "keep this: the same command with --out FOLDER")


def _table(results: list[str], latex: bool) -> str:
    """Results as one table, in the form of the paper's."""
    from ..evaluate.result import Result
    from ..evaluate.tables import paper_latex, paper_table

    found = [Result.load(result) for result in results]
    return paper_latex(found) if latex else paper_table(found).markdown()


def _print_differences(left: str, right: str, scoring: Scoring) -> None:
    from ..evaluate.score import compare_runs
    from ..evaluate.tables import compared_markdown

    for pair in compare_runs(left, right, scoring):
        typer.echo(compared_markdown(pair) + "\n")


def print_result(result: Result, folder: Path | None) -> None:
    """Print a result as a table, what is to be said about it, and where the rest is."""
    from ..evaluate import tables

    tables.short_table(result).print()
    for line in tables.summary(result):
        typer.echo(line)
    if folder is not None:
        typer.echo(f"Intervals, controls and all metrics: {folder / 'table.md'}; numbers: {folder / 'result.json'}")
