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
        str, typer.Option(help="Methods by commas, or groups: all, rudder, peers, controls; vanilla is always run.")
    ] = "rudder",
    new_tokens: Annotated[int, typer.Option(min=2, help="Length of each answer.")] = 64,
    rounds: Annotated[int, typer.Option(min=1, help="Timed rounds.")] = 15,
    batch_size: shared.BatchSizeOption = 1,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Length of the prompt, image included.")] = 64,
    dtype: shared.DtypeOption = "auto",
    device: shared.DeviceOption = "auto",
    seed: shared.SeedOption = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="New .json file, or a folder in which it is numbered.", show_default="the current folder"),
    ] = None,
) -> None:
    """Compare vanilla, RUDDER-Beta and RUDDER-Add, or any methods, interleaved on the same model and prompt.

    Reports throughput relative to vanilla with its spread, forward passes, operators and, on CUDA, memory, as a table
    and as a JSON file with all raw rounds. Nothing is ever overwritten.
    """
    with refusing_bad_input():
        from ..benchmark.report import cost_table, new_result_file, notes
        from ..evaluate.methods import parse_names

        path, names = new_result_file(out), parse_names(methods)

        from .. import benchmark as bench
        from ..runtime.progress import ProgressBar

        settings = bench.BenchmarkSettings(
            new_tokens=new_tokens,
            rounds=rounds,
            batch_size=batch_size,
            prompt_tokens=prompt_tokens,
            dtype=dtype,
            device=choose_device(device),
            seed=seed,
        )
        measured = bench.benchmark_model(model, settings)

    with ProgressBar() as bar, reporting_failure():
        report = bench.run_benchmark(measured, settings, names, bar)
    with refusing_bad_input():
        report.save(path)
    cost_table(report).print()
    for line in notes(report):
        typer.echo(line)
    typer.echo(f"Written to {path}")
    next_steps("rudder compare --out comparison, for quality beside cost")
