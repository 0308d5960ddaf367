"""Running a benchmark: from models and methods to a `BenchmarkReport`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict

from ..methods import GROUPS, Method, Sources, method_class
from ..runtime.environment import hardware, timestamp, versions
from ..runtime.progress import Progress, no_progress
from .bench import VANILLA
from .costs import measure_costs
from .models import BenchmarkModel, BenchmarkSettings
from .report import BenchmarkReport, Case

RUDDER = GROUPS["rudder"]


def run_benchmark(
    models: Sequence[Callable[[], BenchmarkModel]],
    settings: BenchmarkSettings,
    methods: Sequence[str] = RUDDER,
    progress: Progress = no_progress,
) -> BenchmarkReport:
    """Measure methods on one model after the other.

    Args:
        models: Functions that make the models, so that only one is in memory at a time.
        settings: How to measure.
        methods: Names of the methods; vanilla is always measured.
        progress: Is called with what is being done.
    """
    created = timestamp()
    cases = [run_case(make(), settings, methods, progress) for make in models]
    return BenchmarkReport(created, versions(), hardware(), asdict(settings), cases)


def run_case(
    model: BenchmarkModel,
    settings: BenchmarkSettings,
    methods: Sequence[str] = RUDDER,
    progress: Progress = no_progress,
) -> Case:
    """Measure one model: by greedy search, and by beam search the methods that know nothing else."""
    made = {name: cost_method(name, model) for name in dict.fromkeys((VANILLA, *methods))}
    inputs = model.prompt(settings.prompt_tokens)
    beam = [name for name, method in made.items() if method.refuses("greedy")]
    decodings = {"greedy": [name for name in made if name not in beam]} | ({"beam": beam} if beam else {})

    def report(text: str, done: int, total: int) -> None:
        progress(f"{model.name}, {text}", done, total)

    costs, runs = measure_costs(model.model, made, inputs, decodings, settings, report)
    return Case(model.name, model.description, int(inputs["input_ids"].shape[1]), costs, runs)


def cost_method(name: str, model: BenchmarkModel) -> Method:
    """A method with the benchmark's settings for RUDDER; what it finds in a model is drawn at random."""
    kind = method_class(name)
    width = model.model.config.get_text_config().hidden_size
    drawn = kind.stand_ins(model.description["layers"], width)
    return kind.for_model(model.model, Sources(rudder=lambda name: model.config), **drawn)
