"""`rudder compare`: every decoding method side by side on one model, tuned alike."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options as shared
from .common import (
    choose_device,
    command_line,
    copyable,
    next_steps,
    print_result,
    refusing_bad_input,
    reporting_failure,
)

EXAMPLES = copyable(
    "rudder compare --out comparison",
    "rudder compare --methods vanilla,rudder,vcd --decodings greedy --out quick",
    "rudder compare --model ID --data coco --split val2014 --out comparison",
)


def compare(
    out: shared.OutOption,
    model: shared.ModelOption = None,
    data: Annotated[Path | None, typer.Option(help="COCO's folder.", show_default="the embedded scenes")] = None,
    split: shared.SplitOption = None,
    methods: Annotated[
        str,
        typer.Option(
            help="Methods by commas, or groups: all, rudder, contrast, peers, controls; vanilla is always run."
        ),
    ] = "all",
    decodings: Annotated[str, typer.Option(help="Decodings by commas: greedy, beam, nucleus.")] = "greedy",
    limit: Annotated[int, typer.Option(min=1, help="Images to evaluate captions on.")] = 500,
    pope_limit: Annotated[int, typer.Option(min=0, help="Images that yes/no questions are asked about.")] = 40,
    tune_limit: Annotated[int, typer.Option(min=2, help="Calibration images that settings are chosen on.")] = 80,
    max_new_tokens: shared.MaxNewTokensOption = None,
    batch_size: shared.BatchSizeOption = 50,
    seed: shared.SeedOption = 0,
    device: shared.DeviceOption = "auto",
    dtype: shared.DtypeOption = "auto",
) -> None:
    """Tune every method on the same calibration images, then compare quality and cost on others.

    Each method chooses among the same number of settings by the rule of rudder calibrate. Writes a result for each
    decoding and one page of tables. If it is interrupted, repeat the command. With more methods or decodings it
    generates only what is new.
    """
    with refusing_bad_input():
        from ..benchmark.costs import CostSettings
        from ..calibrate import Rule
        from ..compare import CompareOptions, find_images
        from ..compare import compare as run
        from ..compare.run import check_folder
        from ..evaluate.methods import parse_names
        from ..evaluate.run import RunOptions
        from ..evaluate.tasks import DataOptions
        from ..runtime.models import load_model
        from ..runtime.report import ProgressBar

        options = CompareOptions(
            methods=tuple(parse_names(methods)),
            decodings=tuple(dict.fromkeys(name.strip() for name in decodings.split(","))),
            limit=limit,
            pope_limit=pope_limit,
            tune_limit=tune_limit,
            rule=Rule(seed=seed),
            max_new_tokens=max_new_tokens,
            costs=CostSettings(rounds=8, seed=seed),
            run=RunOptions(batch_size, seed, command=command_line()),
        )
        check_folder(out)
        found = find_images(DataOptions(data, split=split, seed=seed), options)
        loaded = load_model(model, dtype, choose_device(device))
    with reporting_failure(), ProgressBar() as bar:
        results = run(loaded, found, out, options, bar)
    for result in results.values():
        print_result(result)
    typer.echo(f"Intervals, controls and all metrics: {out / 'table.md'}")
    name, result = next(iter(results.items()))
    if len(result.methods) == 1:
        next_steps("more images to choose on (--tune-limit)", "other --methods")
    else:
        next_steps(f"rudder score {out / name}:vanilla {out / name}:{result.methods[-1].name}, for any two methods")
