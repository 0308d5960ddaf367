"""`rudder calibrate`: find layer, alpha_max and k for a model on a few images."""

from __future__ import annotations

from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    resumable,
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
)
POPE_IMAGES = 100  # held-out images that --check pope asks about


class ObjectiveChoice(StrEnum):
    """What to minimise."""

    CHAIR_S = "chair_s"
    CHAIR_I = "chair_i"
    MEAN = "mean"
    GROUNDING = "grounding"


class CheckChoice(StrEnum):
    """Other tasks to look at."""

    POPE = "pope"


DataOption = Annotated[
    Path | None,
    typer.Option(
        help="COCO's folder or instances_*.json, a folder of images without annotations, or embedded:SPLIT.",
        show_default="the embedded scenes",
    ),
]
CheckDataOption = Annotated[
    Path | None,
    typer.Option(help="Other data to check the choice with, such as embedded:evaluation.", show_default="--data"),
]
LimitOption = Annotated[
    int | None, typer.Option(min=2, help="How many images to choose with.", show_default="100, scenes 200")
]
CheckLimitOption = Annotated[int, typer.Option(min=0, help="How many other images to check the choice with.")]
ExcludeOption = Annotated[
    Path | None, typer.Option(help="Ids never to use, such as your evaluation's: JSON list, or one per line.")
]
ObjectiveOption = Annotated[
    ObjectiveChoice | None,
    typer.Option(help="What to minimise.", show_default="mean of both CHAIR; grounding without annotations"),
]
RecallFloorOption = Annotated[float, typer.Option(help="Least recall, as a share of vanilla's.")]
LengthFloorOption = Annotated[float, typer.Option(help="Without annotations: least length, as a share.")]
NllRiseOption = Annotated[float, typer.Option(help="Most rise of the negative log-likelihood, nats per token.")]
DistinctDropOption = Annotated[float, typer.Option(help="Most drop of the share of distinct word pairs.")]
ConfidenceOption = Annotated[float, typer.Option(help="Least share of bootstrap draws that keep the limits.")]
LayersOption = Annotated[str | None, typer.Option(help="Layers to try, such as 20,24,28; else a short list.")]
ShortlistOption = Annotated[int, typer.Option(min=1, help="How many layers to try.")]
ProbeOption = Annotated[
    int, typer.Option(min=0, help="Images of the sweep over all layers; 0 lists layers by statistics alone.")
]
StrengthsOption = Annotated[str | None, typer.Option(help="alpha_max relative to hidden states, such as 0.1,0.3.")]
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
BatchSizeOption = Annotated[int, typer.Option(min=1, help="Largest batch, images times settings.")]


def calibrate(
    out: options.OutOption,
    model: options.ModelOption = None,
    data: DataOption = None,
    images: options.ImagesOption = None,
    captions: options.CaptionsOption = None,
    split: options.SplitOption = None,
    limit: LimitOption = None,
    check_limit: CheckLimitOption = 100,
    check_data: CheckDataOption = None,
    exclude: ExcludeOption = None,
    objective: ObjectiveOption = None,
    recall_floor: RecallFloorOption = 0.95,
    length_floor: LengthFloorOption = 0.8,
    nll_rise: NllRiseOption = 0.05,
    distinct_drop: DistinctDropOption = 0.05,
    confidence: ConfidenceOption = 0.8,
    layers: LayersOption = None,
    shortlist: ShortlistOption = 3,
    probe: ProbeOption = 40,
    strengths: StrengthsOption = None,
    k: KOption = None,
    mode: ModeOption = "beta",
    pool: PoolOption = "mean",
    span: SpanOption = "prompt",
    first_token: FirstTokenOption = "no",
    early_stopping: EarlyStoppingOption = True,
    label_free: LabelFreeOption = False,
    runners_up: RunnersUpOption = 2,
    check: CheckOption = None,
    prompt: options.PromptOption = None,
    max_new_tokens: options.MaxNewTokensOption = None,
    lineage: options.LineageOption = options.LineageChoice.PATTERN,
    batch_size: BatchSizeOption = 256,
    bootstrap: options.BootstrapOption = 2000,
    seed: options.SeedOption = 0,
    skip_unreadable: options.SkipUnreadableOption = False,
    device: options.DeviceOption = "auto",
    dtype: options.DtypeOption = options.DtypeChoice.AUTO,
    revision: options.RevisionOption = None,
) -> None:
    """Find RUDDER's settings for a model: the least hallucination at which recall and fluency stay.

    Writes a config that can be pushed, a report that says why, figures and all numbers. An interrupted run goes on
    where it was when the command is repeated, and a larger grid only decodes what is new.
    """
    given = dict(locals())
    with refusing_bad_input():
        from ..runtime.processes import process_device, this_process

        process = this_process()
        found = _find_data(given)
        wanted = _options(given, found.labelled)

        from ..calibrate import calibrate as run
        from ..calibrate import pope_task
        from ..runtime.models import load_model
        from ..runtime.progress import ProgressBar

        pope = pope_task(found, seed, POPE_IMAGES) if check is CheckChoice.POPE else None
        loaded = load_model(model, dtype.value, process_device(choose_device(device), process), None, revision)
    with resumable(out), ProgressBar(shown=process.is_main) as bar:
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

    numbers = {name: parse_numbers(f"--{name}", given[name]) for name in ("strengths", "k") if given[name]}
    first_token = parse_words("--first-token", given["first_token"], ("no", "yes"))
    grid = Grid(
        **numbers,
        modes=parse_words("--mode", given["mode"], ("beta", "add")),
        pools=parse_words("--pool", given["pool"], ("mean", "norm")),
        spans=parse_words("--span", given["span"], ("prompt", "text", "image")),
        steer_first_token=tuple(word == "yes" for word in first_token),
    )
    layers = None if given["layers"] is None else parse_numbers("--layers", given["layers"], int)
    objective = given["objective"] or (ObjectiveChoice.MEAN if labelled else ObjectiveChoice.GROUNDING)
    changed = {"grid": grid, "limits": Limits(**same_names(Limits)), "layers": layers}
    changed |= {"objective": objective.value, "lineage": given["lineage"].value}
    return CalibrationOptions(**same_names(CalibrationOptions) | changed)


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
