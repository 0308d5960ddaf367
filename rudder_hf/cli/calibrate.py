"""`rudder calibrate`: find layer, alpha_max and k for a model on a few images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from . import options
from .common import (
    FAILED,
    choose_device,
    command_line,
    copyable,
    next_steps,
    parse_numbers,
    refusing_bad_input,
    reporting_failure,
)

if TYPE_CHECKING:
    from ..calibrate import CalibrationOptions, Outcome
    from ..runtime.models import LoadedModel

EXAMPLES = copyable(
    "rudder calibrate --out calibration",
    "rudder calibrate --model ID --data coco --split val2014 --out cal --dry-run",
    "rudder calibrate --model ID --data coco --split val2014 --out cal",
    "rudder calibrate --model ID --data photos --out cal",
    "rudder calibrate --strengths 0 --contrast 0.4,0.6,0.8 --out calibration",
)


def calibrate(
    out: options.OutOption,
    model: options.ModelOption = None,
    data: options.DataOption = None,
    split: options.SplitOption = None,
    limit: Annotated[
        int | None, typer.Option(min=2, help="Number of images to choose on.", show_default="100, scenes 200")
    ] = None,
    check_limit: Annotated[int, typer.Option(min=0, help="Number of other images to check the choice on.")] = 200,
    objective: Annotated[
        Literal["paper", "f1", "grounding"] | None,
        typer.Option(
            metavar="NAME",
            help="Objective within the limits: paper, the least CHAIR without loss of F1; f1; or grounding.",
            show_default="paper; grounding without annotations",
        ),
    ] = None,
    recall_floor: Annotated[float, typer.Option(help="Lowest recall, as a share of vanilla's.")] = 0.95,
    layers: Annotated[str | None, typer.Option(help="Layers to try, such as 20,24,28; else by a sweep.")] = None,
    strengths: Annotated[
        str | None,
        typer.Option(help="alpha_max relative to hidden states, such as 0.1,0.3; 0 tries --contrast without a push."),
    ] = None,
    k: Annotated[str | None, typer.Option(help="Sensitivities of the gate, such as 2,5,8.")] = None,
    mode: options.ModeOption = None,
    contrast: Annotated[
        str | None,
        typer.Option(help="Not in the paper: image-value contrasts, such as 0,0.4,0.8, alone and with each push."),
    ] = None,
    prompt: options.PromptOption = None,
    max_new_tokens: options.MaxNewTokensOption = None,
    batch_size: options.BatchSizeOption = 24,
    device: options.DeviceOption = "auto",
    dtype: options.DtypeOption = "auto",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Time one batch, say how long everything takes, and write nothing.")
    ] = False,
) -> None:
    """Find RUDDER's settings for a model: the least CHAIR at 95 % of vanilla's recall and no loss of F1.

    Settings count as calibrated if held-out images show that CHAIR is lower than vanilla's, and lower than that of
    vanilla's captions truncated to the same recall (95 % intervals below 0, paired p at most 0.05), that F1 is not
    significantly lower, and that recall keeps the floor.

    Writes a settings repository with a report, which can be loaded and pushed. Settings that do not count as
    calibrated are written too, and say so. If it is interrupted, repeat the command. A larger grid generates only what
    is new.
    """
    given = dict(locals())
    with refusing_bad_input():
        from ..calibrate import find_data
        from ..calibrate.run import calibrate as run
        from ..calibrate.run import check_folder
        from ..calibrate.run import dry_run as time_one_batch
        from ..evaluate.tasks import DataOptions
        from ..runtime.environment import process_device, this_process

        process = this_process()
        if not dry_run:
            check_folder(out)
        source = DataOptions(data, split=split, prompt=prompt)
        found = find_data(source, limit or (200 if data is None else 100), check_limit)
        wanted = _options(given, found.labelled)

        from ..runtime.models import load_model
        from ..runtime.report import ProgressBar

        loaded = load_model(model, dtype, process_device(choose_device(device), process))
    if dry_run:
        with reporting_failure():
            typer.echo(time_one_batch(loaded, found, wanted))
        next_steps("the same command without --dry-run")
        return
    with reporting_failure(), ProgressBar(shown=process.rank == 0) as bar:
        outcome = run(loaded, found, out, wanted, process, bar)
    if process.rank == 0:
        _finish(outcome, out, loaded)


def _options(given: dict[str, Any], labelled: bool) -> CalibrationOptions:
    from ..calibrate import CalibrationOptions, Grid, Rule
    from ..evaluate.run import RunOptions

    numbers: dict[str, Any] = {
        name: parse_numbers(f"--{name}", given[name]) for name in ("strengths", "k", "contrast") if given[name]
    }
    if given["mode"] == "add" and given["k"]:
        raise ValueError("--k is of the gate, which --mode add does not have: leave one of them out.")
    return CalibrationOptions(
        grid=Grid(**numbers, modes=(given["mode"] or "beta",)),
        layers=None if given["layers"] is None else parse_numbers("--layers", given["layers"], int),  # type: ignore[arg-type]
        rule=Rule(given["objective"] or ("paper" if labelled else "grounding"), given["recall_floor"]),
        max_new_tokens=given["max_new_tokens"],
        run=RunOptions(given["batch_size"], command=command_line()),
    )


def _finish(outcome: Outcome, out: Path, loaded: LoadedModel) -> None:
    """Write the results and say what they are; without a choice the command has failed."""
    with reporting_failure():
        from ..calibrate.report import save_outcome, summary

        commit = loaded.revision if not loaded.revision.startswith(("files-", "unknown")) else None
        # The base itself, also where --model named RUDDER settings for it, or one of the embedded models.
        folder = save_outcome(outcome, out, loaded.model.name_or_path, commit)
    for line in summary(outcome):
        typer.echo(line)
    typer.echo(f"Written to {folder}; why, and all numbers: {folder / 'report.md'}")
    if outcome.best is None:
        next_steps("more images (--limit)", "other layers (--layers) or strengths (--strengths)")
        raise typer.Exit(FAILED)
    refused = outcome.record["refusal"]
    share = "more images to choose on and to check with" if refused else f"rudder push {folder} ORG/NAME"
    next_steps(f"rudder generate --model {folder}", share)
