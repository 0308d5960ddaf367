"""What the commands share: errors in one line, exit codes, examples at the end of a help page."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer

FAILED = 1
BAD_INPUT = 2
SHOW_TRACEBACK = "RUDDER_TRACEBACK"


def copyable(*commands: str) -> str:
    """The end of a help page: commands to copy, one per line."""
    return "\n\n".join(["Commands to copy:", *commands])


def stop(message: object, code: int) -> NoReturn:
    """Print one line on stderr and leave."""
    typer.echo(f"Error: {' '.join(str(message).split())}", err=True)
    raise typer.Exit(code)


@contextmanager
def refusing_bad_input() -> Iterator[None]:
    """Around what depends on what the user gave: errors are theirs to fix, exit code 2."""
    try:
        yield
    except (ValueError, TypeError, KeyError, OSError, ImportError) as error:
        if os.environ.get(SHOW_TRACEBACK):
            raise
        stop(error, BAD_INPUT)


@contextmanager
def reporting_failure() -> Iterator[None]:
    """Around the work itself: whatever goes wrong is one line and exit code 1."""
    try:
        yield
    except typer.Exit:
        raise
    except Exception as error:
        if os.environ.get(SHOW_TRACEBACK):
            raise
        stop(f"{type(error).__name__}: {error} (set {SHOW_TRACEBACK}=1 to see where)", FAILED)


def choose_device(device: str) -> str:
    """Resolve "auto" to the accelerator if there is one, and refuse a device that torch does not have.

    Raises:
        ValueError: There is no such device.
    """
    import torch

    if device == "auto":
        found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return "cpu" if found is None else found.type
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"--device {device} is not usable here: {str(error).splitlines()[0]}") from error
    return device
