"""The options of `rudder analyze` that `rudder evaluate` does not have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

OutOption = Annotated[Path, typer.Option(help="A new folder, or that of the same analysis if it was interrupted.")]
DataOption = Annotated[
    Path | None,
    typer.Option(
        help="COCO's folder or instances_*.json, or a folder of pictures without annotations.",
        show_default="the embedded scenes",
    ),
]
PicturesOption = Annotated[int, typer.Option(min=1, help="How many pictures, drawn with the seed.")]
PartsOption = Annotated[
    str | None,
    typer.Option(help="Some of layers, geometry, tokens, detector, ablations, by commas.", show_default="all"),
]
CalibrationOption = Annotated[
    Path | None, typer.Option(help="Folder of `rudder calibrate`: adds its ablations (layers, alpha_max x k, POPE).")
]
ShownOption = Annotated[int, typer.Option(min=1, help="Pictures that the report shows token by token.")]
TokenPictureOption = Annotated[
    str | None,
    typer.Option(help="Id of the picture for figures/token-view.", show_default="first with an absent object"),
]
SeedOption = Annotated[int, typer.Option(min=0, help="Of the draw of pictures and of every random step.")]
BootstrapOption = Annotated[int, typer.Option(min=1, help="Draws for intervals.")]
