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
from ..evaluate.result import Result, Scoring
from ..evaluate.run import Run, Variant, donor_prompts, encode_samples
from ..evaluate.tables import save_result
from ..methods import Method, Sources
from ..methods.contrast import Contrast, RudderContrast
from ..methods.controls import ShuffledCard, ShuffledContrast, ShuffledContrastCard
from ..methods.rudder import Attached
from ..runtime.answers import Decoding, answers
from ..runtime.environment import Process, timestamp, versions
from ..runtime.errors import InputError
from ..runtime.models import LoadedModel
from ..runtime.report import Progress, no_progress
from ..runtime.store import PLAN_FILE
from .choice import Choice
from .data import CalibrationData
from .layers import stored_layer_statistics
from .search import VANILLA, CalibrationOptions, best_layers, control, describe, search, tie_break_key
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
    reason: str  # why these layers were tried
    choosing: Result
    checking: Result | None


def check_folder(out: Path, *runs: str) -> None:
    """See that a folder is new or has these runs in it, in which nobody works, before a model is loaded.

    Raises:
        InputError: It is something else.
        BlockingIOError: Another process is at work there.
    """
    if (out / PLAN_FILE).exists():
        raise InputError(f"{out} holds a run of another command or of an earlier version: choose a new folder.")
    for name in runs or ("choosing", "checking"):
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
    decoding = Decoding("greedy", options.max_new_tokens or data.choosing.max_new_tokens)
    likelihood = "none" if options.rule.labelled else "other"
    run_options = replace(options.run, likelihood=likelihood)
    run = Run(out / "choosing", process).begin(data.choosing, loaded, decoding, run_options)
    layers, reason, norms = list[int](), "none, because no push was asked for", dict[int, float]()
    if options.grid.pushes:
        seen = data.choosing.samples[:_STATISTICS_IMAGES]
        statistics = stored_layer_statistics(out / "layers.json", loaded, data.choosing, seen, progress)
        norms = {entry.layer: entry.hidden_norm for entry in statistics}
        layers, reason = (given, "given by the user") if given else best_layers(run, statistics, options, progress)
    tried = [method for layer in layers for method in options.grid.candidates(layer, norms[layer])]
    tried = sorted([*tried, *options.grid.alone], key=tie_break_key)
    choice = search(run, {"rudder": tried}, options.rule, progress)["rudder"]
    best = None if choice.best is None else tried[choice.best]
    # Intervals are not needed here. The report has these numbers, and `rudder score` makes them again of the answers.
    variants = [Variant.of(VANILLA), *(Variant.of(method, describe(method)) for method in tried)]
    choosing = save_result(run.result(Scoring(bootstrap=1), variants), run.path, tables=False)
    checking: Result | None = None
    held_out: dict[str, Any] = {}
    if isinstance(best, Attached) and data.checking is not None:
        held_out_run = Run(out / "checking", process)
        likelihood = "own" if data.labelled else "other"
        held_out_run.begin(data.checking, loaded, decoding, replace(options.run, likelihood=likelihood))
        checking, held_out = _check(held_out_run, best, options, progress)
    record = _record(loaded, data, options, choice, best) | {
        "layers": layers,
        "max_new_tokens": decoding.max_new_tokens,
    }
    record |= held_out
    record["refusal"] = refusal(record) or None
    return Outcome(choice, best, tried, record, reason, choosing, checking)


def _check(run: Run, best: Attached, options: CalibrationOptions, progress: Progress) -> tuple[Result, dict[str, Any]]:
    """Run vanilla, the choice and the choice with another image's evidence on the held-out images.

    Returns:
        The result; and for the record the choice's differences to vanilla, to vanilla's captions cut to its recall,
        and to the control: what is left of the effect there is not about the image.
    """
    named: dict[str, Method] = {"vanilla": VANILLA, describe(best): best}
    if len(run.task.samples) > 1:
        # Another image's CARD, or, without a push, another image's values.
        kinds: dict[type, type[Method]] = {Contrast: ShuffledContrast, RudderContrast: ShuffledContrastCard}
        kind = kinds.get(type(best), ShuffledCard)
        sources = Sources(prompts=lambda: donor_prompts(run.loaded, run.task))
        named[f"with another image's {'values' if kind is ShuffledContrast else 'CARD'}"] = control(
            kind, best, run.loaded, sources
        )
    run.answer(list(named.values()), progress, wait=True)
    variants = [Variant.of(method, label) for label, method in named.items()]
    result = save_result(run.result(Scoring(bootstrap=_DRAWS), variants), run.path, tables=False)
    return result, differences(run.scored(variants), _DRAWS, options.rule.seed)


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
        "prompt": data.choosing.samples[0].prompt,
        "images": [sample.image_id for sample in data.choosing.samples],
        "held_out_images": [] if data.checking is None else [sample.image_id for sample in data.checking.samples],
        "decoding": "greedy",
        "limits": options.rule.record(),
        "grid": {name: list(values) for name, values in asdict(options.grid).items()} | {"spans": ["prompt"]},
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


def dry_run(loaded: LoadedModel, data: CalibrationData, options: CalibrationOptions) -> str:
    """Time one batch of vanilla answers, and say how much a calibration has to do and how long that takes."""
    task, layers, probes = data.choosing, len(options.layers or ()), 0
    if options.layers is None:
        there = len(find_backbone(loaded.model).layers)
        layers, probes = min(there, options.shortlist), there * len(options.grid.probes(0, 1.0))
    settings = layers * len(options.grid.candidates(0, 1.0)) + len(options.grid.alone)
    samples = task.samples[: options.run.batch_size]
    decoding = Decoding("greedy", options.max_new_tokens or task.max_new_tokens)
    started = time.perf_counter()
    inputs = encode_samples(loaded, task, samples)
    with VANILLA.applied(loaded.model) as generate:
        ids = [sample.id for sample in samples]
        written = answers(generate, loaded.model, loaded.processor, inputs, decoding, [0] * len(ids), ids)
    each = (time.perf_counter() - started) / len(samples)
    tokens = sum(len(answer.ids) for answer in written) / len(written)
    choosing, checking = len(task.samples), 0 if data.checking is None else len(data.checking.samples)
    total = probes * min(options.probe, choosing) + (settings + 1) * choosing + 3 * checking
    duration = f"{total * each:.0f} seconds" if total * each < 90 else f"{total * each / 60:.0f} minutes"
    return (
        f"{choosing + checking} images, {settings} settings{' after a sweep over layers' if probes else ''}: {total} "
        f"answers of about {tokens:.0f} tokens, {tokens * total:.0f} in all. At the speed of one batch of "
        f"{len(samples)} on {loaded.model.device}: about {duration}."
    )
