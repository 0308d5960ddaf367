"""A calibration from beginning to end: layers, candidates, choice, check.

OUT/choosing/     a run of all candidates on the images to choose with
OUT/checking/     a run of vanilla, the choice and its control on other images
OUT/layers.json   statistics of every layer
OUT/result-001/   the settings repository, with a report
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..core.backbones import find_backbone, resolve_layer
from ..evaluate.evaluate import save_result
from ..evaluate.result import Result
from ..evaluate.run import Run, RunOptions, Variant, donor_prompts, encode_samples
from ..evaluate.scoring import Scoring
from ..methods import Method
from ..methods.base import Sources
from ..methods.contrast import Contrast, RudderContrast
from ..methods.controls import ShuffledCard, ShuffledContrast, ShuffledContrastCard
from ..methods.rudder import Attached
from ..metrics.errors import InputError
from ..runtime.answers import answers
from ..runtime.decoding import Decoding
from ..runtime.environment import Process, timestamp, versions
from ..runtime.models import LoadedModel
from ..runtime.progress import Progress, no_progress
from .choice import Choice
from .data import CalibrationData
from .layers import LayerStatistics, stored_layer_statistics
from .search import VANILLA, best_layers, search
from .settings import CalibrationOptions, describe, tie_break_key
from .verdict import differences, refusal

_STATISTICS_IMAGES = 100
_DRAWS = 2000


@dataclass(frozen=True)
class Outcome:
    """What a calibration found."""

    choice: Choice[int]
    best: Method | None
    tried: list[Method]
    record: dict[str, Any]  # what `RudderConfig.calibration` says
    layers: list[LayerStatistics]
    reason: str  # why these layers were tried
    choosing: Result
    checking: Result | None


def check_folder(out: Path) -> None:
    """See that a folder is new or that of a calibration in which nobody works, before a model is loaded.

    Raises:
        InputError: It is something else.
    """
    if (out / "plan.json").exists():
        raise InputError(f"{out} holds a run of another command or of an earlier version: choose a new folder.")
    for name in ("choosing", "checking"):
        Run(out / name).check()


def calibrate(
    loaded: LoadedModel,
    data: CalibrationData,
    out: Path,
    options: CalibrationOptions | None = None,
    process: Process | None = None,
    progress: Progress = no_progress,
) -> Outcome:
    """Find settings for a model; interrupted, the same call goes on where it was.

    Args:
        loaded: The stock model and its processor.
        data: Images to choose and to check with.
        out: Folder of this calibration, new or its own.
        options: How to calibrate.
        process: Which of several processes this is; they share `out` and come to the same choice.
        progress: Is called with what is done.

    Raises:
        InputError: The options do not fit the data, or the folder belongs to other work.
    """
    options = options or CalibrationOptions()
    given = None if options.layers is None else _resolved(loaded, options.layers)
    decoding = Decoding("greedy", options.max_new_tokens or data.task.max_new_tokens)
    likelihood = "none" if options.rule.labelled else "other"
    run = Run(out / "choosing", process).begin(
        replace(data.task, samples=data.choosing), loaded, decoding,
        RunOptions(options.batch_size, options.rule.seed, likelihood, options.command),
    )  # fmt: skip
    seen = data.choosing[:_STATISTICS_IMAGES]
    statistics = stored_layer_statistics(out / "layers.json", loaded, data.task, seen, progress)
    if given:
        layers, reason = given, "given by the user"
    elif options.grid.pushes:
        layers, reason = best_layers(run, statistics, options, progress)
    else:
        layers, reason = [], "none, because no push was asked for"
    norms = {entry.layer: entry.hidden_norm for entry in statistics}
    tried = [method for layer in layers for method in options.grid.candidates(layer, norms[layer])]
    tried = sorted([*tried, *options.grid.alone], key=tie_break_key)
    choice = search(run, {"rudder": tried}, options.rule, progress)["rudder"]
    best = None if choice.best is None else tried[choice.best]
    # Intervals are not needed here. The report has these numbers, and `rudder score` makes them again of the answers.
    variants = [Variant.of(VANILLA), *(Variant.of(method, describe(method)) for method in tried)]
    choosing = run.result(Scoring(bootstrap=1), variants)
    checking: Result | None = None
    held_out: dict[str, Any] = {}
    if best is not None and data.checking:
        checking, held_out = _check(loaded, data, out, decoding, best, options, process, progress)
    record = _record(loaded, data, options, choice, best) | {
        "layers": layers,
        "max_new_tokens": decoding.max_new_tokens,
    }
    record |= held_out
    record["refusal"] = refusal(record) or None
    return Outcome(choice, best, tried, record, statistics, reason, choosing, checking)


def _check(
    loaded: LoadedModel, data: CalibrationData, out: Path, decoding: Decoding, best: Method,
    options: CalibrationOptions, process: Process | None, progress: Progress,
) -> tuple[Result, dict[str, Any]]:  # fmt: skip
    """Run vanilla, the choice and the choice with another image's evidence on the held-out images.

    Returns:
        The result; and for the record the choice's differences to vanilla, to vanilla's captions cut to its recall,
        and to the control: what is left of the effect there is not about the image.
    """
    likelihood = "own" if data.labelled else "other"
    task = replace(data.check_task, samples=data.checking)
    run = Run(out / "checking", process).begin(
        task, loaded, decoding, RunOptions(options.batch_size, options.rule.seed, likelihood, options.command)
    )
    methods = [VANILLA, best]
    if len(data.checking) > 1:
        methods.append(other_evidence(best, loaded, task))
    run.answer(methods, progress, wait=True)
    labels = ["vanilla", describe(best), "with another image's CARD"]
    variants = [Variant.of(method, label) for method, label in zip(methods, labels, strict=False)]
    result = save_result(run.result(Scoring(bootstrap=_DRAWS), variants), run.path, tables=False)
    scored = run.scored(variants)
    return result, differences(scored, _DRAWS, options.rule.seed)


def other_evidence(best: Method, loaded: LoadedModel, task: Any) -> Method:
    """The control of a choice: the same settings, with the CARD (or, without a push, the values) of other images."""
    assert isinstance(best, Attached)
    config, sources = best.rudder_config(), Sources(prompts=lambda: donor_prompts(loaded, task))
    if isinstance(best, Contrast):
        return ShuffledContrast.for_model(loaded.model, sources, contrast=config.contrast)
    if isinstance(best, RudderContrast):
        own = {"config": config, "contrast": config.contrast, "mode": config.mode}
        return ShuffledContrastCard.for_model(loaded.model, sources, **own)
    return ShuffledCard.for_model(loaded.model, sources, config=config, mode=config.mode)


def _record(
    loaded: LoadedModel, data: CalibrationData, options: CalibrationOptions, choice: Choice[int], best: Method | None
) -> dict[str, Any]:
    """What `RudderConfig.calibration` says: data, ids, rule, choice, versions."""
    about = loaded.record()
    return {
        "settings": None if best is None else best.rudder_config().settings(),  # type: ignore[attr-defined]
        "metric": options.rule.objective,
        "baseline": round(choice.vanilla, 6),
        "result": round(choice.score, 6),
        "data": data.record,
        "prompt": data.choosing[0].prompt,
        "images": [sample.image_id for sample in data.choosing],
        "held_out_images": [sample.image_id for sample in data.checking],
        "decoding": "greedy",
        "limits": options.rule.record(),
        "grid": {name: list(values) for name, values in asdict(options.grid).items()},
        "model": {name: about[name] for name in ("name", "revision", "dtype")},
        "versions": {name: version for name, version in versions().items() if version},
        "date": timestamp(),
    }


def _resolved(loaded: LoadedModel, layers: Sequence[int]) -> list[int]:
    """Layers that the user gave, from 0 on."""
    backbone = find_backbone(loaded.model)
    try:
        return list(dict.fromkeys(resolve_layer(backbone, layer) for layer in layers))
    except ValueError as error:
        raise InputError(str(error)) from error


@dataclass(frozen=True)
class Estimate:
    """How much a calibration has to do, and how long that takes at the speed of one batch."""

    images: int
    sweep: int  # candidates of the sweep over layers
    candidates: int
    answers: int
    tokens: int
    seconds: float


def estimate(loaded: LoadedModel, data: CalibrationData, options: CalibrationOptions) -> Estimate:
    """Time one batch of vanilla answers, and multiply."""
    layers = len(find_backbone(loaded.model).layers) if options.layers is None else len(options.layers)
    probed = 0 if options.layers is not None else layers * len(options.grid.probes(0, 1.0))
    tried = min(layers, options.shortlist) if options.layers is None else layers
    grid = tried * len(options.grid.candidates(0, 1.0)) + len(options.grid.alone)
    samples = data.choosing[: options.batch_size]
    decoding = Decoding("greedy", options.max_new_tokens or data.task.max_new_tokens)
    started = time.perf_counter()
    inputs = encode_samples(loaded, data.task, samples)
    with VANILLA.applied(loaded.model) as generate:
        ids = [sample.id for sample in samples]
        written = answers(generate, loaded.model, loaded.processor, inputs, decoding, [0] * len(ids), ids)
    seconds = (time.perf_counter() - started) / len(samples)
    tokens = sum(len(answer.ids) for answer in written) / len(written)
    total = probed * min(options.probe, len(data.choosing)) + (grid + 1) * len(data.choosing) + 3 * len(data.checking)
    images = len(data.choosing) + len(data.checking)
    return Estimate(images, probed, grid, total, round(tokens * total), seconds * total)
