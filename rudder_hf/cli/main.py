"""`rudder`: the command line's entry point."""

from __future__ import annotations

from typing import Annotated

import typer

from .. import __version__
from . import evaluate, generate, hub, machine, pages, tune
from .common import copyable, for_help, interruptible

MODULES = (generate, evaluate, tune, pages, machine, hub)
app = typer.Typer(
    name="rudder",
    help="Steer vision-language models towards what is in the image (RUDDER).",
    epilog=copyable(*(examples[0] for module in MODULES for examples in module.EXAMPLES.values())),
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for module in MODULES:
    for name, examples in module.EXAMPLES.items():
        command = for_help(getattr(module, f"{name}_command"))
        app.command(name, epilog=copyable(*examples))(interruptible(command))


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
