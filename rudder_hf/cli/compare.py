"""`rudder compare`: every decoding method side by side on one model, tuned alike."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from . import options as shared
from .common import (
    BAD_INPUT,
    choose_device,
    copyable,
    refusing_bad_input,
    reporting_failure,
    stop,
)

EXAMPLES = copyable(
    "rudder compare --out comparison",
    "rudder compare --methods vanilla,rudder,vcd --decodings greedy --out quick",
    "rudder compare --model ID --data coco --split val2014 --out comparison",
)
INTERRUPTED = 130

OutOption = Annotated[Path, typer.Option(help="A new folder, or that of the same comparison, which is continued.")]
MethodsOption = Annotated[str, typer.Option(help="Separated by commas, or groups: all, rudder, peers, controls.")]
DecodingsOption = Annotated[str, typer.Option(help="Separated by commas: greedy, beam, nucleus.")]
PicturesOption = Annotated[int, typer.Option(min=2, help="Calibration pictures that settings are chosen on.")]
BeamPicturesOption = Annotated[
    int, typer.Option(min=2, help="How many of them for methods that know beam search only.")
]
ScenesOption = Annotated[int, typer.Option(min=1, help="Pictures to evaluate captions on.")]
BeamScenesOption = Annotated[int, typer.Option(min=1, help="The same for beam search.")]
PopeScenesOption = Annotated[int, typer.Option(min=5, help="Pictures that yes/no questions are asked about.")]
EverywhereOption = Annotated[
    bool,
    typer.Option("--everywhere", help="Published settings and controls under every decoding, not only the first."),
]
RoundsOption = Annotated[int, typer.Option(min=1, help="Timed rounds of the costs.")]
CostTokensOption = Annotated[int, typer.Option(min=2, help="Length of the timed answers.")]
BootstrapOption = Annotated[int, typer.Option(min=1, help="Draws for intervals.")]
RecallFloorOption = Annotated[float, typer.Option(help="Least recall as a share of vanilla's.")]
NllRiseOption = Annotated[float, typer.Option(help="Most nats per token that captions may get less likely.")]


def compare(
    out: OutOption,
    model: shared.ModelOption = None,
    data: Annotated[Path | None, typer.Option(help="COCO's folder.", show_default="the embedded scenes")] = None,
    images: shared.ImagesOption = None,
    captions: shared.CaptionsOption = None,
    split: shared.SplitOption = None,
    rudder: shared.RudderOption = None,
    methods: MethodsOption = "all",
    decodings: DecodingsOption = "greedy,beam,nucleus",
    pictures: PicturesOption = 80,
    beam_pictures: BeamPicturesOption = 20,
    scenes: ScenesOption = 500,
    beam_scenes: BeamScenesOption = 100,
    pope_scenes: PopeScenesOption = 40,
    everywhere: EverywhereOption = False,
    recall_floor: RecallFloorOption = 0.95,
    nll_rise: NllRiseOption = 0.05,
    max_new_tokens: shared.MaxNewTokensOption = None,
    num_beams: shared.NumBeamsOption = 5,
    top_p: shared.TopPOption = 0.9,
    batch_size: shared.BatchSizeOption = 50,
    rounds: RoundsOption = 8,
    cost_tokens: CostTokensOption = 64,
    bootstrap: BootstrapOption = 10_000,
    seed: shared.SeedOption = 0,
    device: shared.DeviceOption = "auto",
    dtype: shared.DtypeOption = shared.DtypeChoice.AUTO,
    revision: shared.RevisionOption = None,
) -> None:
    """Tune every method on the same calibration pictures, then compare quality and cost, also where RUDDER loses.

    Each method gets as many settings to choose from, the same recall floor and the same limit of fluency. Writes one
    table for each decoding, a picture of hallucination against cost, and all numbers. Repeat the command to go on
    after an interruption.
    """
    given = dict(locals())
    with refusing_bad_input():
        from ..evaluate.methods import parse_names
        from ..evaluate.tasks import DataOptions

        names = tuple(parse_names(methods))
        source = DataOptions(data, captions, images, split, seed=seed)

        from ..compare.options import find_pictures
        from ..compare.run import compare as run
        from ..metrics.errors import InputError
        from ..runtime.models import load_subject

        options = _options(given, names)
        found = find_pictures(source, options)
        subject = load_subject(model, dtype.value, choose_device(device), rudder, revision)
    bar = _Bar()
    try:
        with reporting_failure():
            try:
                comparison = run(subject, found, out, options, bar)
            except (InputError, BlockingIOError) as error:
                stop(error, BAD_INPUT)
    except KeyboardInterrupt:
        typer.echo(f"\nInterrupted. What is finished is in {out}: repeat the command to go on.", err=True)
        raise typer.Exit(INTERRUPTED) from None
    finally:
        bar.close()
    from ..compare.table import markdown
    from ..runtime.figures import figures_available

    typer.echo(markdown(comparison))
    if not figures_available():
        typer.echo("No pictures: pip install 'rudder-hf[plots]'.", err=True)
    typer.echo(f"Written to {out}")


def _options(given: dict[str, Any], names: tuple[str, ...]) -> Any:
    from ..benchmark.costs import CostSettings
    from ..calibrate.options import CalibrationOptions, Limits
    from ..compare.options import CompareOptions

    limits = Limits(recall_floor=given["recall_floor"], nll_rise=given["nll_rise"])
    same = (
        *(
            "pictures",
            "beam_pictures",
            "scenes",
            "beam_scenes",
            "pope_scenes",
            "everywhere",
            "max_new_tokens",
            "num_beams",
            "top_p",
            "batch_size",
        ),
        *("bootstrap", "seed"),
    )
    return CompareOptions(
        methods=names,
        decodings=tuple(word.strip() for word in given["decodings"].split(",") if word.strip()),
        calibration=CalibrationOptions(limits=limits, seed=given["seed"]),
        costs=CostSettings(given["cost_tokens"], given["rounds"], num_beams=given["num_beams"], seed=given["seed"]),
        command=shlex.join(["rudder", *sys.argv[1:]]),
        **{name: given[name] for name in same},
    )


class _Bar:
    """Progress on stderr: a line for each part."""

    def __init__(self) -> None:
        self._text = ""
        self._bar: Any = None

    def __call__(self, text: str, done: int, total: int) -> None:
        from tqdm import tqdm  # type: ignore[import-untyped]

        if self._bar is None or text != self._text or done < self._bar.n:
            self.close()
            self._bar = tqdm(total=total, desc=text, initial=done, leave=False, file=sys.stderr)
            self._text = text
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        """End the line."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
