"""`rudder benchmark`, `rudder verify` and `rudder env`: costs, checks and versions on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from . import common

EXAMPLES = {
    "benchmark": (
        "rudder benchmark",
        "rudder benchmark --model llava-hf/llava-1.5-7b-hf --dtype bfloat16",
        "rudder benchmark --methods all --out costs.json",
    ),
    "verify": (
        "rudder verify",
        "rudder verify --model llava-hf/llava-1.5-7b-hf --dtype bfloat16 --device cuda",
        "rudder verify --model Qwen/Qwen2.5-VL-7B-Instruct --no-compile",
    ),
    "env": (
        "rudder env",
        "rudder env --json",
    ),
}


def benchmark_command(
    model: common.ModelOption = None,
    methods: common.VanillaMethodsOption = "rudder",
    new_tokens: Annotated[int, typer.Option(min=2, help="Length of each answer.")] = 64,
    rounds: Annotated[int, typer.Option(min=1, help="Timed rounds.")] = 15,
    batch_size: common.BatchSizeOption = 1,
    dtype: common.DtypeOption = "auto",
    device: common.DeviceOption = "auto",
    out: Annotated[Path | None, typer.Option(help="New .json file.", show_default="none is written")] = None,
) -> None:
    """Compare vanilla, RUDDER-Beta and RUDDER-Add, or any methods, interleaved on the same model and prompt.

    Prints throughput relative to vanilla with its spread, forward passes, operators and, on CUDA, memory. The file has
    all raw rounds, too. Nothing is ever overwritten.
    """
    with common.refusing_bad_input():
        from ..benchmark.report import check_new_file, cost_table, notes
        from ..evaluate.methods import parse_names

        if out is not None:
            check_new_file(out)
        names = parse_names(methods)

        from ..benchmark import CostSettings, run_benchmark
        from ..runtime.models import load_model
        from ..runtime.report import ProgressBar

        settings = CostSettings(new_tokens=new_tokens, rounds=rounds, warmup=2)
        loaded = load_model(model, dtype, common.choose_device(device))

    with ProgressBar() as bar, common.reporting_failure():
        report = run_benchmark(loaded, settings, names, batch_size, progress=bar)
    cost_table(report).print()
    for line in notes(report):
        typer.echo(line)
    if out is not None:
        with common.refusing_bad_input():
            typer.echo(f"Written to {report.save(out)}")
    common.next_steps("rudder compare --out comparison, for quality beside cost")


def verify_command(
    model: common.ModelOption = None,
    dtype: common.DtypeOption = "auto",
    device: common.DeviceOption = "auto",
    new_tokens: Annotated[int, typer.Option(min=3, help="Length of each answer.")] = 16,
    no_compile: Annotated[
        bool, typer.Option("--no-compile", help="Do not compare compiled with eager decoding, which takes longest.")
    ] = False,
) -> None:
    """Check RUDDER on your model and device in a few minutes, and print a block for a bug report.

    The checks: that the hook adds what it says, that switched off is the stock model bit for bit, and that compiled
    equals eager. Exit code 1 if a check fails.
    """
    with common.refusing_bad_input():
        from ..benchmark.verify import Verifier, report
        from ..runtime.answers import long_prompt
        from ..runtime.models import load_model

        loaded = load_model(model, dtype, common.choose_device(device))
        inputs = long_prompt(loaded.processor, loaded.model, tokens=1)
        verifier = Verifier(loaded.model, inputs, loaded.settings_for("rudder-beta"), new_tokens)
    checks = verifier.run(not no_compile)
    typer.echo(report(loaded.name, verifier, checks))
    if any(check.passed is False for check in checks):
        common.next_steps("report the failed checks with the lines above", "rudder env")
        raise typer.Exit(common.FAILED)
    common.next_steps(
        "rudder evaluate --out results" if model is None else f"rudder calibrate --model {model} --out calibration"
    )


def env_command(as_json: common.JsonOption = False) -> None:
    """Print versions and hardware, to paste into a bug report."""
    from ..runtime.environment import hardware, versions

    report = {"versions": versions(), "hardware": hardware()}
    if as_json:
        typer.echo(json.dumps(report, indent=2))
        return
    for part in report.values():
        for name, value in part.items():
            shown = ", ".join(value) or "none" if isinstance(value, list) else value
            typer.echo(f"{name}: {'not installed' if shown is None else shown}")
    common.next_steps("rudder verify, to check this machine and a model")
