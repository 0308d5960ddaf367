"""Running a benchmark: from a shape or a model to a `BenchmarkReport`."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from ..core.backbones import resolve_layer
from ..core.configuration import RudderConfig
from ..presets import get_preset
from ..runtime.environment import hardware, timestamp, versions
from ..runtime.prompts import long_prompt
from .memory import ExtraMemory, extra_memory
from .operators import OperatorCount, added_operators, count_operators
from .report import BenchmarkReport, CaseResult, Target, VariantResult
from .shapes import Shape, build_model, random_prompt
from .timing import Ratio, Run, paired_ratios, summarize, time_rounds
from .variants import VANILLA, VARIANTS, Subject, prompt_length

RATIO_TARGETS = {"wide": 0.99, "deep": 0.985}
OPERATOR_TARGET = 16
# Both are longer than the span that is pooled at a time, from where on the memory must not grow any more.
MEMORY_PROMPTS = (520, 1040)

Progress = Callable[[str], None]


@dataclass(frozen=True)
class BenchmarkSettings:
    """How to measure.

    Attributes:
        new_tokens: Length of each answer, at least 2.
        rounds: Timed rounds.
        warmup: Rounds before them that do not count.
        batch_size: Rows per call.
        prompt_tokens: Length of the timed prompt, picture included.
        dtype: Of the weights.
        device: Where to run.
        layer: RUDDER's layer; None takes the model's preset, or the paper's relative depth (30 of 32).
        seed: Of weights, prompts and orders.
        memory_prompts: Prompt lengths for the extra memory.
    """

    new_tokens: int = 64
    rounds: int = 15
    warmup: int = 2
    batch_size: int = 1
    prompt_tokens: int = 64
    dtype: str = "float32"
    device: str = "cpu"
    layer: int | None = None
    seed: int = 0
    memory_prompts: tuple[int, ...] = MEMORY_PROMPTS

    def __post_init__(self) -> None:
        """Refuse what cannot be measured."""
        least = {"new_tokens": 2, "rounds": 1, "warmup": 0, "batch_size": 1, "prompt_tokens": 1}
        for name, value in least.items():
            if getattr(self, name) < value:
                raise ValueError(f"`{name}` is {getattr(self, name)}, but has to be at least {value}.")


def shape_subject(shape: Shape, settings: BenchmarkSettings) -> Subject:
    """A random LLaVA of the given shape."""
    model = build_model(shape, getattr(torch, settings.dtype), settings.seed).to(settings.device)
    prompt = functools.partial(random_prompt, model, batch=settings.batch_size, seed=settings.seed)
    return _subject(shape.name, model, prompt, settings, {"weights": "random", "shape": asdict(shape)})


def model_subject(name: str, settings: BenchmarkSettings) -> Subject:
    """A model from the Hub or a folder, or an embedded one: "embedded" or "embedded:NAME"."""
    from transformers import AutoModelForImageTextToText, AutoProcessor

    from ..scenes import embedded

    inside = embedded.embedded_name(name)
    source = name if inside is None else str(embedded.folder(inside))
    processor = AutoProcessor.from_pretrained(source)
    model = AutoModelForImageTextToText.from_pretrained(source, dtype=getattr(torch, settings.dtype))
    model = model.to(settings.device).eval()
    prompt = functools.partial(long_prompt, processor, model, batch=settings.batch_size)
    return _subject(name, model, prompt, settings, {"weights": name})


def _subject(
    name: str,
    model: PreTrainedModel,
    prompt: Callable[[int], dict[str, Any]],
    settings: BenchmarkSettings,
    description: dict[str, Any],
) -> Subject:
    subject = Subject(name, model, RudderConfig(), prompt)
    layers = len(subject.backbone.layers)
    try:
        config = get_preset(name).config()
    except ValueError:
        # The strength does not matter for the speed; it only has to be none of the special cases.
        config = RudderConfig(layer=layers * 30 // 32, alpha_max=1.0)
    if settings.layer is not None:
        config.layer = settings.layer
    layer = resolve_layer(subject.backbone, config.layer)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    description |= {"class": type(model).__name__, "parameters": parameters, "layers": layers}
    rudder = {"layer": layer, "alpha_max": config.alpha_max, "k": config.k, "c": config.c}
    subject.config, subject.description = config, {**description, "rudder": rudder}
    return subject


def run_benchmark(
    subjects: Sequence[Callable[[], Subject]], settings: BenchmarkSettings, progress: Progress | None = None
) -> BenchmarkReport:
    """Measure one model after the other.

    Args:
        subjects: Functions that make the models, so that only one is in memory at a time.
        settings: How to measure.
        progress: Is told what is being done.
    """
    created = timestamp()
    cases = [run_case(make(), settings, progress) for make in subjects]
    asked = {**asdict(settings), "memory_prompts": list(settings.memory_prompts)}
    return BenchmarkReport(created, versions(), hardware(), asked, cases)


def run_case(subject: Subject, settings: BenchmarkSettings, progress: Progress | None = None) -> CaseResult:
    """Measure one model: operators and memory first, which are exact, then the time."""
    say: Progress = progress or (lambda text: None)
    inputs = subject.prompt(settings.prompt_tokens)
    say(f"{subject.name}: counting operators")
    operators = {variant: count_operators(subject, variant, inputs) for variant in VARIANTS}
    memory: dict[str, list[ExtraMemory]] = {variant: [] for variant in VARIANTS}
    for length in settings.memory_prompts:
        say(f"{subject.name}: measuring memory with a prompt of {length} tokens")
        for variant, extra in extra_memory(subject, list(VARIANTS[1:]), length).items():
            memory[variant].append(extra)
    runs = time_rounds(subject, inputs, settings.new_tokens, settings.rounds, settings.warmup, settings.seed, progress)
    results = [
        variant_result(variant, runs, operators, memory[variant], settings.new_tokens, settings.batch_size)
        for variant in VARIANTS
    ]
    return CaseResult(
        name=subject.name,
        model=subject.description,
        prompt_tokens=prompt_length(inputs),
        variants=results,
        targets=judge(subject.name, settings.dtype, results),
        runs=runs,
    )


def variant_result(
    variant: str,
    runs: Sequence[Run],
    operators: dict[str, OperatorCount],
    memory: list[ExtraMemory],
    new_tokens: int,
    batch_size: int = 1,
) -> VariantResult:
    """Put together what was measured of one variant, in runs of `batch_size` rows of `new_tokens` each."""
    own = [run for run in runs if run.variant == variant]
    ratios = {
        clock: None if variant == VANILLA else summarize(paired_ratios(runs, variant, clock))
        for clock in ("seconds", "step_seconds", "cpu_seconds")
    }
    return VariantResult(
        variant=variant,
        ms_per_token=1e3 * statistics.median(run.seconds for run in own) / (new_tokens * batch_size),
        decode_ms_per_token=1e3
        * statistics.median(run.decode_seconds for run in own)
        / ((new_tokens - 1) * batch_size),
        ratio=ratios["seconds"],
        step_ratio=ratios["step_seconds"],
        cpu_ratio=ratios["cpu_seconds"],
        forwards_per_token=statistics.mean(run.forwards for run in own) / new_tokens,
        operators_per_token=operators[variant].per_token,
        added_operators=added_operators(operators[VANILLA].token, operators[variant].token),
        extra_memory=memory,
    )


def judge(name: str, dtype: str, results: Sequence[VariantResult]) -> list[Target]:
    """Compare with the project's goals: speed where the model has one, operators in float32, the others always."""
    vanilla = next(result for result in results if result.variant == VANILLA)
    targets: list[Target] = []
    for result in results:
        if result.ratio is None:
            continue

        def add(goal: str, measured: float, met: bool, variant: str = result.variant) -> None:
            targets.append(Target(variant, goal, measured, "met" if met else "missed"))

        if (least := RATIO_TARGETS.get(name)) is not None:
            targets.append(
                Target(
                    result.variant,
                    f"throughput ratio >= {least}",
                    result.ratio.median,
                    ratio_verdict(result.ratio, least),
                )
            )
        forwards = result.forwards_per_token - vanilla.forwards_per_token
        add("no forward more than vanilla", forwards, forwards <= 0)
        if dtype == "float32":
            operators = result.operators_per_token - vanilla.operators_per_token
            add(f"operators added <= {OPERATOR_TARGET}", operators, operators <= OPERATOR_TARGET)
        growth = max((max(sizes) - min(sizes) for sizes in _by_kind(result.extra_memory)), default=0)
        add("extra memory grows with the prompt by 0 bytes", growth, growth == 0)
    return targets


def ratio_verdict(ratio: Ratio, least: float) -> str:
    """Whether a ratio is at least as large as wanted, as far as its interval tells."""
    if ratio.interval[0] >= least:
        return "met"
    return "missed" if ratio.interval[1] < least else "undecided"


def _by_kind(memory: Sequence[ExtraMemory]) -> list[list[int]]:
    """For each kind of extra memory its bytes at all prompt lengths."""
    if not memory:
        return []
    return [[getattr(entry, kind) for entry in memory] for kind in ("kept", "prefill", "peak")]
