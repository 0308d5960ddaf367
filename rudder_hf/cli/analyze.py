"""`rudder analyze`: numbers, figures and a report on what RUDDER does inside a model."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from . import analyze_options as options
from . import evaluate_options as shared
from .common import (
    BAD_INPUT,
    choose_device,
    copyable,
    refusing_bad_input,
    reporting_failure,
    stop,
)

if TYPE_CHECKING:
    from ..analyze import AnalysisOptions
    from ..core.configuration import RudderConfig
    from ..evaluate.tasks import Task
    from ..runtime.models import Subject

EXAMPLES = copyable(
    "rudder analyze --out analysis",
    "rudder analyze --calibration calibration --out analysis",
    "rudder analyze --split examples --parts tokens --out pictures",
    "rudder analyze --parts ablations --calibration calibration --out heatmaps",
    "rudder analyze --model FOLDER --data photos --out analysis",
    "rudder analyze --model ID --data coco --split val2014 --out analysis",
)
INTERRUPTED = 130


def analyze(
    out: options.OutOption,
    model: shared.ModelOption = None,
    data: options.DataOption = None,
    images: shared.ImagesOption = None,
    captions: shared.CaptionsOption = None,
    split: shared.SplitOption = None,
    pictures: options.PicturesOption = 100,
    ids: shared.IdsOption = None,
    parts: options.PartsOption = None,
    calibration: options.CalibrationOption = None,
    settings: shared.SettingsOption = None,
    rudder: shared.RudderOption = None,
    shown: options.ShownOption = 8,
    token_picture: options.TokenPictureOption = None,
    prompt: shared.PromptOption = None,
    max_new_tokens: shared.MaxNewTokensOption = None,
    lineage: shared.LineageOption = shared.LineageChoice.PATTERN,
    batch_size: shared.BatchSizeOption = 8,
    bootstrap: options.BootstrapOption = 2000,
    seed: options.SeedOption = 0,
    skip_unreadable: shared.SkipUnreadableOption = False,
    device: shared.DeviceOption = "auto",
    dtype: shared.DtypeOption = shared.DtypeChoice.AUTO,
    revision: shared.RevisionOption = None,
) -> None:
    """Look inside: layers, geometry of CARD, answers token by token, detectors, ablations; as JSON, figures, HTML.

    Writes numbers.json, figures/ (PNG and SVG) and report.html, which stands alone. What needs annotations is left out
    where there are none. An interrupted analysis goes on when the command is repeated.
    """
    given = dict(locals())
    with refusing_bad_input():
        from ..analyze.extras import require
        from ..analyze.store import Store

        require()
        Store(out).check()
        wanted = _options(given)
        found = None
        if calibration is not None:
            from ..analyze.ablations import ablations, read_calibration

            found = read_calibration(calibration)
            ablations(found)  # whether it can be used, before a model is loaded
        elif wanted.parts == ("ablations",):
            raise ValueError("--parts ablations needs --calibration, the folder of a `rudder calibrate`.")
        subject, task, config = (None, None, None) if wanted.parts == ("ablations",) else _subject(given)
    bar = _Bar()
    try:
        with reporting_failure():
            from ..analyze import analyse
            from ..core.errors import UnsupportedModelError
            from ..metrics.errors import InputError

            try:
                numbers = analyse(out, subject, task, config, wanted, found, bar)
            except (InputError, UnsupportedModelError) as error:
                stop(error, BAD_INPUT)
    except KeyboardInterrupt:
        typer.echo(f"\nInterrupted. What is read is in {out}: repeat the command to go on.", err=True)
        raise typer.Exit(INTERRUPTED) from None
    finally:
        bar.close()
    _tell(numbers, out)


def _options(given: dict[str, Any]) -> AnalysisOptions:
    from ..analyze import PARTS, AnalysisOptions

    named = tuple(part.strip() for part in (given["parts"] or "").split(",") if part.strip())
    unknown = [part for part in named if part not in PARTS]
    if unknown:
        raise ValueError(f"--parts has {unknown[0]!r}: choose of {', '.join(PARTS)}.")
    return AnalysisOptions(
        parts=tuple(part for part in PARTS if not named or part in named),
        max_new_tokens=given["max_new_tokens"],
        batch_size=given["batch_size"],
        lineage=given["lineage"].value,
        seed=given["seed"],
        draws=given["bootstrap"],
        shown=given["shown"],
        token_picture=given["token_picture"],
        command=shlex.join(["rudder", *sys.argv[1:]]),
    )


def _subject(given: dict[str, Any]) -> tuple[Subject, Task, RudderConfig]:
    """Pictures, then the model and its settings."""
    from ..analyze import find_pictures
    from ..evaluate.tasks import DataOptions
    from .evaluate import read_ids

    chosen = None if given["ids"] is None else read_ids(given["ids"])
    fields = ("data", "captions", "images", "split", "prompt", "seed")
    source = DataOptions(**{name: given[name] for name in fields}, limit=given["pictures"], wanted=chosen)
    task = find_pictures(source)
    task.skip_unreadable(given["skip_unreadable"])
    asked = given["token_picture"]
    if asked is not None and asked not in {sample.id for sample in task.samples}:
        raise ValueError(f"--token-picture {asked} is not among the pictures, such as {task.samples[0].id}.")

    from ..analyze import settings_for
    from ..evaluate.methods import parse_settings
    from ..runtime.models import load_subject

    parsed = parse_settings(given["settings"] or [])
    if set(parsed) - {""}:
        raise ValueError(f"--set {next(iter(set(parsed) - {''}))}.NAME=VALUE: here settings are NAME=VALUE.")
    device = choose_device(given["device"])
    subject = load_subject(given["model"], given["dtype"].value, device, given["rudder"], given["revision"])
    return subject, task, settings_for(subject, parsed.get("", {}))


def _tell(numbers: dict[str, Any], out: Path) -> None:
    """The result in a few lines; the report has the rest."""
    geometry, detector = numbers.get("geometry") or {}, numbers.get("detector") or {}
    if found := geometry.get("rotation"):
        turned, gain = found["rotation_degrees"], found["alignment_gain"]
        typer.echo(
            f"Rotation of CARD by the picture: mean {turned['mean']:.1f}, median {turned['median']:.1f} degrees"
        )
        typer.echo(f"Alignment gain: {gain['mean']:.3f}, which is 1 - cos(rotation) by construction")
    if found := geometry.get("clusters"):
        none = max(found["silhouette_without_clusters"])
        typer.echo(
            f"Steering vectors: silhouette {found['silhouette']:.3f} at K = {found['k']} (no clusters: {none:.3f})"
        )
    if found := geometry.get("probe"):
        typer.echo(f"Linear probe for objects: mean AUC {found['mean_auc']:.2f} on held-out pictures")
    if found := geometry.get("neighbours"):
        typer.echo(f"Objects shared with nearest neighbours: {found['shared']:.3f}, by chance {found['chance']:.3f}")
    if found := geometry.get("semantic"):
        low, high = found["chance_interval"]
        typer.echo(f"Silhouette by category: {found['silhouette']:.3f}, by chance {low:.3f} to {high:.3f}")
    for name, label in (("vanilla", "vanilla"), ("steered", "RUDDER")):
        if found := detector.get(name):
            told = ", ".join(
                f"{key} {entry['auc']:.2f} [{entry['interval'][0]:.2f}, {entry['interval'][1]:.2f}]"
                for key, entry in found["scores"].items()
            )
            typer.echo(f"AUC for grounded against hallucinated mentions, {label} answers: {told}")
    for note in numbers["notes"]:
        typer.echo(note)
    typer.echo(f"Written to {out}: report.html, numbers.json, figures/")


class _Bar:
    """Progress on stderr."""

    def __init__(self) -> None:
        self._text = ""
        self._bar: Any = None

    def __call__(self, text: str, done: int, total: int) -> None:
        from tqdm import tqdm  # type: ignore[import-untyped]

        if self._bar is None or text != self._text:
            self.close()
            self._bar = tqdm(total=total, desc=text, file=sys.stderr)
            self._text = text
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        """End the line."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
