"""`rudder score`: saved answers scored again, or two runs compared, without a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import options
from .common import copyable, refuse_typed, refusing_bad_input

if TYPE_CHECKING:
    from ..evaluate.result import EvaluationResult
    from ..evaluate.scoring import Scoring

EXAMPLES = copyable(
    "rudder score results/chair --lineage wordnet",
    "rudder score results/a:vanilla results/b:rudder-beta",
    "rudder score captions.json --data coco --split val2014",
)


def score(
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(metavar="RESULTS", help="Folder of `rudder evaluate`, or a file of captions with --data."),
    ],
    other: Annotated[
        str | None,
        typer.Argument(
            metavar="OTHER", help="A second folder: its difference to the first, image by image.", show_default=False
        ),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="For a file of captions: COCO's folder or instances_*.json.")
    ] = None,
    captions: options.CaptionsOption = None,
    split: options.SplitOption = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the scores, which are numbered.", show_default="RESULTS")
    ] = None,
    seed: options.SeedOption = 0,
    lineage: options.LineageOption = "pattern",
    parser: options.ParserOption = "robust",
    bootstrap: options.BootstrapOption = 10_000,
    margin: options.MarginOption = 1 / 3,
) -> None:
    """Score saved answers again, with another lineage, parser or number of draws; or compare two runs.

    Two runs are compared on the same images, with paired intervals: each is FOLDER, or FOLDER:METHOD. A file of
    captions is a JSON list, or lines, of {"image_id": 139, "caption": "..."}.
    """
    with refusing_bad_input():
        from ..evaluate.scoring import Scoring

        scoring = Scoring(lineage, parser, bootstrap, margin)
        data_options = ("data", "captions", "split", "seed")
        if other is not None:
            why = "has no effect where two runs are compared: their differences are printed only"
            refuse_typed(context, why, "out", *data_options)
            _print_differences(source, other, scoring)
            return
        from ..evaluate.folder import rescore, save_rescored, score_captions
        from ..evaluate.tasks import DataOptions
        from ..evaluate.tasks.captions import coco_annotations

        path = Path(source)
        if path.is_dir():
            refuse_typed(context, "has no effect on a results folder, which has its data and its seed", *data_options)
            result = rescore(path, scoring)
            out = path if out is None else out
        elif path.is_file():
            found = coco_annotations(DataOptions(data, captions, split=split))
            result = score_captions(path, *found, scoring, seed)
        else:
            raise ValueError(f"There is no {source}: give a results folder, or a file of captions with --data.")
        saved = None if out is None else save_rescored(result, out, own=out == path)
    print_result(result)
    if saved is not None:
        typer.echo(f"Written to {saved}")


def _print_differences(left: str, right: str, scoring: Scoring) -> None:
    from ..evaluate.folder import compare_runs
    from ..evaluate.tables import compared_markdown

    for pair in compare_runs(left, right, scoring):
        typer.echo(compared_markdown(pair) + "\n")


def print_result(result: EvaluationResult) -> None:
    """Print a result as a table, and what is to be said about it."""
    from ..evaluate import tables

    tables.terminal_table(result).print()
    for line in tables.notes(result):
        typer.echo(line)
