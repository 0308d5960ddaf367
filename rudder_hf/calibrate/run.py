"""A calibration from beginning to end: images, layers, candidates, choice, check.

OUT/choosing/     a run of all candidates on the images to choose with, and statistics of every layer
OUT/checking/     a run of vanilla, the choice and its control on other images, which no evaluation draws either
OUT/result-001/   the settings repository, with a report
"""

from __future__ import annotations

import random
import time
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..core.backbones import find_backbone, resolve_layer
from ..evaluate.result import Result, Scoring
from ..evaluate.run import Run, Variant
from ..evaluate.tables import save_result
from ..evaluate.tasks import DataOptions, Task, donor_prompts, encode_samples, make_task
from ..evaluate.tasks.captions import IMAGES as EVALUATED
from ..evaluate.tasks.captions import has_annotations, images_task
from ..methods import Method
from ..methods.contrast import Contrast, RudderContrast
from ..methods.controls import ShuffledCard, ShuffledContrast, ShuffledContrastCard
from ..methods.rudder import Attached
from ..runtime.answers import Decoding, answers
from ..runtime.environment import Process, timestamp, versions
from ..runtime.errors import InputError
from ..runtime.models import LoadedModel
from ..runtime.report import Progress, no_progress
from ..runtime.store import PLAN_FILE
from .choice import Choice, differences, refusal
from .search import (
    VANILLA_METHOD,
    CalibrationOptions,
    best_layers,
    control,
    describe,
    search,
    stored_layer_statistics,
    tie_break_key,
)

_STATISTICS_IMAGES = 100
_DRAWS = 2000


@dataclass(frozen=True)
class CalibrationData:
    """Images to choose with, and others to check the choice on."""

    choosing: Task  # its kind is "chair" if there are annotations, else "images"
    checking: Task | None  # of the same kind; looked at once, after the choice
    record: dict[str, Any]  # where the images come from, for the config

    @property
    def labelled(self) -> bool:
        """Whether it is known what is in the images."""
        return self.choosing.kind == "chair"


def find_images(options: DataOptions) -> Task:
    """Images to describe: the embedded scenes, annotated images in COCO's form, or a folder of images.

    Raises:
        InputError: There are none.
    """
    if options.data is not None and options.data.is_dir() and not has_annotations(options.data):
        return images_task(options)
    return make_task("scenes" if options.data is None else "chair", options)


def find_data(options: DataOptions, limit: int, check: int, exclude: Collection[str] = ()) -> CalibrationData:
    """Find images and draw those to choose with and up to so many to check with.

    Args:
        options: Where they are: no data means the embedded scenes' calibration split; COCO's folder or an
            `instances_*.json`; else a folder of images without annotations. `limit` is not used.
        limit: How many to choose with.
        check: How many to check with.
        exclude: Files of images that must not be used.

    Raises:
        InputError: There are too few, or some cannot be read.
    """
    if limit < 2:
        raise InputError(f"--limit is {limit}; give at least 2 images to choose with, better 100")
    task, left_out = _all_images(options)
    usable = [sample for sample in task.samples if sample.id not in left_out and sample.image not in exclude]
    if len(usable) < limit + min(check, 1):
        raise InputError(
            f"there are {len(usable)} images to calibrate on ({len(task.samples) - len(usable)} are left out because "
            f"evaluations draw them), but {limit} to choose with and {check} to check with were asked for: lower "
            "--limit or --check-limit, or give more data"
        )
    random.Random(options.seed).shuffle(usable)
    drawn = usable[: limit + check]
    replace(task, samples=drawn).check_images()
    return CalibrationData(
        choosing=replace(task, samples=drawn[:limit]),
        checking=replace(task, samples=drawn[limit:]) if drawn[limit:] else None,
        record={"task": task.name, **task.data, "seed": options.seed, "left_out_for_evaluation": len(left_out)},
    )


def _all_images(options: DataOptions) -> tuple[Task, set[str]]:
    """Everything there is, and the ids that the default evaluation would draw from the same data."""
    if options.data is None:
        split = options.split or "calibration"
        if split.startswith("evaluation"):
            raise InputError(f"--split {split} is for evaluation; the scenes to calibrate on are --split calibration")
        return find_images(DataOptions(split=split, prompt=options.prompt)), set()
    task = find_images(replace(options, limit=2**31))
    # A split that is hardly larger than an evaluation cannot spare what evaluations draw; its ids are stored.
    if task.kind != "chair" or len(task.samples) <= 2 * EVALUATED:
        return task, set()
    return task, set(map(str, DataOptions().choose([sample.image_id for sample in task.samples], EVALUATED)))


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


def check_runs(out: Path, *runs: str) -> None:
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
    backbone = find_backbone(loaded.model)
    try:
        given = list(dict.fromkeys(resolve_layer(backbone, layer) for layer in options.layers or ()))
    except ValueError as error:
        raise InputError(str(error)) from error
    decoding = Decoding("greedy", options.max_new_tokens or data.choosing.max_new_tokens)
    likelihood = "none" if options.rule.labelled else "other"
    run_options = replace(options.run, likelihood=likelihood)
    run = Run(out / "choosing", process).begin(data.choosing, loaded, decoding, run_options)
    layers, reason, norms = list[int](), "none, because no push was asked for", dict[int, float]()
    if options.grid.pushes:
        statistics = stored_layer_statistics(run, data.choosing.samples[:_STATISTICS_IMAGES], progress)
        norms = {entry.layer: entry.hidden_norm for entry in statistics}
        layers, reason = (given, "given by the user") if given else best_layers(run, statistics, options, progress)
    tried = [method for layer in layers for method in options.grid.candidates(layer, norms[layer])]
    tried = sorted([*tried, *options.grid.alone], key=tie_break_key)
    choice = search(run, {"rudder": tried}, options.rule, progress)["rudder"]
    best = None if choice.best is None else tried[choice.best]
    # Intervals are not needed here. The report has these numbers, and `rudder score` makes them again of the answers.
    variants = [Variant.of(VANILLA_METHOD), *(Variant.of(method, describe(method)) for method in tried)]
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
    named: dict[str, Method] = {"vanilla": VANILLA_METHOD, describe(best): best}
    if len(run.task.samples) > 1:
        # Another image's CARD, or, without a push, another image's values.
        kinds: dict[type, type[Method]] = {Contrast: ShuffledContrast, RudderContrast: ShuffledContrastCard}
        kind = kinds.get(type(best), ShuffledCard)
        named[f"with another image's {'values' if kind is ShuffledContrast else 'CARD'}"] = control(
            kind, best, run.loaded, lambda: donor_prompts(run.loaded, run.task)
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


def time_one_batch(loaded: LoadedModel, data: CalibrationData, options: CalibrationOptions) -> str:
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
    with VANILLA_METHOD.applied(loaded.model) as generate:
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
