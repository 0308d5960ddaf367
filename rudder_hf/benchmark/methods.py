"""Costs of decoding methods by name, on a benchmark's model: what they were tuned to does not change their speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from ..methods import Method, Sources, method_class
from ..runtime.environment import hardware, timestamp, versions
from .costs import CostReport, CostSettings, Progress, measure_costs
from .runner import BenchmarkSettings
from .variants import VANILLA, Subject, prompt_length


def cost_method(name: str, subject: Subject) -> Method:
    """A method with the benchmark's settings for RUDDER; what it finds in a model is drawn at random."""
    kind = method_class(name)
    drawn = kind.stand_ins(len(subject.backbone.layers), subject.model.config.get_text_config().hidden_size)
    return kind.for_model(subject.model, Sources(rudder=lambda name: subject.config), **drawn)


def method_costs(
    names: Sequence[str], subject: Subject, settings: BenchmarkSettings, progress: Progress | None = None
) -> CostReport:
    """Measure methods on a benchmark's model: by greedy search, and by beam search those that know nothing else.

    Args:
        names: The methods; vanilla is always measured.
        subject: The model.
        settings: How to measure.
        progress: Is told what is being done.
    """
    methods = {name: cost_method(name, subject) for name in dict.fromkeys((VANILLA, *names))}
    inputs = subject.prompt(settings.prompt_tokens)
    beam = [name for name, method in methods.items() if method.refuses("greedy")]
    decodings = {"greedy": [name for name in methods if name not in beam]} | ({"beam": beam} if beam else {})
    how = CostSettings(settings.new_tokens, settings.rounds, settings.warmup, seed=settings.seed)
    costs, runs = measure_costs(subject.model, methods, inputs, decodings, how, progress)
    return CostReport(
        created=timestamp(),
        model={"name": subject.name, **subject.description},
        prompt_tokens=prompt_length(inputs),
        batch_size=int(inputs["input_ids"].shape[0]),
        settings=asdict(how),
        costs=costs,
        runs=runs,
        versions=versions(),
        hardware=hardware(),
    )
