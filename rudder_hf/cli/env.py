"""`rudder env`: what is installed and what it runs on, for bug reports."""

from __future__ import annotations

import json

import typer

from .common import copyable, next_steps
from .options import JsonOption

EXAMPLES = copyable("rudder env", "rudder env --json")


def env(as_json: JsonOption = False) -> None:
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
    next_steps("rudder verify, to check this machine and a model")
