"""`rudder evaluate`: hallucination measured, on COCO, POPE, MME or the embedded scenes."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from . import evaluate_options as options
from .common import choose_device, copyable, refusing_bad_input, reporting_failure

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
INTERRUPTED = 130


def evaluate(
    model: options.ModelOption = None,
    task: options.TaskOption = options.TaskChoice.SCENES,
    data: options.DataOption = None,
    images: options.ImagesOption = None,
    captions: options.CaptionsOption = None,
    split: options.SplitOption = None,
    decoding: options.DecodingOption = options.DecodingChoice.GREEDY,
    methods: options.MethodsOption = "vanilla,rudder-beta,rudder-add",
    settings: options.SettingsOption = None,
    rudder: options.RudderOption = None,
    out: options.OutOption = None,
    limit: options.LimitOption = None,
    ids: options.IdsOption = None,
    prompt: options.PromptOption = None,
    max_new_tokens: options.MaxNewTokensOption = None,
    num_beams: options.NumBeamsOption = 5,
    top_p: options.TopPOption = 0.9,
    temperature: options.TemperatureOption = 1.0,
    seed: options.SeedOption = 0,
    batch_size: options.BatchSizeOption = 8,
    likelihood: options.LikelihoodOption = True,
    skip_unreadable: options.SkipUnreadableOption = False,
    device: options.DeviceOption = "auto",
    dtype: options.DtypeOption = options.DtypeChoice.AUTO,
    revision: options.RevisionOption = None,
    lineage: options.LineageOption = options.LineageChoice.PATTERN,
    parser: options.ParserOption = options.ParserChoice.ROBUST,
    bootstrap: options.BootstrapOption = 10_000,
    rescore: options.RescoreOption = None,
    compare: options.CompareOption = None,
    table: options.TableOption = None,
    latex: options.LatexOption = False,
) -> None:
    """Measure hallucination with and without RUDDER: CHAIR, POPE, MME, with fluency and intervals beside every score.

    Interrupted runs go on where they were when the command is repeated. `accelerate launch -m rudder_hf evaluate ...`
    splits the work over processes; the folder has to be one that all of them see.
    """
    given = dict(locals())
    with refusing_bad_input():
        if sum(value is not None for value in (rescore, compare, table or None)) > 1:
            raise ValueError("--rescore, --compare and --table are different commands: give one of them.")
        scoring = _scoring(given)
    if table:
        _print_tables(table, latex)
    elif compare is not None:
        _compare(compare, scoring)
    elif rescore is not None:
        _rescore(given, scoring)
    else:
        _run(given, scoring)


def _scoring(given: dict[str, Any]) -> Scoring:
    from ..evaluate.scoring import Scoring

    return Scoring(given["lineage"].value, given["parser"].value, given["bootstrap"])


def _run(given: dict[str, Any], scoring: Scoring) -> None:
    """Run a task and print its table."""
    with refusing_bad_input():
        if given["out"] is None:
            raise ValueError("Say where the results go: --out FOLDER.")
        from ..evaluate import methods as method_names
        from ..evaluate.tasks import DataOptions, make_task
        from ..runtime.processes import process_device, this_process

        names = method_names.parse_names(given["methods"])
        settings = method_names.parse_settings(given["settings"] or [])
        process = this_process()
        wanted = None if given["ids"] is None else read_ids(given["ids"])
        fields = ("data", "captions", "images", "split", "prompt", "limit", "seed")
        task = make_task(given["task"].value, DataOptions(**{name: given[name] for name in fields}, wanted=wanted))
        task.skip_unreadable(given["skip_unreadable"])

        from ..evaluate import run as session
        from ..evaluate.runner import RunOptions
        from ..runtime.decoding import Decoding
        from ..runtime.models import load_subject

        decoding = Decoding(
            given["decoding"].value,
            given["max_new_tokens"] or task.max_new_tokens,
            given["num_beams"],
            given["top_p"],
            given["temperature"],
        )
        run_options = RunOptions(given["batch_size"], given["seed"], given["likelihood"], _command())
        device = process_device(choose_device(given["device"]), process)
        subject = load_subject(given["model"], given["dtype"].value, device, given["rudder"], given["revision"])
        optional = method_names.parse_optional(given["methods"])
        questions = task.kind != "chair"
        chosen, left_out = method_names.make_methods(names, subject, settings, decoding.name, questions, optional)
        task.notes += left_out
        folder = session.start(given["out"], task, subject, chosen, decoding, given["prompt"], run_options)
    bar = _Bar(f"{task.name}, {decoding.name}", shown=process.is_main)
    try:
        with reporting_failure():
            result = session.proceed(folder, task, subject, chosen, decoding, run_options, scoring, process, bar)
    except KeyboardInterrupt:
        typer.echo(f"\nInterrupted. What is finished is in {given['out']}: repeat the command to go on.", err=True)
        raise typer.Exit(INTERRUPTED) from None
    finally:
        bar.close()
    if result is None:
        typer.echo(
            f"Process {process.rank} of {process.count} is done; the last one writes the result. Should one be lost, "
            "repeat the command: only what is missing is done.",
            err=True,
        )
        return
    if process.is_main or process.count > 1:
        _print_result(result, given["latex"])
        typer.echo(f"Written to {given['out']}")


def _command() -> str:
    """What the user typed, without the folder of the program."""
    return shlex.join(["rudder", *sys.argv[1:]])


def read_ids(path: Path) -> list[int | str]:
    """Picture ids from a JSON list or from lines.

    Raises:
        ValueError: The file holds something else.
    """
    import json

    text = path.read_text(encoding="utf-8").strip()
    values = json.loads(text) if text.startswith("[") else [line.strip() for line in text.splitlines() if line.strip()]
    if not values or not all(isinstance(value, (int, str)) and not isinstance(value, bool) for value in values):
        raise ValueError(f"{path} has to hold image ids: a JSON list, or one per line.")
    return list(values)


class _Bar:
    """Progress on stderr, with the time left."""

    def __init__(self, text: str, shown: bool) -> None:
        self._text, self._shown = text, shown
        self._bar: Any = None

    def __call__(self, finished: int, total: int) -> None:
        from tqdm import tqdm

        if self._bar is None:
            # Starts at what earlier runs did, so that the time left is that of this one.
            self._bar = tqdm(
                total=total, initial=finished, desc=self._text, unit="answer", disable=not self._shown, file=sys.stderr
            )
        self._bar.update(finished - self._bar.n)

    def close(self) -> None:
        """End the line."""
        if self._bar is not None:
            self._bar.close()


def _print_result(result: EvaluationResult, latex: bool) -> None:
    from ..evaluate import tables

    if latex:
        typer.echo(tables.paper_latex([result]))
        return
    from rich.console import Console
    from rich.table import Table

    wide = len(result.methods) > tables.MOST_COLUMNS
    headings, rows = tables.method_table(result) if wide else tables.run_table(result)
    shown = Table(title=tables.title(result))
    for heading in headings:
        shown.add_column(heading, justify="left" if not heading else "right")
    for row in rows:
        shown.add_row(*row)
    # Wide tables are for files and pipes: nothing of a number is ever cut off.
    Console(width=None if sys.stdout.isatty() else 240).print(shown)
    for line in tables.notes(result):
        typer.echo(line)


def _print_tables(paths: list[Path], latex: bool) -> None:
    with refusing_bad_input():
        from ..compare.join import joined, read_parts
        from ..compare.table import markdown
        from ..evaluate import tables

        results, costs = read_parts(paths)
        if costs or len({result.kind for result in results}) > 1:
            if latex:
                raise ValueError("A table of several tasks or with costs is Markdown only: leave --latex out.")
            typer.echo(markdown(joined(results, costs)))
            return
        typer.echo((tables.paper_latex if latex else tables.paper_markdown)(results))


def _compare(sides: tuple[str, str], scoring: Scoring) -> None:
    with refusing_bad_input():
        from ..evaluate import tables
        from ..evaluate.run import compare_runs

        for name, differences in compare_runs(*sides, scoring).items():
            rows = [
                [f"{d.label} {tables.ARROWS[d.direction]}".strip(), tables.difference(d)] for d in differences.values()
            ]
            typer.echo(tables.markdown_table([name, "difference [95 % interval]"], rows) + "\n")


def _rescore(given: dict[str, Any], scoring: Scoring) -> None:
    with refusing_bad_input():
        from ..evaluate import run as session
        from ..evaluate.tasks import DataOptions
        from ..evaluate.tasks.chair import coco_annotations

        source: Path = given["rescore"]
        if source.is_dir():
            result = session.rescore(source, scoring)
            path: Path | None = session.save_rescored(result, given["out"] or source)
        else:
            if not source.is_file():
                raise ValueError(f"There is no {source}: give a results folder, or a file of captions with --data.")
            found = coco_annotations(DataOptions(given["data"], given["captions"], split=given["split"]))
            result = session.score_captions(source, *found, scoring, given["seed"])
            path = None if given["out"] is None else session.save_rescored(result, given["out"])
    _print_result(result, given["latex"])
    if path is not None:
        typer.echo(f"Written to {path}")
