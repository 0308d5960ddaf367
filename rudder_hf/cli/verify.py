"""`rudder verify`: whether RUDDER does on this machine and this model what it does in the tests."""

from __future__ import annotations

from typing import Annotated

import typer

from . import options as shared
from .common import FAILED, choose_device, copyable, next_steps, refusing_bad_input

EXAMPLES = copyable(
    "rudder verify",
    "rudder verify --model llava-hf/llava-1.5-7b-hf --dtype bfloat16 --device cuda",
    "rudder verify --model Qwen/Qwen2.5-VL-7B-Instruct --no-compile",
)


def verify(
    model: shared.ModelOption = None,
    dtype: shared.DtypeOption = "auto",
    device: shared.DeviceOption = "auto",
    new_tokens: Annotated[int, typer.Option(min=3, help="Length of each answer.")] = 16,
    no_compile: Annotated[
        bool, typer.Option("--no-compile", help="Do not compare compiled with eager decoding, which takes longest.")
    ] = False,
) -> None:
    """Check RUDDER on your model and device in a few minutes, and print a block for a bug report.

    The checks: that the hook adds what it says, that switched off is the stock model bit for bit, and that compiled
    equals eager. Exit code 1 if a check fails.
    """
    with refusing_bad_input():
        from ..benchmark.verify import Verifier, report
        from ..runtime.answers import long_prompt
        from ..runtime.models import load_model

        loaded = load_model(model, dtype, choose_device(device))
        inputs = long_prompt(loaded.processor, loaded.model, tokens=1)
        verifier = Verifier(loaded.model, inputs, loaded.settings_for("rudder-beta"), new_tokens)
    checks = verifier.run(not no_compile)
    typer.echo(report(loaded.name, verifier, checks))
    if any(check.passed is False for check in checks):
        next_steps("report the failed checks with the lines above", "rudder env")
        raise typer.Exit(FAILED)
    next_steps(
        "rudder evaluate --out results" if model is None else f"rudder calibrate --model {model} --out calibration"
    )
