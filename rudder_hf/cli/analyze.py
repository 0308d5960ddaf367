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
    next_steps,
    read_ids,
    refusing_bad_input,
    reporting_failure,
    require_extra,
)

if TYPE_CHECKING:
    from ..analyze import AnalysisOptions, Study

EXAMPLES = copyable(
    "rudder analyze --out analysis",
    "rudder analyze --split examples --out analysis",
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
    settings: options.SettingsOption = None,
    rudder: options.RudderOption = None,
    prompt: options.PromptOption = None,
    max_new_tokens: options.MaxNewTokensOption = None,
    lineage: options.LineageOption = "pattern",
    batch_size: options.BatchSizeOption = 8,
    seed: options.SeedOption = 0,
    skip_unreadable: options.SkipUnreadableOption = False,
    device: options.DeviceOption = "auto",
    dtype: options.DtypeOption = "auto",
    revision: options.RevisionOption = None,
) -> None:
    """Draw what RUDDER does inside a model: token by token, the gate, the layers, and CARD.

    Writes report.html, which stands alone, numbers.json and figures/ (PNG and SVG). Without annotations the report
    does not say which objects are in the images. If it is interrupted, repeat the command.
    """
    given = dict(locals())
    with refusing_bad_input():
        from ..analyze import check_folder

        require_extra("plots", matplotlib="matplotlib")
        check_folder(out)
        wanted = _options(given)
        study = _study(given)

    from ..analyze import analyze as run
    from ..runtime.progress import ProgressBar

    with reporting_failure(), ProgressBar() as bar:
        numbers = run(out, study, wanted, bar)
    for line in numbers["summary"]:
        typer.echo(line)
    for note in numbers["notes"]:
        typer.echo(f"Left out: {note}")
    next_steps(f"open {out / 'report.html'} (figures/ and numbers.json are beside it)")


def _options(given: dict[str, Any]) -> AnalysisOptions:
    from ..analyze import AnalysisOptions

    names = ("lineage", "max_new_tokens", "batch_size", "seed")
    return AnalysisOptions(command=command_line(), **{name: given[name] for name in names})


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
