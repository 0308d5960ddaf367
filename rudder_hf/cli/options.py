"""The options that several commands share, each with one name, one meaning and one help text.

A command writes `device: DeviceOption = "auto"`: type and help come from here, the default is the command's own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

# The model and where it runs.
ModelOption = Annotated[
    str | None,
    typer.Option(
        help="Hub id or folder of a model or of RUDDER settings, or embedded:NAME.", show_default="the embedded model"
    ),
]
RevisionOption = Annotated[str | None, typer.Option(help="Commit, tag or branch of the model.")]
RudderOption = Annotated[str | None, typer.Option(help="Folder or Hub id of RUDDER settings for the model.")]
DeviceOption = Annotated[str, typer.Option(help="Where to run: auto, cpu, cuda, ...")]
DtypeOption = Annotated[Literal["auto", "float32", "bfloat16", "float16"], typer.Option(help="Type of the weights.")]
BatchSizeOption = Annotated[int, typer.Option(min=1, help="Images per batch.")]
SeedOption = Annotated[int, typer.Option(min=0, help="Seed of every random draw: images, sampling, intervals.")]

# RUDDER's settings, one option each; `given_settings` collects them.
LayerOption = Annotated[int | None, typer.Option(help="Decoder layer, 0-based, negative from the end.")]
ModeOption = Annotated[Literal["beta", "add"] | None, typer.Option(help="Gated (beta) or constant (add) strength.")]
AlphaMaxOption = Annotated[float | None, typer.Option(help="Strength of the push.")]
SensitivityOption = Annotated[float | None, typer.Option(help="Sensitivity of the gate.")]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="NAME=VALUE for RUDDER, or METHOD.NAME=VALUE, such as rudder-add.alpha_max=5."),
]

# Images, annotations and questions.
ImagesOption = Annotated[Path | None, typer.Option(help="Folder of the images, if it is not in --data.")]
CaptionsOption = Annotated[Path | None, typer.Option(help="captions_*.json, if it is not beside the instances.")]
SplitOption = Annotated[str | None, typer.Option(help="Of COCO, such as val2014, or of the scenes.")]
IdsOption = Annotated[Path | None, typer.Option(help="Exactly these images: JSON list, or one id per line.")]
SkipUnreadableOption = Annotated[
    bool, typer.Option("--skip-unreadable", help="Leave out images that cannot be read, and count them.")
]
PromptOption = Annotated[str | None, typer.Option(help="What to ask; for questions with {question} in it.")]
MaxNewTokensOption = Annotated[
    int | None, typer.Option(min=1, help="Longest answer.", show_default="512, scenes 120, yes/no 16")
]
NumBeamsOption = Annotated[int, typer.Option(min=1, help="Of beam search.")]
TopPOption = Annotated[float, typer.Option(help="Of nucleus sampling.")]

# Methods, scores and results.
MethodsOption = Annotated[
    str,
    typer.Option(help="Separated by commas, or groups: all, rudder, peers, controls; differences are to the first."),
]
LineageOption = Annotated[Literal["pattern", "wordnet", "strict"], typer.Option(help="Of CHAIR.")]
BootstrapOption = Annotated[int, typer.Option(min=1, help="Bootstrap draws for intervals.")]
MarginOption = Annotated[
    float,
    typer.Option(
        min=0,
        help="RUDDER's controls are without effect within this share of its own change.",
        show_default="a third",
    ),
]
_OUT = typer.Option(help="A new folder, or that of the same run, which is continued.")
OutOption = Annotated[Path, _OUT]
OptionalOutOption = Annotated[Path | None, _OUT]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def given_settings(given: dict[str, Any], *names: str) -> dict[str, Any]:
    """RUDDER's settings that the user gave: options that were left out are None and are dropped."""
    return {name: given[name] for name in names if given[name] is not None}
