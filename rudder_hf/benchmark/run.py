"""Running a benchmark: from models and methods to a `BenchmarkReport`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from transformers import PreTrainedModel

from ..methods import GROUPS, Method, Sources, get, method_class
from ..runtime.environment import hardware, timestamp, versions
from ..runtime.progress import Progress, no_progress
from .bench import VANILLA, Bench
from .costs import ExtraMemory, measure_costs
from .counting import count
from .models import BenchmarkModel, BenchmarkSettings
from .report import BenchmarkReport, Case
from .timing import garbage_collector_off

RUDDER = GROUPS["rudder"]
MEASURED_TOKENS = MASKED_TOKENS = 4


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
    asked = {**asdict(settings), "memory_prompts": list(settings.memory_prompts)}
    return BenchmarkReport(created, versions(), hardware(), asked, cases)


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
    extra: dict[str, list[ExtraMemory]] = {name: [] for name in RUDDER if name in made}
    for number, length in enumerate(settings.memory_prompts if extra else ()):
        report("extra memory", number, len(settings.memory_prompts))
        for name, memory in extra_memory(model.model, {n: made[n] for n in extra}, model.prompt(length)).items():
            extra[name].append(memory)
    return Case(
        name=model.name,
        model=model.description,
        prompt_tokens=int(inputs["input_ids"].shape[1]),
        costs=[replace(cost, extra_memory=extra.get(cost.method, [])) for cost in costs],
        runs=runs,
    )


def cost_method(name: str, model: BenchmarkModel) -> Method:
    """A method with the benchmark's settings for RUDDER; what it finds in a model is drawn at random."""
    kind = method_class(name)
    width = model.model.config.get_text_config().hidden_size
    drawn = kind.stand_ins(model.description["layers"], width)
    return kind.for_model(model.model, Sources(rudder=lambda name: model.config), **drawn)


def extra_memory(
    model: PreTrainedModel, methods: Mapping[str, Method], inputs: dict[str, Any]
) -> dict[str, ExtraMemory]:
    """Bytes that methods need beyond vanilla's for one batch of prompts.

    The first positions are masked, as in a batch with padding: without any padding, `generate` drops the mask, and
    RUDDER has less to do.
    """
    mask = torch.ones_like(inputs["input_ids"])
    mask[:, :MASKED_TOKENS] = 0
    bench = Bench(model, {**inputs, "attention_mask": mask}, MEASURED_TOKENS)
    with garbage_collector_off():
        vanilla = count(bench, get(VANILLA))
        counted = {name: count(bench, method) for name, method in methods.items()}
    return {
        name: ExtraMemory(
            prompt_tokens=bench.prompt_tokens,
            kept=max(a - b for a, b in zip(own.kept, vanilla.kept, strict=True)),
            peak=own.peak - vanilla.peak,
        )
        for name, own in counted.items()
    }
