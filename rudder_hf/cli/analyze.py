"""`rudder analyze`: numbers, figures and a report on what RUDDER does inside a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import options
from .common import (
    choose_device,
    command_line,
    copyable,
    read_ids,
    refusing_bad_input,
    reporting_failure,
    require_extra,
)

if TYPE_CHECKING:
    from ..analyze import AnalysisOptions, Study

EXAMPLES = copyable(
    "rudder analyze --out analysis",
    "rudder analyze --calibration calibration --out analysis",
    "rudder analyze --split examples --parts tokens --out tokens",
    "rudder analyze --parts ablations --calibration calibration --out heatmaps",
    "rudder analyze --model FOLDER --data photos --out analysis",
    "rudder analyze --model ID --data coco --split val2014 --out analysis",
)


def analyze(
    out: options.OutOption,
    model: options.ModelOption = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="COCO's folder or instances_*.json, or a folder of images without annotations.",
            show_default="the embedded scenes",
        ),
    ] = None,
    images: options.ImagesOption = None,
    captions: options.CaptionsOption = None,
    split: options.SplitOption = None,
    limit: Annotated[int, typer.Option(min=1, help="Number of images, drawn with the seed.")] = 100,
    ids: options.IdsOption = None,
    parts: Annotated[
        str | None,
        typer.Option(help="Parts by commas: layers, geometry, tokens, detector, ablations.", show_default="all"),
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(help="Folder of `rudder calibrate`: adds its ablations (layers, alpha_max x k, POPE)."),
    ] = None,
    settings: options.SettingsOption = None,
    rudder: options.RudderOption = None,
    shown: Annotated[int, typer.Option(min=1, help="Images that the report shows token by token.")] = 8,
    token_image: Annotated[
        str | None,
        typer.Option(help="Id of the image for figures/token-view.", show_default="first with an absent object"),
    ] = None,
    prompt: options.PromptOption = None,
    max_new_tokens: options.MaxNewTokensOption = None,
    lineage: options.LineageOption = "pattern",
    batch_size: options.BatchSizeOption = 8,
    bootstrap: options.BootstrapOption = 2000,
    seed: options.SeedOption = 0,
    skip_unreadable: options.SkipUnreadableOption = False,
    device: options.DeviceOption = "auto",
    dtype: options.DtypeOption = "auto",
    revision: options.RevisionOption = None,
) -> None:
    """Look inside: layers, geometry of CARD, answers token by token, detectors, ablations; as JSON, figures, HTML.

    Writes numbers.json, figures/ (PNG and SVG) and report.html, which stands alone. What needs annotations is left out
    where there are none. An interrupted analysis goes on when the command is repeated.
    """
    given = dict(locals())
    with refusing_bad_input():
        from ..analyze import check_folder, read_calibration

        require_extra("plots", matplotlib="matplotlib", sklearn="scikit-learn")
        check_folder(out)
        wanted = _options(given)
        found = None if calibration is None else read_calibration(calibration)
        if wanted.parts == ("ablations",) and found is None:
            raise ValueError("--parts ablations needs --calibration, the folder of a `rudder calibrate`.")
        study = None if wanted.parts == ("ablations",) else _study(given)

    from ..analyze import analyze as run
    from ..runtime.progress import ProgressBar

    with reporting_failure(), ProgressBar() as bar:
        numbers = run(out, study, wanted, found, bar)
    for line in (*(figure["finding"] for figure in numbers["figures"]), *numbers["notes"]):
        if line:
            typer.echo(line)
    typer.echo(f"Written to {out}: report.html, numbers.json, figures/")


def _options(given: dict[str, Any]) -> AnalysisOptions:
    from ..analyze import PARTS, AnalysisOptions

    parts = tuple(part.strip() for part in (given["parts"] or "").split(",") if part.strip())
    names = ("max_new_tokens", "batch_size", "seed", "shown", "token_image")
    return AnalysisOptions(
        parts=parts or PARTS,
        lineage=given["lineage"],
        draws=given["bootstrap"],
        command=command_line(),
        **{name: given[name] for name in names},
    )


def _study(given: dict[str, Any]) -> Study:
    """Images, then the model and its settings."""
    from ..analyze import Study, find_images
    from ..evaluate.tasks import DataOptions
    from ..runtime.models import load_model

    fields = ("data", "captions", "images", "split", "prompt", "seed", "limit")
    wanted = None if given["ids"] is None else read_ids(given["ids"])
    task = find_images(DataOptions(**{name: given[name] for name in fields}, wanted=wanted))
    task.skip_unreadable(given["skip_unreadable"])
    settings = options.given_settings(given)
    device = choose_device(given["device"])
    loaded = load_model(given["model"], given["dtype"], device, given["rudder"], given["revision"])
    return Study(loaded, task, loaded.config_with(settings))
