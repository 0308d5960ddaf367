"""What the commands share besides options: errors in one line, exit codes, lists in options, examples in help."""

from __future__ import annotations

import functools
import os
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer

if TYPE_CHECKING:
    from ..evaluate.result import Result

FAILED = 1
BAD_INPUT = 2
INTERRUPTED = 130
SHOW_TRACEBACK = "RUDDER_TRACEBACK"


def copyable(*commands: str) -> str:
    """The end of a help page: commands to copy, one per line."""
    return "\n\n".join(["Commands to copy:", *commands])


def command_line() -> str:
    """The command that the user typed, without the folder of the program."""
    return shlex.join(["rudder", *sys.argv[1:]])


def next_steps(*commands: str) -> None:
    """Print the last line of a command: what to do next."""
    typer.echo(f"Next: {', or '.join(commands)}")


def print_result(result: Result, folder: Path | None = None) -> None:
    """Print a result as a table, what is to be said about it, and where the rest is."""
    from ..evaluate import tables

    tables.short_table(result).print()
    for line in tables.summary(result):
        typer.echo(line)
    if folder is not None:
        typer.echo(f"Intervals, controls and all metrics: {folder / 'table.md'}; numbers: {folder / 'result.json'}")


def stop(message: object, code: int) -> NoReturn:
    """Print one line on stderr and leave."""
    typer.echo(f"Error: {' '.join(str(message).split())}", err=True)
    raise typer.Exit(code)


def interruptible(command: Callable[..., None]) -> Callable[..., None]:
    """Let Ctrl-C end a command with exit code 130 and one sentence on how to go on."""

    @functools.wraps(command)
    def run(**given: Any) -> None:
        try:
            command(**given)
        except KeyboardInterrupt:
            out = given.get("out")
            rest = "" if out is None else f" What is finished is kept in {out}: repeat the command to go on."
            # Processes of one command, which `accelerate launch` numbers, are interrupted together, and one speaks.
            if os.environ.get("RANK", "0") == "0":
                typer.echo(f"\nInterrupted.{rest}", err=True)
            raise typer.Exit(INTERRUPTED) from None

    return run


@contextmanager
def refusing_bad_input() -> Iterator[None]:
    """Around code that depends on the user's input: errors are the user's to fix, exit code 2."""
    try:
        yield
    except (ValueError, TypeError, KeyError, OSError, ImportError) as error:
        if os.environ.get(SHOW_TRACEBACK):
            raise
        stop(error, BAD_INPUT)


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Show each of RUDDER's warnings once, as one line."""
    told: set[str] = set()
    with warnings.catch_warnings():
        others = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **options: Any) -> None:
            if category.__name__ != "RudderWarning":
                others(message, category, *place, **options)
            elif str(message) not in told:
                told.add(str(message))
                typer.echo(f"Warning: {message}", err=True)

        warnings.showwarning = show
        yield


@contextmanager
def reporting_failure() -> Iterator[None]:
    """Around the work itself: bad input that shows only now is exit code 2, other failures 1; warnings are lines."""
    try:
        with _plain_warnings():
            yield
    except typer.Exit:
        raise
    except Exception as error:
        if os.environ.get(SHOW_TRACEBACK):
            raise
        from ..core.errors import UnsupportedModelError
        from ..runtime.errors import InputError

        if isinstance(error, (InputError, UnsupportedModelError, BlockingIOError)):
            stop(error, BAD_INPUT)
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


def require_extra(extra: str, **packages: str) -> None:
    """See that the packages of an extra, each named by its module, are installed before anything large is loaded.

    Raises:
        ImportError: Some are not installed, with the command that installs them.
    """
    import importlib.util

    missing = [package for module, package in packages.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise ImportError(f"This needs {' and '.join(missing)}: pip install 'rudder-hf[{extra}]'.")


def parse_numbers(option: str, text: str, kind: type[float] = float) -> tuple[float, ...]:
    """Numbers separated by commas.

    Raises:
        ValueError: A part is not a number of that kind.
    """
    try:
        return tuple(kind(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ValueError(f"{option} is {text!r}; give numbers separated by commas.") from None
