"""`rudder compare`: every decoding method side by side on one model, tuned alike."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from . import options as shared
from .common import (
    choose_device,
    command_line,
    copyable,
    next_steps,
    parse_words,
    refusing_bad_input,
    reporting_failure,
)

if TYPE_CHECKING:
    from ..compare import CompareOptions

EXAMPLES = copyable(
    "rudder compare --out comparison",
    "rudder compare --methods vanilla,rudder,vcd --decodings greedy --out quick",
    "rudder compare --model ID --data coco --split val2014 --out comparison",
)


def compare(
    out: shared.OutOption,
    model: shared.ModelOption = None,
    data: Annotated[Path | None, typer.Option(help="COCO's folder.", show_default="the embedded scenes")] = None,
    images: shared.ImagesOption = None,
    captions: shared.CaptionsOption = None,
    split: shared.SplitOption = None,
    rudder: shared.RudderOption = None,
    methods: Annotated[
        str, typer.Option(help="Methods by commas, or groups: all, rudder, peers, controls; vanilla is always run.")
    ] = "all",
    decodings: Annotated[str, typer.Option(help="Decodings by commas: greedy, beam, nucleus.")] = "greedy",
    limit: Annotated[int, typer.Option(min=1, help="Images to evaluate captions on.")] = 500,
    beam_limit: Annotated[int, typer.Option(min=1, help="Images to evaluate captions of beam search on.")] = 100,
    pope_limit: Annotated[int, typer.Option(min=0, help="Images that yes/no questions are asked about.")] = 40,
    tune_limit: Annotated[int, typer.Option(min=2, help="Calibration images that settings are chosen on.")] = 80,
    objective: Annotated[
        Literal["paper", "f1"],
        typer.Option(metavar="NAME", help="Objective of all methods: paper, the least CHAIR, or f1."),
    ] = "paper",
    max_new_tokens: shared.MaxNewTokensOption = None,
    num_beams: shared.NumBeamsOption = 5,
    top_p: shared.TopPOption = 0.9,
    batch_size: shared.BatchSizeOption = 50,
    rounds: Annotated[int, typer.Option(min=1, help="Timed rounds of the costs.")] = 8,
    seed: shared.SeedOption = 0,
    device: shared.DeviceOption = "auto",
    dtype: shared.DtypeOption = "auto",
    revision: shared.RevisionOption = None,
) -> None:
    """Tune every method on the same calibration images, then compare quality and cost on others.

    Each method chooses among the same number of settings by the rule of rudder calibrate. Writes a result for each
    decoding, one page of tables and a figure of CHAIR_S against time per token. If it is interrupted, repeat the
    command. With more methods or decodings it generates only what is new.
    """
    given = dict(locals())
    with refusing_bad_input():
        from ..compare import compare as run
        from ..compare import find_images
        from ..compare.run import check_folder
        from ..evaluate.tables import short_table, summary
        from ..evaluate.tasks import DataOptions
        from ..runtime.models import load_model
        from ..runtime.progress import ProgressBar

        options = _options(given)
        check_folder(out)
        found = find_images(DataOptions(data, captions, images, split, seed=seed), options)
        loaded = load_model(model, dtype, choose_device(device), rudder, revision)
    with reporting_failure(), ProgressBar() as bar:
        results = run(loaded, found, out, options, bar)
    for result in results.values():
        short_table(result).print()
        for line in summary(result):
            typer.echo(line)
    typer.echo(f"Intervals, controls and all metrics: {out / 'table.md'}")
    next_steps(f"rudder score {out / 'greedy'}:vcd {out / 'greedy'}:rudder-beta, for any two methods")


def _options(given: dict[str, Any]) -> CompareOptions:
    from ..benchmark.costs import CostSettings
    from ..calibrate import Rule
    from ..compare import CompareOptions
    from ..evaluate.methods import parse_names

    same = ("limit", "beam_limit", "pope_limit", "tune_limit", "max_new_tokens", "top_p", "batch_size", "seed")
    return CompareOptions(
        methods=tuple(parse_names(given["methods"])),
        decodings=parse_words("--decodings", given["decodings"], ("greedy", "beam", "nucleus")),
        rule=Rule(given["objective"], seed=given["seed"]),
        costs=CostSettings(rounds=given["rounds"], num_beams=given["num_beams"], seed=given["seed"]),
        command=command_line(),
        **{name: given[name] for name in same},
    )
