"""`rudder benchmark`: what decoding methods cost on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from . import options as shared
from .common import choose_device, copyable, refusing_bad_input, reporting_failure

EXAMPLES = copyable(
    "rudder benchmark --quick --shape deep",
    "rudder benchmark --out benchmarks",
    "rudder benchmark --model llava-hf/llava-1.5-7b-hf --dtype bfloat16",
    "rudder benchmark --methods all --model embedded --out costs.json",
)
QUICK = {"rounds": 3, "new_tokens": 16, "warmup": 1}


def benchmark(
    shape: Annotated[
        Literal["wide", "deep", "both", "tiny"],
        typer.Option(
            metavar="NAME",
            help="wide: 2 layers as in LLaVA-1.5-7B (needs 2 GB); deep: 32 narrow ones; both; tiny: to try it.",
        ),
    ] = "both",
    model: Annotated[str | None, typer.Option(help="A model's Hub id or folder, instead of a shape.")] = None,
    methods: Annotated[
        str, typer.Option(help="Methods by commas, or groups: all, rudder, peers, controls; vanilla is always run.")
    ] = "rudder",
    new_tokens: Annotated[int | None, typer.Option(min=2, help="Length of each answer.", show_default="64")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Timed rounds.", show_default="15")] = None,
    batch_size: shared.BatchSizeOption = 1,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Length of the prompt, image included.")] = 64,
    dtype: shared.DtypeOption = "float32",
    layer: Annotated[
        int | None, typer.Option(help="RUDDER's layer; else the model's own, or 30/32 of the depth.")
    ] = None,
    device: shared.DeviceOption = "auto",
    seed: shared.SeedOption = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="New .json file, or a folder in which it is numbered.", show_default="the current folder"),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help=f"{QUICK['rounds']} rounds of {QUICK['new_tokens']} tokens: for a first look, no results."
        ),
    ] = False,
) -> None:
    """Compare vanilla, RUDDER-Beta and RUDDER-Add, or any methods, interleaved on the same model and prompt.

    Reports throughput relative to vanilla with its spread, forward passes, operators and memory, as a table and as a
    JSON file with all raw rounds. Nothing is ever overwritten.
    """
    with refusing_bad_input():
        from ..benchmark.report import new_result_file
        from ..evaluate.methods import parse_names

        path, names = new_result_file(out), parse_names(methods)

        from .. import benchmark as bench
        from ..benchmark.table import cost_table, notes
        from ..runtime.progress import ProgressBar

        given: dict[str, Any] = {"new_tokens": new_tokens, "rounds": rounds}
        settings = bench.BenchmarkSettings(
            batch_size=batch_size,
            prompt_tokens=prompt_tokens,
            dtype=dtype,
            device=choose_device(device),
            layer=layer,
            seed=seed,
            **{**(QUICK if quick else {}), **{name: value for name, value in given.items() if value is not None}},
        )

    def make(name: str) -> bench.BenchmarkModel:
        # What is wrong with a model is the user's input, found when its turn comes.
        with refusing_bad_input():
            return bench.benchmark_model(name if model else bench.SHAPES[name], settings)

    wanted = [model] if model else ["wide", "deep"] if shape == "both" else [shape]
    with ProgressBar() as bar, reporting_failure():
        report = bench.run_benchmark([lambda name=name: make(name) for name in wanted], settings, names, bar)  # type: ignore[misc]
    with refusing_bad_input():
        report.save(path)
    cost_table(report).print()
    for line in notes(report):
        typer.echo(line)
    typer.echo(f"Written to {path}")
