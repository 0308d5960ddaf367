"""What the commands share: options, errors in one line, exit codes, lists in options.

An option has one name, one meaning and one help text everywhere. A command writes `device: DeviceOption = "auto"`:
type and help come from here, the default is the command's own.
"""

from __future__ import annotations

import functools
import inspect
import os
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

if TYPE_CHECKING:
    from ..evaluate.result import Result

FAILED = 1
BAD_INPUT = 2
INTERRUPTED = 130
SHOW_TRACEBACK = "RUDDER_TRACEBACK"

# The model and where it runs.
ModelOption = Annotated[
    str | None,
    typer.Option(
        help="Hub id (or ID@REVISION) or folder of a model or of RUDDER settings, or embedded:NAME.",
        show_default="the embedded model",
    ),
]
DeviceOption = Annotated[str, typer.Option(help="Device to run on: auto, cpu, cuda, ...")]
DtypeOption = Annotated[
    Literal["auto", "float32", "bfloat16", "float16"],
    typer.Option(metavar="NAME", help="Dtype of the weights: auto, float32, bfloat16 or float16."),
]
BatchSizeOption = Annotated[int, typer.Option(min=1, help="Images per batch.")]
SeedOption = Annotated[int, typer.Option(min=0, help="Seed of every random draw: images, sampling, intervals.")]

# RUDDER's settings, one option each; `given_settings` collects them.
LayerOption = Annotated[int | None, typer.Option(help="Decoder layer, 0-based, negative from the end.")]
ModeOption = Annotated[Literal["beta", "add"] | None, typer.Option(help="Gated (beta) or constant (add) strength.")]
AlphaMaxOption = Annotated[float | None, typer.Option(help="Strength of the push.")]
ContrastOption = Annotated[
    float | None, typer.Option(help="Not in the paper: image-value contrast, such as 0.6; off unless given.")
]
SensitivityOption = Annotated[float | None, typer.Option(help="Sensitivity of the gate.")]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Another setting of RUDDER, such as span=text; can be repeated."),
]
MethodSettingsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="A setting of RUDDER, or METHOD.NAME=VALUE, of a method; can be repeated."
    ),
]

# Images, annotations and questions.
DataOption = Annotated[
    Path | None,
    typer.Option(
        help="COCO's folder or instances_*.json, or a folder of images without annotations.",
        show_default="the embedded scenes",
    ),
]
ImagesOption = Annotated[Path | None, typer.Option(help="Folder of the images, if it is not in --data.")]
SplitOption = Annotated[str | None, typer.Option(help="Split of COCO, such as val2014, or of the scenes.")]
PromptOption = Annotated[str | None, typer.Option(help="Prompt; for yes/no questions with {question} in it.")]
MaxNewTokensOption = Annotated[
    int | None,
    typer.Option(min=1, help="Longest answer, in tokens.", show_default="512, scenes 120, yes/no 16, scenes-pope 8"),
]

# Methods, scores and results.
MethodsOption = Annotated[
    str,
    typer.Option(
        help="Methods by commas, or groups: all, rudder, contrast, peers, controls; differences are to the first one "
        "of the folder.",
        show_default="vanilla, rudder-beta, rudder-add",
    ),
]
VanillaMethodsOption = Annotated[
    str,
    typer.Option(help="Methods by commas, or groups: all, rudder, contrast, peers, controls; vanilla is always run."),
]
LineageOption = Annotated[
    Literal["pattern", "wordnet", "strict"],
    typer.Option(metavar="NAME", help="Lineage of CHAIR: pattern, wordnet or strict."),
]
ParserOption = Annotated[
    Literal["robust", "official", "opera"],
    typer.Option(metavar="NAME", help="Parser of POPE's answers: robust, official or opera."),
]
OutOption = Annotated[Path, typer.Option(help="New folder, or the folder of the same run, which is continued.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


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
            there = out is not None and out.exists()
            rest = f" What is finished is kept in {out}: repeat the command to go on." if there else ""
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


def require_extra(extra: str, package: str) -> None:
    """See that the package of an extra is installed before anything large is loaded.

    Raises:
        ImportError: It is not, with the command that installs it.
    """
    import importlib.util

    if importlib.util.find_spec(package) is None:
        raise ImportError(f"This needs {package}: pip install 'rudder-hf[{extra}]'.")


def parse_numbers(option: str, text: str, kind: type[float] = float) -> tuple[float, ...]:
    """Numbers separated by commas.

    Raises:
        ValueError: A part is not a number of that kind.
    """
    try:
        return tuple(kind(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ValueError(f"{option} is {text!r}; give numbers separated by commas.") from None


def for_help(command: Callable[..., None]) -> Callable[..., None]:
    """The command, with paragraphs in its help that fill the terminal's lines."""
    paragraphs = str(inspect.getdoc(command)).split("\n\n")
    command.__doc__ = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    return command


def given_settings(given: dict[str, Any]) -> dict[str, Any]:
    """RUDDER's settings that the user gave, by an option of their own or with --set.

    Raises:
        ValueError: A setting is given twice, unknown, out of range, without effect, or written in another form.
    """
    from ..core.settings import check_setting
    from ..evaluate.methods import parse_settings

    found: dict[str, Any] = {
        name: given[name] for name in ("layer", "mode", "alpha_max", "k", "contrast") if given.get(name) is not None
    }
    for name, value in parse_settings(given["settings"] or [], methods=()).get("", {}).items():
        if name in found:
            raise ValueError(f"{name} is given twice: --set {name}=... and --{name.replace('_', '-')}.")
        if name == "force":  # a setting of a call, for prompts without an image
            raise ValueError("--set force has no effect here: it steers prompts without an image, and all have one.")
        found[name] = value
    return {name: check_setting(name, value) for name, value in found.items()}
