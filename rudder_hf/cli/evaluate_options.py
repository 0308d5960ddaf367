"""The options that only `rudder evaluate` has."""

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


class ParserChoice(StrEnum):
    """How POPE reads answers."""

    ROBUST = "robust"
    OFFICIAL = "official"


TaskOption = Annotated[TaskChoice, typer.Option(help="What to ask; the scenes need no data.")]
DataOption = Annotated[
    Path | None,
    typer.Option(help="chair: COCO's folder or instances_*.json; pope: question files or either; mme: its folder."),
]
DecodingOption = Annotated[DecodingChoice, typer.Option(help="How to write answers.")]
OutOption = Annotated[Path | None, typer.Option(help="A new folder, or that of the same run, which is continued.")]
LimitOption = Annotated[
    int | None, typer.Option(min=1, help="How many images, drawn with the seed.", show_default="500, MME: all")
]
TemperatureOption = Annotated[float, typer.Option(help="Of nucleus sampling.")]
LikelihoodOption = Annotated[
    bool, typer.Option("--likelihood/--no-likelihood", help="How likely answers are to the unsteered model.")
]
ParserOption = Annotated[ParserChoice, typer.Option(help="Of POPE's answers.")]
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
