"""`rudder evaluate`: hallucination measured, on COCO, POPE, MME or the embedded scenes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from . import options
from .common import (
    choose_device,
    command_line,
    copyable,
    next_steps,
    print_result,
    refusing_bad_input,
    reporting_failure,
)

EXAMPLES = copyable(
    "rudder evaluate --out results/scenes",
    "rudder evaluate --task scenes-pope --decoding nucleus --out results/pope",
    "rudder evaluate --methods all --decoding beam --out results/all-beam",
    "rudder evaluate --set rudder-add.alpha_max=5 --out results/weaker",
    "rudder evaluate --model ID --task chair --data coco --out results/chair",
    "rudder evaluate --model ID --task pope --data FILES --images DIR --out X",
)


def evaluate(
    out: options.OutOption,
    model: options.ModelOption = None,
    task: Annotated[
        Literal["scenes", "scenes-pope", "chair", "pope", "mme"],
        typer.Option(metavar="NAME", help="Task: scenes, scenes-pope, chair, pope or mme; the scenes need no data."),
    ] = "scenes",
    data: Annotated[
        Path | None,
        typer.Option(
            help="chair: COCO's folder or instances_*.json; pope: folder of questions, or COCO; mme: its folder."
        ),
    ] = None,
    images: options.ImagesOption = None,
    split: options.SplitOption = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Number of images, drawn with the seed.", show_default="500, MME: all")
    ] = None,
    methods: options.MethodsOption = "vanilla,rudder-beta,rudder-add",
    settings: options.MethodSettingsOption = None,
    prompt: options.PromptOption = None,
    max_new_tokens: options.MaxNewTokensOption = None,
    decoding: Annotated[
        Literal["greedy", "beam", "nucleus"],
        typer.Option(metavar="NAME", help="Decoding: greedy, beam (5 beams) or nucleus (p 0.9)."),
    ] = "greedy",
    batch_size: options.BatchSizeOption = 8,
    seed: options.SeedOption = 0,
    device: options.DeviceOption = "auto",
    dtype: options.DtypeOption = "auto",
    lineage: options.LineageOption = "pattern",
    parser: options.ParserOption = "robust",
) -> None:
    """Measure hallucination with and without RUDDER: CHAIR, POPE, MME, with fluency and intervals beside every score.

    If it is interrupted, repeat the command. `accelerate launch -m rudder_hf evaluate ...`
    splits the work over processes; the folder has to be one that all of them see. `rudder score` scores the answers
    again, or compares runs.
    """
    with refusing_bad_input():
        from ..evaluate import methods as method_names
        from ..evaluate.result import Scoring
        from ..evaluate.run import Run, RunOptions, donor_prompts
        from ..evaluate.tasks import DataOptions, make_task
        from ..runtime.environment import process_device, this_process

        scoring = Scoring(lineage, parser)
        names = method_names.parse_names(methods)
        parsed = method_names.parse_settings(settings or [])
        method_names.check_settings(names, parsed)
        process = this_process()
        Run(out, process).check()
        asked = make_task(task, DataOptions(data, images, split, prompt, limit, seed))
        asked.check_images()

        from ..evaluate.tables import save_result
        from ..runtime.answers import Decoding
        from ..runtime.models import load_model
        from ..runtime.report import ProgressBar

        decoded = Decoding(decoding, max_new_tokens or asked.max_new_tokens)
        run_options = RunOptions(batch_size, seed, command=command_line())
        loaded = load_model(model, dtype, process_device(choose_device(device), process))
        optional = method_names.parse_optional(methods)
        chosen, left_out = method_names.make_methods(
            names, loaded, parsed, optional, lambda: donor_prompts(loaded, asked)
        )
        folder = Run(out, process).begin(asked, loaded, decoded, run_options)
    with reporting_failure(), ProgressBar(shown=process.rank == 0) as bar:
        result = save_result(folder.result(scoring), out) if folder.answer(chosen, bar) else None
    if result is None:
        typer.echo(
            f"Process {process.rank} of {process.count} is done; the last one writes the result. Should one be lost, "
            "repeat the command: it generates only what is missing.",
            err=True,
        )
        return
    print_result(result, out)
    for line in left_out:
        typer.echo(line)
    again = f"rudder score {out} {'--lineage strict' if result.kind == 'chair' else '--table'}"
    other = next((name for name in ("vcd", "pai", "dola") if name not in {m.method for m in result.methods}), "vti")
    next_steps(again, f"add a method: the same command with --methods {other}")
