"""`rudder analyze`: numbers, figures and a report on what RUDDER does inside a model."""

from __future__ import annotations

from typing import Annotated

import typer

from . import options
from .common import (
    choose_device,
    command_line,
    copyable,
    next_steps,
    refusing_bad_input,
    reporting_failure,
    require_extra,
)

EXAMPLES = copyable(
    "rudder analyze --out analysis",
    "rudder analyze --split examples --out analysis",
    "rudder analyze --model FOLDER --data photos --out analysis",
    "rudder analyze --model ID --data coco --split val2014 --out analysis",
)


def analyze(
    out: options.OutOption,
    model: options.ModelOption = None,
    data: options.DataOption = None,
    images: options.ImagesOption = None,
    split: options.SplitOption = None,
    limit: Annotated[int, typer.Option(min=1, help="Number of images, drawn with the seed.")] = 100,
    settings: options.SettingsOption = None,
    prompt: options.PromptOption = None,
    max_new_tokens: options.MaxNewTokensOption = None,
    batch_size: options.BatchSizeOption = 8,
    seed: options.SeedOption = 0,
    device: options.DeviceOption = "auto",
    dtype: options.DtypeOption = "auto",
) -> None:
    """Draw what RUDDER does inside a model: token by token, the gate, the layers, and CARD.

    Writes report.html, which stands alone, numbers.json and figures/ (PNG and SVG). Without annotations the report
    does not say which objects are in the images. If it is interrupted, repeat the command.
    """
    given = dict(locals())
    with refusing_bad_input():
        from ..analyze import Study, check_folder, find_images

        require_extra("plots", matplotlib="matplotlib")
        check_folder(out)

        from ..evaluate.tasks import DataOptions
        from ..runtime.models import load_model

        task = find_images(DataOptions(data, images=images, split=split, prompt=prompt, seed=seed, limit=limit))
        wanted = options.given_settings(given)
        loaded = load_model(model, dtype, choose_device(device))
        study = Study(loaded, task, loaded.config_with(wanted), max_new_tokens, batch_size, command_line())

    from ..analyze import analyze as run
    from ..runtime.report import ProgressBar

    with reporting_failure(), ProgressBar() as bar:
        numbers = run(out, study, bar)
    for line in numbers["summary"]:
        typer.echo(line)
    for note in numbers["notes"]:
        typer.echo(f"Left out: {note}")
    next_steps(f"open {out / 'report.html'} (figures/ and numbers.json are beside it)")
