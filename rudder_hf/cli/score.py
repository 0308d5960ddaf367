"""`rudder score`: saved answers scored again, and runs compared, without a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options
from .common import copyable, next_steps, print_result, refuse_typed, refusing_bad_input

EXAMPLES = copyable(
    "rudder score results/chair --lineage wordnet",
    "rudder score results/a:vanilla results/b:rudder-beta",
    "rudder score results/greedy results/beam --table",
    "rudder score captions.json --data coco --split val2014",
)


def score(
    context: typer.Context,
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="RESULTS...",
            help="Folders of `rudder evaluate`, or FOLDER:METHOD; or a file of captions with --data.",
        ),
    ],
    table: Annotated[
        bool, typer.Option("--table", help="Print Markdown with all metrics, intervals and p-values.")
    ] = False,
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
    """Score saved answers again, with another lineage, parser or number of draws, or methods of several runs.

    Several runs have to be on the same images: every method is compared with the first, image by image. A file of
    captions is a JSON list, or lines, of {"image_id": 139, "caption": "..."}.
    """
    with refusing_bad_input():
        from ..evaluate import tables
        from ..evaluate.score import score_captions, score_runs
        from ..evaluate.scoring import Scoring
        from ..evaluate.tasks import DataOptions
        from ..evaluate.tasks.captions import coco_annotations
        from ..runtime.store import check_folder

        if out is not None:
            check_folder(out, own=False)
        scoring = Scoring(lineage, parser, bootstrap)
        if len(sources) == 1 and Path(sources[0]).is_file():
            annotations = coco_annotations(DataOptions(data, captions, split=split))
            result = score_captions(Path(sources[0]), *annotations, scoring, seed)
        else:
            why = "has no effect on results folders, which have their data and seed"
            refuse_typed(context, why, "data", "captions", "split", "seed")
            result = score_runs(sources, scoring)
        if out is not None:
            tables.save_result(result, out)
    if table:
        typer.echo(tables.markdown([result]))
        return
    print_result(result, out)
    next_steps("all metrics, intervals and p-values: the same command with --table", "keep this: with --out FOLDER")
