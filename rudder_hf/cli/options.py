"""The options that several commands share, each with one name, one meaning and one help text.

A command writes `device: DeviceOption = "auto"`: type and help come from here, the default is the command's own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

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
    int | None, typer.Option(min=1, help="Longest answer, in tokens.", show_default="512, scenes 120, yes/no 16")
]

# Methods, scores and results.
MethodsOption = Annotated[
    str,
    typer.Option(
        help="Methods by commas, or groups: all, rudder, contrast, peers, controls; differences are to the first.",
        show_default="vanilla, rudder-beta, rudder-add",
    ),
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
