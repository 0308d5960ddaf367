"""`rudder evaluate` and `rudder score`: hallucination measured, on COCO, POPE, MME or the embedded scenes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from . import common

EXAMPLES = {
    "evaluate": (
        "rudder evaluate --out results/scenes",
        "rudder evaluate --task scenes-pope --decoding nucleus --out results/pope",
        "rudder evaluate --methods all --decoding beam --out results/all-beam",
        "rudder evaluate --set rudder-add.alpha_max=5 --out results/weaker",
        "rudder evaluate --model ID --task chair --data coco --out results/chair",
        "rudder evaluate --model ID --task pope --data FILES --images DIR --out X",
    ),
    "score": (
        "rudder score results/chair --lineage wordnet",
        "rudder score results/a:vanilla results/b:rudder-beta",
        "rudder score results/greedy results/beam --table",
    ),
}


def evaluate_command(
    out: common.OutOption,
    model: common.ModelOption = None,
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
    images: common.ImagesOption = None,
    split: common.SplitOption = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Number of images, drawn with the seed.", show_default="500, MME: all")
    ] = None,
    methods: common.MethodsOption = "vanilla,rudder-beta,rudder-add",
    settings: common.MethodSettingsOption = None,
    prompt: common.PromptOption = None,
    max_new_tokens: common.MaxNewTokensOption = None,
    decoding: Annotated[
        Literal["greedy", "beam", "nucleus"],
        typer.Option(metavar="NAME", help="Decoding: greedy, beam (5 beams) or nucleus (p 0.9)."),
    ] = "greedy",
    batch_size: common.BatchSizeOption = 8,
    seed: common.SeedOption = 0,
    device: common.DeviceOption = "auto",
    dtype: common.DtypeOption = "auto",
    lineage: common.LineageOption = "pattern",
    parser: common.ParserOption = "robust",
) -> None:
    """Measure hallucination with and without RUDDER: CHAIR, POPE, MME, with fluency and intervals beside every score.

    If it is interrupted, repeat the command. `accelerate launch -m rudder_hf evaluate ...`
    splits the work over processes; the folder has to be one that all of them see. `rudder score` scores the answers
    again, or compares runs.
    """
    with common.refusing_bad_input():
        from ..evaluate import methods as method_names
        from ..evaluate.result import Scoring
        from ..evaluate.run import Run, RunOptions
        from ..evaluate.tasks import DataOptions, donor_prompts, make_task
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
        run_options = RunOptions(batch_size, seed, command=common.command_line())
        loaded = load_model(model, dtype, process_device(common.choose_device(device), process))
        optional = method_names.parse_optional(methods)
        chosen, left_out = method_names.make_methods(
            names, loaded, parsed, optional, lambda: donor_prompts(loaded, asked)
        )
        folder = Run(out, process).begin(asked, loaded, decoded, run_options)
    with common.reporting_failure(), ProgressBar(shown=process.rank == 0) as bar:
        result = save_result(folder.result(scoring), out) if folder.answer(chosen, bar) else None
    if result is None:
        typer.echo(
            f"Process {process.rank} of {process.count} is done; the last one writes the result. Should one be lost, "
            "repeat the command: it generates only what is missing.",
            err=True,
        )
        return
    common.print_result(result, out)
    for line in left_out:
        typer.echo(line)
    again = f"rudder score {out} {'--lineage strict' if result.kind == 'chair' else '--table'}"
    other = next((name for name in ("vcd", "pai", "dola") if name not in {m.method for m in result.methods}), "vti")
    common.next_steps(again, f"add a method: the same command with --methods {other}")


def score_command(
    sources: Annotated[
        list[str],
        typer.Argument(metavar="RESULTS...", help="Folders of `rudder evaluate`, or FOLDER:METHOD."),
    ],
    table: Annotated[
        bool, typer.Option("--table", help="Print Markdown with all metrics, intervals and p-values.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for result.json, table.md and table.tex.", show_default="they are printed only"),
    ] = None,
    lineage: common.LineageOption = "pattern",
    parser: common.ParserOption = "robust",
) -> None:
    """Score saved answers again, with another lineage or parser, or methods of several runs.

    Several runs have to be on the same images: every method is compared with the first, image by image.
    """
    with common.refusing_bad_input():
        from ..evaluate import tables
        from ..evaluate.result import Scoring
        from ..runtime.store import check_folder

        if out is not None:
            check_folder(out, own=False)
        result = tables.score_runs(sources, Scoring(lineage, parser))
        if out is not None:
            tables.save_result(result, out)
    if table:
        typer.echo(tables.markdown([result]))
        return
    common.print_result(result, out)
    keep = [] if out is not None else ["keep this: with --out FOLDER"]
    common.next_steps("all metrics, intervals and p-values: the same command with --table", *keep)
