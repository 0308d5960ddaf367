"""`rudder benchmark`: what RUDDER costs on this machine."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .common import choose_device, copyable, refusing_bad_input, reporting_failure

if TYPE_CHECKING:
    from ..benchmark import BenchmarkSettings, Subject

EXAMPLES = copyable(
    "rudder benchmark --quick --shape deep",
    "rudder benchmark --out benchmarks",
    "rudder benchmark --model llava-hf/llava-1.5-7b-hf --dtype bfloat16",
    "rudder benchmark --methods all --model embedded --out costs.json",
)
QUICK_ROUNDS, QUICK_TOKENS, QUICK_WARMUP = 3, 16, 1


class ShapeChoice(StrEnum):
    """Models with random weights that are built on the spot."""

    WIDE = "wide"
    DEEP = "deep"
    BOTH = "both"
    TINY = "tiny"


class DtypeChoice(StrEnum):
    """Types of weights."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


def benchmark(
    shape: Annotated[
        ShapeChoice,
        typer.Option(
            help="wide: 2 layers as in LLaVA-1.5-7B (needs 2 GB); deep: 32 narrow layers; tiny: to try the command."
        ),
    ] = ShapeChoice.BOTH,
    model: Annotated[str | None, typer.Option(help="A model's Hub id or folder, instead of a shape.")] = None,
    new_tokens: Annotated[int | None, typer.Option(min=2, help="Length of each answer.", show_default="64")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Timed rounds.", show_default="15")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows per call.")] = 1,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Length of the prompt, picture included.")] = 64,
    dtype: Annotated[DtypeChoice, typer.Option(help="Type of the weights.")] = DtypeChoice.FLOAT32,
    layer: Annotated[
        int | None, typer.Option(help="RUDDER's layer; else the model's preset, or 30/32 of the depth.")
    ] = None,
    device: Annotated[str, typer.Option(help="Where to run: auto, cpu, cuda, ...")] = "auto",
    seed: Annotated[int, typer.Option(help="Of weights, prompt and the order within rounds.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="New .json file, or a folder in which it is numbered.", show_default="the current folder"),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Compare decoding methods instead: names separated by commas, or all, rudder, peers, controls."
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option(help=f"{QUICK_ROUNDS} rounds of {QUICK_TOKENS} tokens: a first look, no result.")
    ] = False,
) -> None:
    """Compare vanilla, RUDDER-Beta and RUDDER-Add, interleaved on the same model and prompt.

    Reports throughput relative to vanilla with its spread, forward passes, added operators and extra memory, as a
    table and as a JSON file with all raw rounds. Nothing is ever overwritten. With --methods, compares any decoding
    methods in the same way: throughput, forwards per token, peak memory.
    """
    with refusing_bad_input():
        from ..benchmark.report import new_result_file

        path = new_result_file(out)

        from ..benchmark import BenchmarkSettings, report_tables, run_benchmark

        settings = BenchmarkSettings(
            new_tokens=new_tokens or (QUICK_TOKENS if quick else BenchmarkSettings.new_tokens),
            rounds=rounds or (QUICK_ROUNDS if quick else BenchmarkSettings.rounds),
            warmup=QUICK_WARMUP if quick else BenchmarkSettings.warmup,
            batch_size=batch_size,
            prompt_tokens=prompt_tokens,
            dtype=dtype.value,
            device=choose_device(device),
            layer=layer,
            seed=seed,
        )
        names = None if methods is None else _method_names(methods, shape, model)
    from rich.console import Console

    errors = Console(stderr=True)
    if names is not None:
        _compare_methods(names, _subjects(shape, model, settings)[0], settings, path)
        return
    with errors.status("starting") as status, reporting_failure():
        report = run_benchmark(_subjects(shape, model, settings), settings, status.update)
    with refusing_bad_input():
        report.save(path)
    Console().print(report_tables(report))
    typer.echo(f"Written to {path}")


def _method_names(methods: str, shape: ShapeChoice, model: str | None) -> list[str]:
    """The methods to compare, vanilla first; one model at a time."""
    from ..evaluate.methods import parse_names

    if model is None and shape is ShapeChoice.BOTH:
        raise ValueError("--methods compares on one model: add --model embedded, --model ID, or --shape deep.")
    return list(dict.fromkeys(["vanilla", *parse_names(methods)]))


def _compare_methods(names: list[str], make: Callable[[], Subject], settings: BenchmarkSettings, path: Path) -> None:
    """Measure, write and print the costs of methods."""
    from rich.console import Console

    from ..benchmark.methods import method_costs
    from ..compare.table import costs_markdown
    from ..runtime.journal import write_new

    with Console(stderr=True).status("starting") as status, reporting_failure():
        report = method_costs(names, make(), settings, status.update)
    with refusing_bad_input():
        if not write_new(path, report.to_json()):
            raise FileExistsError(f"{path} exists and results are never overwritten: choose another name.")
    typer.echo(costs_markdown(report))
    typer.echo(f"Written to {path}")


def _subjects(shape: ShapeChoice, model: str | None, settings: BenchmarkSettings) -> list[Callable[[], Subject]]:
    """Functions that make the models; what they refuse is bad input."""
    from ..benchmark import SHAPES, model_subject, shape_subject

    def make_model(name: str) -> Subject:
        with refusing_bad_input():
            return model_subject(name, settings)

    def make_shape(name: str) -> Subject:
        with refusing_bad_input():
            subject = shape_subject(SHAPES[name], settings)
            subject.prompt(settings.prompt_tokens)
            return subject

    if model is not None:
        return [lambda: make_model(model)]
    names = ["wide", "deep"] if shape is ShapeChoice.BOTH else [shape.value]
    return [lambda name=name: make_shape(name) for name in names]  # type: ignore[misc]
