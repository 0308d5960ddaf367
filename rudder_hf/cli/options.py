"""The options that several commands share, each with one name, one meaning and one help text.

A command writes `device: DeviceOption = "auto"`: type and help come from here, the default is the command's own. What
few users need is in `ADVANCED`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

import typer

# Parameters that stand in a panel of their own at the end of every help page.
ADVANCED = frozenset(
    """
    captions ids skip_unreadable revision recall_floor span
    num_beams top_p temperature no_likelihood lineage parser bootstrap
    """.split()  # noqa: SIM905 - one name a line would hide the list
)


# The model and where it runs.
ModelOption = Annotated[
    str | None,
    typer.Option(
        help="Hub id or folder of a model or of RUDDER settings, or embedded:NAME.", show_default="the embedded model"
    ),
]
RevisionOption = Annotated[str | None, typer.Option(help="Commit, tag or branch of the model.")]
RudderOption = Annotated[str | None, typer.Option(help="Folder or Hub id of RUDDER settings for the model.")]
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
ImagesOption = Annotated[Path | None, typer.Option(help="Folder of the images, if it is not in --data.")]
CaptionsOption = Annotated[Path | None, typer.Option(help="captions_*.json, if it is not beside the instances.")]
SplitOption = Annotated[str | None, typer.Option(help="Split of COCO, such as val2014, or of the scenes.")]
IdsOption = Annotated[Path | None, typer.Option(help="Exactly these images: JSON list, or one id per line.")]
SkipUnreadableOption = Annotated[
    bool, typer.Option("--skip-unreadable", help="Leave out images that cannot be read, and count them.")
]
PromptOption = Annotated[str | None, typer.Option(help="Prompt; for yes/no questions with {question} in it.")]
MaxNewTokensOption = Annotated[
    int | None, typer.Option(min=1, help="Longest answer, in tokens.", show_default="512, scenes 120, yes/no 16")
]
NumBeamsOption = Annotated[int, typer.Option(min=1, help="Number of beams of beam search.")]
TopPOption = Annotated[float, typer.Option(help="Probability mass of nucleus sampling.")]

# Methods, scores and results.
MethodsOption = Annotated[
    str,
    typer.Option(
        help="Methods by commas, or groups: all, rudder, peers, controls; differences are to the first.",
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
BootstrapOption = Annotated[int, typer.Option(min=1, help="Bootstrap draws for intervals.")]
OutOption = Annotated[Path, typer.Option(help="New folder, or the folder of the same run, which is continued.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def for_help(command: Callable[..., None]) -> Callable[..., None]:
    """The command, with advanced options in a panel of their own, and paragraphs that fill the terminal's lines."""
    paragraphs = str(inspect.getdoc(command)).split("\n\n")
    command.__doc__ = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    command.__annotations__ = get_type_hints(command, include_extras=True)
    for name in ADVANCED & command.__annotations__.keys():
        option = get_args(command.__annotations__[name])[-1]
        option.rich_help_panel = "Advanced"
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
