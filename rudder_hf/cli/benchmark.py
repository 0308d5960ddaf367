"""`rudder benchmark`: what decoding methods cost on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options as shared
from .common import choose_device, copyable, next_steps, refusing_bad_input, reporting_failure

EXAMPLES = copyable(
    "rudder benchmark",
    "rudder benchmark --model llava-hf/llava-1.5-7b-hf --dtype bfloat16",
    "rudder benchmark --methods all --out costs.json",
)


def benchmark(
    model: shared.ModelOption = None,
    methods: Annotated[
        str,
        typer.Option(
            help="Methods by commas, or groups: all, rudder, contrast, peers, controls; vanilla is always run."
        ),
    ] = "rudder",
    new_tokens: Annotated[int, typer.Option(min=2, help="Length of each answer.")] = 64,
    rounds: Annotated[int, typer.Option(min=1, help="Timed rounds.")] = 15,
    batch_size: shared.BatchSizeOption = 1,
    dtype: shared.DtypeOption = "auto",
    device: shared.DeviceOption = "auto",
    out: Annotated[Path | None, typer.Option(help="New .json file.", show_default="none is written")] = None,
) -> None:
    """Compare vanilla, RUDDER-Beta and RUDDER-Add, or any methods, interleaved on the same model and prompt.

    Prints throughput relative to vanilla with its spread, forward passes, operators and, on CUDA, memory. The file has
    all raw rounds, too. Nothing is ever overwritten.
    """
    with refusing_bad_input():
        from ..benchmark.report import check_new_file, cost_table, notes
        from ..evaluate.methods import parse_names

        if out is not None:
            check_new_file(out)
        names = parse_names(methods)

        from ..benchmark import CostSettings, run_benchmark
        from ..runtime.models import load_model
        from ..runtime.report import ProgressBar

        settings = CostSettings(new_tokens=new_tokens, rounds=rounds, warmup=2)
        loaded = load_model(model, dtype, choose_device(device))

    with ProgressBar() as bar, reporting_failure():
        report = run_benchmark(loaded, settings, names, batch_size, progress=bar)
    cost_table(report).print()
    for line in notes(report):
        typer.echo(line)
    if out is not None:
        with refusing_bad_input():
            typer.echo(f"Written to {report.save(out)}")
    next_steps("rudder compare --out comparison, for quality beside cost")
