"""`rudder calibrate`: find layer, alpha_max and k for a model on a few pictures."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from . import calibrate_options as options
from . import options as shared
from .common import (
    BAD_INPUT,
    FAILED,
    choose_device,
    copyable,
    refusing_bad_input,
    reporting_failure,
    stop,
)

if TYPE_CHECKING:
    from ..calibrate import CalibrationData, CalibrationOptions, Outcome

EXAMPLES = copyable(
    "rudder calibrate --out calibration",
    "rudder calibrate --model FOLDER --data coco --split val2014 --out cal",
    "rudder calibrate --model FOLDER --data coco --layers 20,24 --out cal",
    "rudder calibrate --mode beta,add --spans prompt,text --check pope --out c",
    "rudder calibrate --model FOLDER --data photos --out cal",
)
INTERRUPTED = 130
POPE_PICTURES = 100  # held-out pictures that --check pope asks about


def calibrate(
    out: options.OutOption,
    model: shared.ModelOption = None,
    data: options.DataOption = None,
    images: shared.ImagesOption = None,
    captions: shared.CaptionsOption = None,
    split: shared.SplitOption = None,
    pictures: options.PicturesOption = None,
    check_pictures: options.CheckPicturesOption = 100,
    check_data: options.CheckDataOption = None,
    exclude: options.ExcludeOption = None,
    objective: options.ObjectiveOption = None,
    recall_floor: options.RecallFloorOption = 0.95,
    length_floor: options.LengthFloorOption = 0.8,
    nll_rise: options.NllRiseOption = 0.05,
    distinct_drop: options.DistinctDropOption = 0.05,
    confidence: options.ConfidenceOption = 0.8,
    layers: options.LayersOption = None,
    shortlist: options.ShortlistOption = 3,
    probe: options.ProbeOption = 40,
    strengths: options.StrengthsOption = None,
    k: options.KOption = None,
    mode: options.ModeOption = "beta",
    pool: options.PoolOption = "mean",
    span: options.SpanOption = "prompt",
    first_token: options.FirstTokenOption = "no",
    early_stopping: options.EarlyStoppingOption = True,
    label_free: options.LabelFreeOption = False,
    runners_up: options.RunnersUpOption = 2,
    check: options.CheckOption = None,
    prompt: shared.PromptOption = None,
    max_new_tokens: options.MaxNewTokensOption = None,
    lineage: shared.LineageOption = shared.LineageChoice.PATTERN,
    rows: options.RowsOption = 256,
    bootstrap: options.BootstrapOption = 2000,
    seed: options.SeedOption = 0,
    skip_unreadable: shared.SkipUnreadableOption = False,
    device: shared.DeviceOption = "auto",
    dtype: shared.DtypeOption = shared.DtypeChoice.AUTO,
    revision: shared.RevisionOption = None,
) -> None:
    """Find RUDDER's settings for a model: the least hallucination at which recall and fluency stay.

    Writes a config that can be pushed, a report that says why, figures and all numbers. An interrupted run goes on
    where it was when the command is repeated, and a larger grid only decodes what is new.
    """
    given = dict(locals())
    with refusing_bad_input():
        from ..core.errors import UnsupportedModelError
        from ..metrics.errors import InputError
        from ..runtime.processes import process_device, this_process

        process = this_process()
        found, wanted = _prepare(given)

        from ..calibrate import calibrate as run
        from ..calibrate import pope_task
        from ..runtime.models import load_subject

        pope = pope_task(found, seed, POPE_PICTURES) if check is options.CheckChoice.POPE else None
        subject = load_subject(model, dtype.value, process_device(choose_device(device), process), None, revision)
    bar = _Bar(shown=process.is_main)
    try:
        with reporting_failure():
            try:
                outcome = run(subject, found, out, wanted, process, bar, pope)
            except (InputError, UnsupportedModelError, BlockingIOError) as error:
                stop(error, BAD_INPUT)
    except KeyboardInterrupt:
        typer.echo(f"\nInterrupted. What is decoded is in {out}: repeat the command to go on.", err=True)
        raise typer.Exit(INTERRUPTED) from None
    finally:
        bar.close()
    if process.is_main:
        _finish(outcome, out, model, subject.revision)


def _finish(outcome: Outcome, out: Path, model: str | None, revision: str) -> None:
    """Write the results and say what they are; without a choice the command has failed."""
    with reporting_failure():
        from ..calibrate import save_outcome
        from ..scenes import embedded

        commit = revision if not revision.startswith(("files-", "unknown")) else None
        inside = embedded.embedded_name(model)
        folder = save_outcome(outcome, out, model if inside is None else str(embedded.folder(inside)), commit)
    _tell(outcome, folder)
    if outcome.choice.best is None:
        raise typer.Exit(FAILED)


def _prepare(given: dict[str, Any]) -> tuple[CalibrationData, CalibrationOptions]:
    """Pictures and options, checked before a model is loaded."""
    from ..calibrate import CalibrationOptions, Grid, Limits, data_source, find_data
    from .common import read_ids

    exclude = [] if given["exclude"] is None else [str(i) for i in read_ids(given["exclude"])]
    common = {"prompt": given["prompt"], "seed": given["seed"]}
    source = data_source(
        given["data"], captions=given["captions"], images=given["images"], split=given["split"], **common
    )
    other = None if given["check_data"] is None else data_source(given["check_data"], **common)
    pictures = given["pictures"] or (200 if source.data is None else 100)
    found = find_data(source, pictures, given["check_pictures"], exclude, given["skip_unreadable"], other)
    default = Grid()
    grid = Grid(
        strengths=_numbers("--strengths", given["strengths"]) or default.strengths,
        k=_numbers("--k", given["k"]) or default.k,
        modes=_words("--mode", given["mode"], ("beta", "add")),
        pools=_words("--pool", given["pool"], ("mean", "norm")),
        spans=_words("--span", given["span"], ("prompt", "text", "image")),
        steer_first_token=tuple(w == "yes" for w in _words("--first-token", given["first_token"], ("no", "yes"))),
    )
    chosen: options.ObjectiveChoice | None = given["objective"]
    wanted = CalibrationOptions(
        grid=grid,
        layers=None if given["layers"] is None else tuple(int(n) for n in _numbers("--layers", given["layers"], int)),
        shortlist=given["shortlist"],
        probe=given["probe"],
        objective=chosen.value if chosen is not None else "mean" if found.labelled else "grounding",
        limits=Limits(given["recall_floor"], given["length_floor"], given["nll_rise"], given["distinct_drop"]),
        lineage=given["lineage"].value,
        max_new_tokens=given["max_new_tokens"],
        early=given["early_stopping"],
        contrast=given["label_free"],
        runners_up=given["runners_up"],
        rows=given["rows"],
        draws=given["bootstrap"],
        confidence=given["confidence"],
        seed=given["seed"],
    )
    return found, wanted


def _numbers(name: str, text: str | None, kind: type = float) -> tuple[float, ...]:
    try:
        return tuple(kind(part) for part in (text or "").split(",") if part.strip())
    except ValueError:
        raise ValueError(f"{name} is {text!r}; give numbers separated by commas") from None


def _words(name: str, text: str, allowed: tuple[str, ...]) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not found or not set(found) <= set(allowed):
        raise ValueError(f"{name} is {text!r}; give one or several of {', '.join(allowed)}, separated by commas")
    return found


def _tell(outcome: Outcome, folder: Path) -> None:
    """The result in a few lines; the report has the rest."""
    from ..calibrate.format import name
    from ..calibrate.plots import available

    typer.echo(f"Chosen: {name(outcome.choice.best)}")
    for mode, choice in outcome.by_mode.items():
        typer.echo(f"  best with mode {mode}: {name(choice.best)}")
    for metric in outcome.metrics:
        if metric.name in ("chair_s", "chair_i", "recall", "grounding") and metric.name in outcome.differences:
            change, factor = outcome.differences[metric.name], 100 if metric.unit == "percent" else 1
            left, right, value, low, high = (
                f"{factor * end:.{1 if factor == 100 else 3}f}"
                for end in (change.left, change.right, change.value, change.low, change.high)
            )
            typer.echo(f"  {metric.label}: {left} -> {right} ({value} [{low}, {high}]) on held-out pictures")
    if outcome.refusal:
        typer.echo(f"Not called calibrated: {outcome.refusal}.")
    if not available():
        typer.echo("No figures: pip install 'rudder-hf[plots]'.", err=True)
    typer.echo(f"Written to {folder}")


class _Bar:
    """Progress on stderr."""

    def __init__(self, shown: bool) -> None:
        self._shown, self._text = shown, ""
        self._bar: Any = None

    def __call__(self, text: str, done: int, total: int) -> None:
        from tqdm import tqdm  # type: ignore[import-untyped]

        if self._bar is None or text != self._text or done < self._bar.n:
            self.close()
            self._bar = tqdm(total=total, desc=text, unit="picture", disable=not self._shown, file=sys.stderr)
            self._text = text
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        """End the line."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
