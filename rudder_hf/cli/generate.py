"""`rudder generate`: the answer of a model to a picture, without and with RUDDER."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .common import choose_device, copyable, refusing_bad_input, reporting_failure

if TYPE_CHECKING:
    from PIL.Image import Image

    from .answers import Answer

EXAMPLES = copyable(
    "rudder generate",
    "rudder generate --trace --alpha-max 8",
    "rudder generate photo.jpg --model llava-hf/llava-1.5-7b-hf",
    "rudder generate a.jpg b.jpg --model FOLDER --layer 20 --alpha-max 5 --json",
)
SYNTHETIC = "synthetic picture"


class ModeChoice(str, Enum):
    """RUDDER-Beta or RUDDER-Add."""

    BETA = "beta"
    ADD = "add"


class DtypeChoice(str, Enum):
    """Types of weights."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


def generate(
    images: Annotated[
        list[Path] | None,
        typer.Argument(metavar="IMAGE", help="Pictures, answered as one batch; none makes a synthetic one."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Hub id or folder; without it a tiny model with random weights is made.")
    ] = None,
    prompt: Annotated[str, typer.Option(help="What to ask.")] = "Describe this image.",
    layer: Annotated[int | None, typer.Option(help="Decoder layer, 0-based, negative from the end.")] = None,
    mode: Annotated[ModeChoice | None, typer.Option(help="Gated (beta) or constant (add) strength.")] = None,
    alpha_max: Annotated[float | None, typer.Option(help="Strength of the push.")] = None,
    k: Annotated[float | None, typer.Option(help="Sensitivity of the gate.")] = None,
    c: Annotated[float | None, typer.Option(help="Concentration of the gate.")] = None,
    g_min: Annotated[float | None, typer.Option(help="Least gate.")] = None,
    g_max: Annotated[float | None, typer.Option(help="Largest gate.")] = None,
    norm_cap: Annotated[float | None, typer.Option(help="Longest push (tau).")] = None,
    steer_first_token: Annotated[
        bool | None, typer.Option("--steer-first-token/--no-steer-first-token", help="Steer the first token too.")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 64,
    trace: Annotated[bool, typer.Option("--trace", help="Show similarity, gate and push of every token.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    device: Annotated[str, typer.Option(help="Where to run: auto, cpu, cuda, ...")] = "auto",
    dtype: Annotated[DtypeChoice, typer.Option(help="Type of the weights.")] = DtypeChoice.AUTO,
) -> None:
    """Answer a question about pictures, without and with RUDDER, and show what the gate did.

    Settings that are not given come from the model's preset. Models without one need --layer and --alpha-max.
    """
    given = {
        "layer": layer,
        "mode": None if mode is None else mode.value,
        "alpha_max": alpha_max,
        "k": k,
        "c": c,
        "g_min": g_min,
        "g_max": g_max,
        "norm_cap": norm_cap,
        "steer_first_token": steer_first_token,
    }
    with refusing_bad_input():
        pictures = [read_picture(path) for path in images or []]
    with reporting_failure():
        with refusing_bad_input():
            from . import answers

            settings = {name: value for name, value in given.items() if value is not None}
            steered, processor = answers.load(model, settings, choose_device(device), dtype.value)
        results = answers.ask(steered, processor, pictures or [answers.synthetic_picture()], prompt, max_new_tokens)
    names = [str(path) for path in images or []] or [SYNTHETIC]
    record = {
        "model": model or "tiny random LLaVA",
        "note": answers.toy_note() if model is None else None,
        "prompt": prompt,
        "settings": results[0].settings,
        "answers": [{"image": name, **result.record()} for name, result in zip(names, results, strict=True)],
    }
    if as_json:
        typer.echo(json.dumps(record, indent=2))
    else:
        _print(record, names, results, trace)


def read_picture(path: Path) -> Image:
    """Read a picture whole.

    Raises:
        ValueError: There is no such file, or it is not a picture that can be read.
    """
    from PIL import Image, UnidentifiedImageError

    if not path.exists():
        raise ValueError(f"There is no picture {path}.")
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give pictures.")
    try:
        with Image.open(path) as picture:
            return picture.convert("RGB")
    except UnidentifiedImageError:
        raise ValueError(f"{path} is not a picture that can be read.") from None
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"{path} cannot be read: {error}.") from error


def _print(record: dict[str, Any], names: list[str], results: list[Answer], trace: bool) -> None:
    """Print the answers for people."""
    from rich.console import Console

    from .answers import trace_table

    if record["note"]:
        typer.echo(f"{record['note']}\n")
    used = record["settings"]
    typer.echo(f"prompt:  {record['prompt']}")
    typer.echo(
        f"rudder:  mode {used['mode']}, layer {used['layer']}, alpha_max {used['alpha_max']:g}, k {used['k']:g}"
    )
    for name, result in zip(names, results, strict=True):
        typer.echo(f"\nimage:   {name}\nvanilla: {result.vanilla}\nsteered: {result.steered}\n{result.summary()}")
        if trace:
            Console().print(trace_table(result))
