"""`rudder`: the command line's entry point."""

from __future__ import annotations

from typing import Annotated

import typer

from .. import __version__
from . import analyze, benchmark, calibrate, compare, demo, env, evaluate, generate, push, score, search, verify
from .common import copyable, interruptible
from .options import for_help

app = typer.Typer(
    name="rudder",
    help="Steer vision-language models towards what is in the image (RUDDER).",
    epilog=copyable(
        "rudder generate",
        "rudder generate photo.jpg --model llava-hf/llava-1.5-7b-hf",
        "rudder evaluate --out results/scenes",
        "rudder score results/scenes --lineage strict",
        "rudder score results/scenes --table",
        "rudder calibrate --out calibration",
        "rudder compare --out comparison",
        "rudder analyze --out analysis",
        "rudder benchmark",
        "rudder demo",
        "rudder push llava-1.5-7b my-name/llava-1.5-7b-rudder --dry-run",
        "rudder search llava-hf/llava-1.5-7b-hf",
        "rudder verify --model llava-hf/llava-1.5-7b-hf",
        "rudder env",
    ),
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for module in (generate, evaluate, score, calibrate, compare, analyze, benchmark, demo, push, search, verify, env):
    name = module.__name__.rpartition(".")[2]
    command = for_help(getattr(module, name))
    # Ctrl-C is how the page of `demo` is meant to end.
    app.command(name, epilog=module.EXAMPLES)(command if module is demo else interruptible(command))


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Steer vision-language models towards what is in the image (RUDDER)."""
