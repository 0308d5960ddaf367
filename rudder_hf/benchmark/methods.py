"""Costs of decoding methods by name, on a benchmark's model: what they were tuned to does not change their speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch.nn.functional import normalize

from .. import methods as interventions
from ..methods import Intervention
from ..runtime.environment import hardware, timestamp, versions
from .costs import CostReport, CostSettings, Progress, measure_costs
from .runner import BenchmarkSettings
from .variants import VANILLA, Subject, prompt_length

_DONORS = 4


def cost_method(name: str, subject: Subject) -> Intervention:
    """A method with the benchmark's settings for RUDDER; directions and donors are drawn at random."""
    generator = torch.Generator().manual_seed(0)
    width = subject.model.config.get_text_config().hidden_size
    given: dict[str, Any] = {"config": subject.config} if name.startswith("rudder") else {}
    if name == "vti":
        given["directions"] = torch.randn(len(subject.backbone.layers), width, generator=generator)
    if name == "rudder-shuffled":
        given["donors"] = normalize(torch.randn(_DONORS, width, generator=generator), dim=-1)
    return interventions.get(name, **given)


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
    beam = [name for name, method in methods.items() if method.refuses(1)]
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
