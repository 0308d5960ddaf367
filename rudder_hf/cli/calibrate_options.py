"""The options of `rudder calibrate` that `rudder evaluate` does not have."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class ObjectiveChoice(StrEnum):
    """What to minimise."""

    CHAIR_S = "chair_s"
    CHAIR_I = "chair_i"
    MEAN = "mean"
    GROUNDING = "grounding"


class CheckChoice(StrEnum):
    """Other tasks to look at."""

    POPE = "pope"


OutOption = Annotated[Path, typer.Option(help="A new folder, or that of the same calibration, which is continued.")]
DataOption = Annotated[
    Path | None,
    typer.Option(
        help="COCO's folder or instances_*.json, a folder of pictures without annotations, or embedded:SPLIT.",
        show_default="the embedded scenes",
    ),
]
CheckDataOption = Annotated[
    Path | None,
    typer.Option(help="Other data to check the choice with, such as embedded:evaluation.", show_default="--data"),
]
PicturesOption = Annotated[
    int | None, typer.Option(min=2, help="How many to choose with.", show_default="100, scenes 200")
]
CheckPicturesOption = Annotated[int, typer.Option(min=0, help="How many others to check the choice with.")]
ExcludeOption = Annotated[
    Path | None, typer.Option(help="Ids never to use, such as your evaluation's: JSON list, or one per line.")
]
ObjectiveOption = Annotated[
    ObjectiveChoice | None,
    typer.Option(help="What to minimise.", show_default="mean of both CHAIR; grounding without annotations"),
]
RecallFloorOption = Annotated[float, typer.Option(help="Least recall, as a share of vanilla's.")]
LengthFloorOption = Annotated[float, typer.Option(help="Without annotations: least length, as a share.")]
NllRiseOption = Annotated[
    float, typer.Option(help="Most rise of the unsteered model's negative log-likelihood, nats per token.")
]
DistinctDropOption = Annotated[float, typer.Option(help="Most drop of the share of distinct word pairs.")]
ConfidenceOption = Annotated[
    float, typer.Option(help="Share of bootstrap draws in which a setting has to keep the limits to be chosen.")
]
LayersOption = Annotated[str | None, typer.Option(help="Layers to try, such as 20,24,28; else a short list.")]
ShortlistOption = Annotated[int, typer.Option(min=1, help="How many layers to try.")]
ProbeOption = Annotated[
    int, typer.Option(min=0, help="Pictures of the sweep over all layers; 0 lists layers by statistics alone.")
]
StrengthsOption = Annotated[
    str | None, typer.Option(help="alpha_max relative to the layer's hidden states, such as 0.1,0.3,0.9.")
]
KOption = Annotated[str | None, typer.Option(help="Sensitivities, such as 2,5,8.")]
ModeOption = Annotated[
    str, typer.Option("--mode", "--modes", help="beta, add, or both; both give a config for each beside the best.")
]
PoolOption = Annotated[str, typer.Option("--pool", "--pools", help="mean, norm, or both.")]
SpanOption = Annotated[str, typer.Option("--span", "--spans", help="prompt, text, image, or several.")]
FirstTokenOption = Annotated[str, typer.Option(help="Whether the first token is steered: no, yes, or no,yes.")]
EarlyStoppingOption = Annotated[
    bool, typer.Option("--early-stopping/--no-early-stopping", help="Drop settings without a chance.")
]
LabelFreeOption = Annotated[
    bool, typer.Option("--label-free", help="Also say what the criterion without annotations would choose.")
]
RunnersUpOption = Annotated[int, typer.Option(min=0, help="How many settings that come next to check as well.")]
CheckOption = Annotated[CheckChoice | None, typer.Option(help="Also try the choice on this task.")]
MaxNewTokensOption = Annotated[int | None, typer.Option(min=1, help="Longest answer.", show_default="512, scenes 120")]
RowsOption = Annotated[
    int, typer.Option(min=1, help="Largest batch, pictures times settings; halved when memory runs out.")
]
BootstrapOption = Annotated[int, typer.Option(min=1, help="Draws for intervals and for the choice's certainty.")]
SeedOption = Annotated[int, typer.Option(help="Of the draw of pictures and of the bootstrap.")]
