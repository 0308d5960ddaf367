"""`rudder`: the command line's entry point."""

from __future__ import annotations

from typing import Annotated

import typer

from .. import __version__
from . import analyze, benchmark, calibrate, compare, demo, env, evaluate, generate, push, score, search, verify
from .common import copyable, interruptible
from .options import for_help

MODULES = (generate, evaluate, score, calibrate, compare, analyze, benchmark, demo, push, search, verify, env)
app = typer.Typer(
    name="rudder",
    help="Steer vision-language models towards what is in the image (RUDDER).",
    epilog=copyable(*(module.EXAMPLES.split("\n\n")[1] for module in MODULES)),  # the first one of each
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for module in MODULES:
    name = module.__name__.rpartition(".")[2]
    command = for_help(getattr(module, name))
    app.command(name, epilog=module.EXAMPLES)(interruptible(command))


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
