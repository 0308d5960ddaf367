"""`rudder compare`: every decoding method side by side on one model, tuned alike."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from . import options as shared
from .common import choose_device, command_line, copyable, parse_words, refusing_bad_input, reporting_failure

if TYPE_CHECKING:
    from ..compare import CompareOptions

EXAMPLES = copyable(
    "rudder compare --out comparison",
    "rudder compare --methods vanilla,rudder,vcd --decodings greedy --out quick",
    "rudder compare --model ID --data coco --split val2014 --out comparison",
)


def compare(
    out: shared.OutOption,
    model: shared.ModelOption = None,
    data: Annotated[Path | None, typer.Option(help="COCO's folder.", show_default="the embedded scenes")] = None,
    images: shared.ImagesOption = None,
    captions: shared.CaptionsOption = None,
    split: shared.SplitOption = None,
    rudder: shared.RudderOption = None,
    methods: Annotated[
        str, typer.Option(help="Methods by commas, or groups: all, rudder, peers, controls; vanilla is always run.")
    ] = "all",
    decodings: Annotated[
        str, typer.Option(help="Decodings by commas: greedy, beam, nucleus.")
    ] = "greedy,beam,nucleus",
    limit: Annotated[int, typer.Option(min=1, help="Images to evaluate captions on.")] = 500,
    beam_limit: Annotated[int, typer.Option(min=1, help="Images to evaluate captions of beam search on.")] = 100,
    pope_limit: Annotated[int, typer.Option(min=5, help="Images that yes/no questions are asked about.")] = 40,
    tune_limit: Annotated[int, typer.Option(min=2, help="Calibration images that settings are chosen on.")] = 80,
    tune_beam_limit: Annotated[
        int, typer.Option(min=2, help="Calibration images for methods that only have beam search.")
    ] = 20,
    everywhere: Annotated[
        bool,
        typer.Option(
            "--everywhere", help="Run published settings and controls under all decodings, not only the first."
        ),
    ] = False,
    objective: Annotated[
        Literal["f1", "paper", "mean", "chair_s", "chair_i"],
        typer.Option(
            metavar="NAME",
            help="Objective of all methods, as of rudder calibrate: the highest f1, or the lowest CHAIR: chair_s, "
            "chair_i, mean or paper.",
        ),
    ] = "f1",
    recall_floor: Annotated[float, typer.Option(help="Lowest recall, as a share of vanilla's.")] = 0.95,
    nll_rise: Annotated[float, typer.Option(help="Largest rise of negative log-likelihood, nats per token.")] = 0.05,
    max_new_tokens: shared.MaxNewTokensOption = None,
    num_beams: shared.NumBeamsOption = 5,
    top_p: shared.TopPOption = 0.9,
    batch_size: shared.BatchSizeOption = 50,
    rounds: Annotated[int, typer.Option(min=1, help="Timed rounds of the costs.")] = 8,
    cost_tokens: Annotated[int, typer.Option(min=2, help="Length of the timed answers.")] = 64,
    bootstrap: shared.BootstrapOption = 10_000,
    margin: shared.MarginOption = 1 / 3,
    seed: shared.SeedOption = 0,
    device: shared.DeviceOption = "auto",
    dtype: shared.DtypeOption = "auto",
    revision: shared.RevisionOption = None,
) -> None:
    """Tune every method on the same calibration images, then compare quality and cost, also where RUDDER loses.

    Each method gets as many settings to choose from, the same recall floor and the same limit of fluency. Writes one
    table for each decoding, a figure of hallucination against cost, and all numbers. Repeat the command to go on
    after an interruption.
    """
    given = dict(locals())
    with refusing_bad_input():
        from ..compare import compare as run
        from ..compare import find_images, markdown
        from ..evaluate.tasks import DataOptions
        from ..runtime.figures import figures_available
        from ..runtime.models import load_model
        from ..runtime.progress import ProgressBar
        from ..runtime.store import Store

        options = _options(given)
        Store(out, "compare").check()
        found = find_images(DataOptions(data, captions, images, split, seed=seed), options)
        loaded = load_model(model, dtype, choose_device(device), rudder, revision)
    with reporting_failure(), ProgressBar() as bar:
        comparison = run(loaded, found, out, options, bar)
    typer.echo(markdown(comparison))
    if not figures_available():
        typer.echo("No figures: pip install 'rudder-hf[plots]'.", err=True)
    typer.echo(f"Written to {out}")


def _options(given: dict[str, Any]) -> CompareOptions:
    from ..benchmark.costs import CostSettings
    from ..calibrate import CalibrationOptions, Limits
    from ..compare import CompareOptions
    from ..evaluate.methods import parse_names

    limits = Limits(recall_floor=given["recall_floor"], nll_rise=given["nll_rise"])
    rules = {name: given[name] for name in ("objective", "max_new_tokens", "seed")}
    same = (
        *("limit", "beam_limit", "pope_limit", "tune_limit", "tune_beam_limit", "everywhere"),
        *("top_p", "batch_size", "bootstrap", "margin", "seed"),
    )
    return CompareOptions(
        methods=tuple(parse_names(given["methods"])),
        decodings=parse_words("--decodings", given["decodings"], ("greedy", "beam", "nucleus")),
        calibration=CalibrationOptions(limits=limits, **rules),
        costs=CostSettings(given["cost_tokens"], given["rounds"], num_beams=given["num_beams"], seed=given["seed"]),
        command=command_line(),
        **{name: given[name] for name in same},
    )
