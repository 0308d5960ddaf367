"""`rudder calibrate`: find layer, alpha_max and k for a model on a few images."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from . import options
from .common import (
    FAILED,
    choose_device,
    copyable,
    parse_numbers,
    parse_words,
    read_ids,
    refusing_bad_input,
    reporting_failure,
)

if TYPE_CHECKING:
    from ..calibrate import CalibrationData, CalibrationOptions, Outcome
    from ..runtime.models import LoadedModel

EXAMPLES = copyable(
    "rudder calibrate --out calibration",
    "rudder calibrate --model FOLDER --data coco --split val2014 --out cal",
    "rudder calibrate --model FOLDER --data coco --layers 20,24 --out cal",
    "rudder calibrate --mode beta,add --span prompt,text --check pope --out c",
    "rudder calibrate --model FOLDER --data photos --out cal",
    "rudder calibrate --strengths 0 --contrast 0.4,0.6,0.8 --out calibration",
)
POPE_IMAGES = 100  # held-out images that --check pope asks about


def calibrate(
    out: options.OutOption,
    model: options.ModelOption = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="COCO's folder or instances_*.json, a folder of images without annotations, or embedded:SPLIT.",
            show_default="the embedded scenes",
        ),
    ] = None,
    images: options.ImagesOption = None,
    captions: options.CaptionsOption = None,
    split: options.SplitOption = None,
    limit: Annotated[
        int | None, typer.Option(min=2, help="Number of images to choose on.", show_default="100, scenes 200")
    ] = None,
    check_limit: Annotated[int, typer.Option(min=0, help="Number of other images to check the choice on.")] = 100,
    check_data: Annotated[
        Path | None,
        typer.Option(help="Other data to check the choice on, such as embedded:evaluation.", show_default="--data"),
    ] = None,
    exclude: Annotated[
        Path | None,
        typer.Option(help="Image ids never to use, such as your evaluation's: JSON list, or one per line."),
    ] = None,
    objective: Annotated[
        Literal["f1", "paper", "mean", "chair_s", "chair_i", "grounding"] | None,
        typer.Option(
            metavar="NAME",
            help="Objective within the limits: the highest f1 or grounding, or the lowest CHAIR: chair_s, chair_i, or "
            "their mean, which is the paper's rule.",
            show_default="f1; grounding without annotations",
        ),
    ] = None,
    recall_floor: Annotated[float, typer.Option(help="Lowest recall, as a share of vanilla's.")] = 0.95,
    length_floor: Annotated[float, typer.Option(help="Lowest length without annotations, as a share.")] = 0.8,
    nll_rise: Annotated[float, typer.Option(help="Largest rise of negative log-likelihood, nats per token.")] = 0.05,
    distinct_drop: Annotated[float, typer.Option(help="Largest drop of the share of distinct word pairs.")] = 0.05,
    confidence: Annotated[float, typer.Option(help="Lowest share of bootstrap draws that keep the limits.")] = 0.8,
    layers: Annotated[str | None, typer.Option(help="Layers to try, such as 20,24,28; else a short list.")] = None,
    shortlist: Annotated[int, typer.Option(min=1, help="Number of layers to try.")] = 3,
    probe: Annotated[
        int, typer.Option(min=0, help="Images of the sweep over all layers; 0 lists layers by statistics alone.")
    ] = 40,
    strengths: Annotated[
        str | None,
        typer.Option(help="alpha_max relative to hidden states, such as 0.1,0.3; 0 tries --contrast without a push."),
    ] = None,
    k: Annotated[str | None, typer.Option(help="Sensitivities of the gate, such as 2,5,8.")] = None,
    mode: Annotated[
        str, typer.Option(help="Modes: beta, add, or both; both give a config for each beside the best.")
    ] = "beta",
    pool: Annotated[str, typer.Option(help="Ways to pool: mean, norm, or both.")] = "mean",
    span: Annotated[str, typer.Option(help="Pooled tokens: prompt, text, image, or several.")] = "prompt",
    first_token: Annotated[str, typer.Option(help="Whether the first token is steered: no, yes, or no,yes.")] = "no",
    contrast: Annotated[
        str | None,
        typer.Option(help="Beyond the paper: image-value contrasts, such as 0,0.4,0.8, alone and with each push."),
    ] = None,
    contrast_after: Annotated[str | None, typer.Option(help="Answer tokens before the contrast, such as 1,8.")] = None,
    no_early_stopping: Annotated[
        bool, typer.Option("--no-early-stopping", help="Do not drop settings without a chance.")
    ] = False,
    label_free: Annotated[
        bool, typer.Option("--label-free", help="Also say what the criterion without annotations would choose.")
    ] = False,
    runners_up: Annotated[int, typer.Option(min=0, help="Number of next-best settings to check as well.")] = 2,
    check: Annotated[Literal["pope"] | None, typer.Option(help="Also try the choice on this task.")] = None,
    prompt: options.PromptOption = None,
    max_new_tokens: options.MaxNewTokensOption = None,
    lineage: options.LineageOption = "pattern",
    batch_size: Annotated[int, typer.Option(min=1, help="Largest batch, images times settings.")] = 256,
    bootstrap: options.BootstrapOption = 2000,
    seed: options.SeedOption = 0,
    skip_unreadable: options.SkipUnreadableOption = False,
    device: options.DeviceOption = "auto",
    dtype: options.DtypeOption = "auto",
    revision: options.RevisionOption = None,
) -> None:
    """Find RUDDER's settings for a model: the best F1 of objects within limits of recall and fluency.

    They are called calibrated if other images show it: the 95 % intervals of the change of CHAIR_I (or of the CHAIR
    that --objective names) against vanilla, and against its captions cut to the same recall, lie below 0 with paired
    p-values of at most 0.05, that of F1 does not, and recall is not below the floor.

    Writes a config that can be pushed, a report that says why, figures and all numbers. Settings that are not called
    calibrated are written too, and say so. An interrupted run goes on where it was when the command is repeated, and a
    larger grid only decodes what is new.
    """
    given = {**locals(), "early_stopping": not no_early_stopping}
    with refusing_bad_input():
        from ..runtime.environment import process_device, this_process
        from ..runtime.store import Store

        process = this_process()
        Store(out, "calibrate").check()
        found = _find_data(given)
        wanted = _options(given, found.labelled)

        from ..calibrate import calibrate as run
        from ..calibrate import pope_task
        from ..runtime.models import load_model
        from ..runtime.progress import ProgressBar

        pope = pope_task(found, seed, POPE_IMAGES) if check == "pope" else None
        loaded = load_model(model, dtype, process_device(choose_device(device), process), None, revision)
    with reporting_failure(), ProgressBar(shown=process.is_main) as bar:
        outcome = run(loaded, found, out, wanted, process, bar, pope)
    if process.is_main:
        _finish(outcome, out, loaded)


def _find_data(given: dict[str, Any]) -> CalibrationData:
    from ..calibrate import data_source, find_data

    exclude = [] if given["exclude"] is None else [str(i) for i in read_ids(given["exclude"])]
    common = {"prompt": given["prompt"], "seed": given["seed"]}
    source = data_source(given["data"], **{name: given[name] for name in ("captions", "images", "split")}, **common)
    other = None if given["check_data"] is None else data_source(given["check_data"], **common)
    limit = given["limit"] or (200 if source.data is None else 100)
    return find_data(source, limit, given["check_limit"], exclude, given["skip_unreadable"], other)


def _options(given: dict[str, Any], labelled: bool) -> CalibrationOptions:
    from ..calibrate import CalibrationOptions, Grid, Limits

    def same_names(kind: Any) -> dict[str, Any]:
        return {field.name: given[field.name] for field in fields(kind) if field.name in given}

    kinds = {"strengths": float, "k": float, "contrast": float, "contrast_after": int}
    numbers: dict[str, Any] = {
        name: parse_numbers(f"--{name.replace('_', '-')}", given[name], kind)
        for name, kind in kinds.items()
        if given[name]
    }
    first_token = parse_words("--first-token", given["first_token"], ("no", "yes"))
    grid = Grid(
        **numbers,
        modes=parse_words("--mode", given["mode"], ("beta", "add")),
        pools=parse_words("--pool", given["pool"], ("mean", "norm")),
        spans=parse_words("--span", given["span"], ("prompt", "text", "image")),
        steer_first_token=tuple(word == "yes" for word in first_token),
    )
    parsed = {
        "grid": grid,
        "limits": Limits(**same_names(Limits)),
        "layers": None if given["layers"] is None else parse_numbers("--layers", given["layers"], int),
        "objective": given["objective"] or ("f1" if labelled else "grounding"),
    }
    return CalibrationOptions(**same_names(CalibrationOptions) | parsed)


def _finish(outcome: Outcome, out: Path, loaded: LoadedModel) -> None:
    """Write the results and say what they are; without a choice the command has failed."""
    with reporting_failure():
        from ..calibrate import save_outcome
        from ..calibrate.report import summary
        from ..runtime.figures import figures_available

        commit = loaded.revision if not loaded.revision.startswith(("files-", "unknown")) else None
        # The base itself, also where --model named RUDDER settings for it, or one of the embedded models.
        folder = save_outcome(outcome, out, loaded.model.name_or_path, commit)
    for line in summary(outcome.numbers):
        typer.echo(line)
    if not figures_available():
        typer.echo("No figures: pip install 'rudder-hf[plots]'.", err=True)
    typer.echo(f"Written to {folder}")
    if outcome.choice.best is None:
        raise typer.Exit(FAILED)
