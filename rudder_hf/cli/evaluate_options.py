"""The options of `rudder evaluate`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class TaskChoice(StrEnum):
    """What to ask."""

    SCENES = "scenes"
    SCENES_POPE = "scenes-pope"
    CHAIR = "chair"
    POPE = "pope"
    MME = "mme"


class DecodingChoice(StrEnum):
    """How to write answers."""

    GREEDY = "greedy"
    BEAM = "beam"
    NUCLEUS = "nucleus"


class LineageChoice(StrEnum):
    """How CHAIR finds objects."""

    PATTERN = "pattern"
    WORDNET = "wordnet"
    STRICT = "strict"


class ParserChoice(StrEnum):
    """How POPE reads answers."""

    ROBUST = "robust"
    OFFICIAL = "official"


class DtypeChoice(StrEnum):
    """Types of weights."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


ModelOption = Annotated[
    str | None,
    typer.Option(help="Hub id or folder of a model or of RUDDER settings.", show_default="the embedded model"),
]
TaskOption = Annotated[TaskChoice, typer.Option(help="What to ask; the scenes need no data.")]
DataOption = Annotated[
    Path | None,
    typer.Option(help="chair: COCO's folder or instances_*.json; pope: question files or either; mme: its folder."),
]
ImagesOption = Annotated[Path | None, typer.Option(help="Folder of the pictures, if it is not in --data.")]
CaptionsOption = Annotated[Path | None, typer.Option(help="captions_*.json, if it is not beside the instances.")]
SplitOption = Annotated[str | None, typer.Option(help="Of COCO, such as val2014, or of the scenes.")]
DecodingOption = Annotated[DecodingChoice, typer.Option(help="How to write answers.")]
MethodsOption = Annotated[
    str,
    typer.Option(help="Separated by commas, or groups: all, rudder, peers, controls; differences are to the first."),
]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="NAME=VALUE for RUDDER, or METHOD.NAME=VALUE, such as rudder-add.alpha_max=5."),
]
RudderOption = Annotated[str | None, typer.Option(help="Folder or Hub id of RUDDER settings for the model.")]
OutOption = Annotated[Path | None, typer.Option(help="A new folder, or that of the same run, which is continued.")]
LimitOption = Annotated[
    int | None, typer.Option(min=1, help="How many pictures, drawn with the seed.", show_default="500, MME: all")
]
IdsOption = Annotated[Path | None, typer.Option(help="Exactly these pictures: JSON list, or one id per line.")]
PromptOption = Annotated[str | None, typer.Option(help="What to ask; for questions with {question} in it.")]
MaxNewTokensOption = Annotated[
    int | None, typer.Option(min=1, help="Longest answer.", show_default="512, scenes 120, yes/no 16")
]
NumBeamsOption = Annotated[int, typer.Option(min=1, help="Of beam search.")]
TopPOption = Annotated[float, typer.Option(help="Of nucleus sampling.")]
TemperatureOption = Annotated[float, typer.Option(help="Of nucleus sampling.")]
SeedOption = Annotated[int, typer.Option(help="Of the draw of pictures, of sampling and of intervals.")]
BatchSizeOption = Annotated[int, typer.Option(min=1, help="Pictures per batch.")]
LikelihoodOption = Annotated[
    bool, typer.Option("--likelihood/--no-likelihood", help="How likely answers are to the unsteered model.")
]
SkipUnreadableOption = Annotated[
    bool, typer.Option("--skip-unreadable", help="Leave out pictures that cannot be read, and count them.")
]
DeviceOption = Annotated[str, typer.Option(help="Where to run: auto, cpu, cuda, ...")]
DtypeOption = Annotated[DtypeChoice, typer.Option(help="Type of the weights.")]
RevisionOption = Annotated[str | None, typer.Option(help="Commit, tag or branch of the model.")]
LineageOption = Annotated[LineageChoice, typer.Option(help="Of CHAIR.")]
ParserOption = Annotated[ParserChoice, typer.Option(help="Of POPE's answers.")]
BootstrapOption = Annotated[int, typer.Option(min=1, help="Draws for intervals and p-values.")]
RescoreOption = Annotated[
    Path | None, typer.Option(help="Score saved answers again: a results folder, or captions with --data.")
]
CompareOption = Annotated[
    tuple[str, str] | None, typer.Option(help="Two results, each FOLDER or FOLDER:METHOD.", metavar="A B")
]
TableOption = Annotated[
    list[Path] | None,
    typer.Option(help="Results to put into one table; repeat it. Captions, questions and costs are joined by method."),
]
LatexOption = Annotated[bool, typer.Option("--latex", help="Print tables as LaTeX instead of Markdown.")]
