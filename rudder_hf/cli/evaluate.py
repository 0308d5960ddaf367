"""`rudder evaluate`: hallucination measured, on COCO, POPE, MME or the embedded scenes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from . import options
from .common import choose_device, command_line, copyable, read_ids, refusing_bad_input, resumable

if TYPE_CHECKING:
    from ..evaluate.result import EvaluationResult
    from ..evaluate.scoring import Scoring

EXAMPLES = copyable(
    "rudder evaluate --out results/scenes",
    "rudder evaluate --task scenes-pope --decoding nucleus --out results/pope",
    "rudder evaluate --methods all --decoding beam --out results/all-beam",
    "rudder evaluate --model ID --task chair --data coco --out results/chair",
    "rudder evaluate --model ID --task pope --data FILES --images DIR --out X",
    "rudder evaluate --rescore results/chair --lineage wordnet",
    "rudder evaluate --compare results/a:vanilla results/b:rudder-beta",
    "rudder evaluate --table results/greedy --table results/beam --latex",
    "rudder evaluate --table results/scenes --table results/pope --table costs.json",
)


def evaluate(
    model: options.ModelOption = None,
    task: Annotated[
        Literal["scenes", "scenes-pope", "chair", "pope", "mme"],
        typer.Option(help="What to ask; the scenes need no data."),
    ] = "scenes",
    data: Annotated[
        Path | None,
        typer.Option(
            help="chair: COCO's folder or instances_*.json; pope: question files or either; mme: its folder."
        ),
    ] = None,
    images: options.ImagesOption = None,
    captions: options.CaptionsOption = None,
    split: options.SplitOption = None,
    decoding: Annotated[Literal["greedy", "beam", "nucleus"], typer.Option(help="How to write answers.")] = "greedy",
    methods: options.MethodsOption = "vanilla,rudder-beta,rudder-add",
    settings: options.SettingsOption = None,
    rudder: options.RudderOption = None,
    out: options.OptionalOutOption = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="How many images, drawn with the seed.", show_default="500, MME: all")
    ] = None,
    ids: options.IdsOption = None,
    prompt: options.PromptOption = None,
    max_new_tokens: options.MaxNewTokensOption = None,
    num_beams: options.NumBeamsOption = 5,
    top_p: options.TopPOption = 0.9,
    temperature: Annotated[float, typer.Option(help="Of nucleus sampling.")] = 1.0,
    seed: options.SeedOption = 0,
    batch_size: options.BatchSizeOption = 8,
    likelihood: Annotated[
        bool, typer.Option("--likelihood/--no-likelihood", help="How likely answers are to the unsteered model.")
    ] = True,
    skip_unreadable: options.SkipUnreadableOption = False,
    device: options.DeviceOption = "auto",
    dtype: options.DtypeOption = "auto",
    revision: options.RevisionOption = None,
    lineage: options.LineageOption = "pattern",
    parser: Annotated[Literal["robust", "official", "opera"], typer.Option(help="Of POPE's answers.")] = "robust",
    bootstrap: options.BootstrapOption = 10_000,
    margin: options.MarginOption = 1 / 3,
    rescore: Annotated[
        Path | None, typer.Option(help="Score saved answers again: a results folder, or captions with --data.")
    ] = None,
    compare: Annotated[
        tuple[str, str] | None, typer.Option(help="Two results, each FOLDER or FOLDER:METHOD.", metavar="A B")
    ] = None,
    table: Annotated[
        list[Path] | None,
        typer.Option(
            help="Results to put into one table; repeat it. Captions, questions and costs are joined by method."
        ),
    ] = None,
    latex: Annotated[bool, typer.Option("--latex", help="Print tables as LaTeX instead of Markdown.")] = False,
) -> None:
    """Measure hallucination with and without RUDDER: CHAIR, POPE, MME, with fluency and intervals beside every score.

    Interrupted runs go on where they were when the command is repeated. `accelerate launch -m rudder_hf evaluate ...`
    splits the work over processes; the folder has to be one that all of them see.
    """
    given = dict(locals())
    with refusing_bad_input():
        if sum(value is not None for value in (rescore, compare, table or None)) > 1:
            raise ValueError("--rescore, --compare and --table are different commands: give one of them.")
        from ..evaluate.scoring import Scoring

        scoring = Scoring(lineage, parser, bootstrap, margin)
    if table:
        _print_tables(table, latex)
    elif compare is not None:
        _compare(compare, scoring)
    elif rescore is not None:
        _rescore(given, scoring)
    else:
        _run(given, scoring)


def _run(given: dict[str, Any], scoring: Scoring) -> None:
    """Run a task and print its table."""
    with refusing_bad_input():
        if given["out"] is None:
            raise ValueError("Say where the results go: --out FOLDER.")
        from ..evaluate import methods as method_names
        from ..evaluate.folder import RunFolder
        from ..evaluate.tasks import DataOptions, make_task
        from ..runtime.environment import process_device, this_process

        names = method_names.parse_names(given["methods"])
        settings = method_names.parse_settings(given["settings"] or [])
        process = this_process()
        RunFolder(given["out"]).check()
        wanted = None if given["ids"] is None else read_ids(given["ids"])
        fields = ("data", "captions", "images", "split", "prompt", "limit", "seed")
        task = make_task(given["task"], DataOptions(**{name: given[name] for name in fields}, wanted=wanted))
        task.skip_unreadable(given["skip_unreadable"])

        from ..evaluate.run import RunOptions, evaluate
        from ..runtime.decoding import Decoding
        from ..runtime.models import load_model
        from ..runtime.progress import ProgressBar

        decoding = Decoding(
            given["decoding"],
            given["max_new_tokens"] or task.max_new_tokens,
            given["num_beams"],
            given["top_p"],
            given["temperature"],
        )
        run_options = RunOptions(given["batch_size"], given["seed"], given["likelihood"], command_line())
        device = process_device(choose_device(given["device"]), process)
        loaded = load_model(given["model"], given["dtype"], device, given["rudder"], given["revision"])
        optional = method_names.parse_optional(given["methods"])
        questions = task.kind != "chair"
        chosen, left_out = method_names.make_methods(names, loaded, settings, decoding.name, questions, optional)
        task.notes += left_out
    with resumable(given["out"]), ProgressBar(shown=process.is_main) as bar:
        result = evaluate(task, loaded, chosen, decoding, given["out"], run_options, scoring, process, bar)
    if result is None:
        typer.echo(
            f"Process {process.rank} of {process.count} is done; the last one writes the result. Should one be lost, "
            "repeat the command: only what is missing is done.",
            err=True,
        )
        return
    _print_result(result, given["latex"])
    typer.echo(f"Written to {given['out']}")


def _print_result(result: EvaluationResult, latex: bool) -> None:
    from ..evaluate import tables

    if latex:
        typer.echo(tables.paper_latex([result]))
        return
    tables.terminal_table(result).print()
    for line in tables.notes(result):
        typer.echo(line)


def _print_tables(paths: list[Path], latex: bool) -> None:
    with refusing_bad_input():
        from ..compare.table import joined, markdown, read_parts
        from ..evaluate import tables

        results, costs = read_parts(paths)
        if costs or len({result.kind for result in results}) > 1:
            if latex:
                raise ValueError("A table of several tasks or with costs is Markdown only: leave --latex out.")
            typer.echo(markdown(joined(results, costs)))
            return
        typer.echo(tables.paper_latex(results) if latex else tables.paper_table(results).markdown())


def _compare(sides: tuple[str, str], scoring: Scoring) -> None:
    with refusing_bad_input():
        from ..evaluate.folder import compare_runs
        from ..evaluate.tables import compared_markdown

        for pair in compare_runs(*sides, scoring):
            typer.echo(compared_markdown(pair) + "\n")


def _rescore(given: dict[str, Any], scoring: Scoring) -> None:
    with refusing_bad_input():
        from ..evaluate.folder import rescore, save_rescored, score_captions
        from ..evaluate.tasks import DataOptions
        from ..evaluate.tasks.captions import coco_annotations

        source: Path = given["rescore"]
        if source.is_dir():
            result = rescore(source, scoring)
            path: Path | None = save_rescored(result, given["out"] or source)
        else:
            if not source.is_file():
                raise ValueError(f"There is no {source}: give a results folder, or a file of captions with --data.")
            found = coco_annotations(DataOptions(given["data"], given["captions"], split=given["split"]))
            result = score_captions(source, *found, scoring, given["seed"])
            path = None if given["out"] is None else save_rescored(result, given["out"])
    _print_result(result, given["latex"])
    if path is not None:
        typer.echo(f"Written to {path}")
