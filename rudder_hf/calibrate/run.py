"""A calibration from beginning to end: layers, settings, choice, checks."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ..core.backbones import find_backbone, resolve_layer
from ..evaluate.tasks import Task
from ..metrics.errors import InputError
from ..metrics.statistics import Counts, compare
from ..runtime.environment import Process, hardware, timestamp, versions
from ..runtime.models import LoadedModel
from ..runtime.progress import Progress, no_progress, stages
from ..runtime.report import change_in_points
from ..runtime.store import Store, to_json, write_new
from .choice import LABELLED, OBJECTIVES, Choice, in_words, loss, scores_entry
from .data import CalibrationData
from .layers import LayerStatistics, shortlist, stored_layer_statistics
from .outcome import Outcome, choice_record, judge_label_free
from .search import SettingSearch
from .settings import VANILLA, CalibrationOptions, Setting, neighbours
from .verdict import held_out_rows, truncated

_STATISTICS_IMAGES = 100
_LOOKS = "looks"  # one file for each calibration that looked at the held-out images


def calibrate(
    loaded: LoadedModel,
    data: CalibrationData,
    out: Path,
    options: CalibrationOptions | None = None,
    process: Process | None = None,
    progress: Progress = no_progress,
    pope: Task | None = None,
) -> Outcome:
    """Find settings for a model; interrupted, the same call goes on where it was.

    Args:
        loaded: The stock model and its processor.
        data: Images to choose and to check with.
        out: Folder of this calibration, new or its own.
        options: How to calibrate.
        process: Which of several processes this is; they share `out` and come to the same choice.
        progress: Is called with what is done.
        pope: POPE's questions about held-out images, to see how the choice transfers (`data.pope_task`).

    Raises:
        InputError: The options do not fit the data, or the folder belongs to other work.
    """
    options = options or CalibrationOptions()
    if options.objective in LABELLED and not data.labelled:
        raise InputError(f"{options.objective} needs annotations, and there are none: use --objective grounding")
    started = time.perf_counter()
    given = None if options.layers is None else _resolved(loaded, options.layers)
    store = Store(out, "calibrate", process)
    store.start(_plan(loaded, data, options))
    swept = ["sweep"] if not given and options.probe and options.grid.pushes else []
    checked = ["held-out images", "held-out images, another CARD"][: len(data.checking)]
    stage = stages(progress, ["", *swept, "grid", *checked, *(["POPE"] if pope else [])])
    with SettingSearch(loaded, data.task, data.choosing, store, options, stage) as search:
        seen = data.choosing[:_STATISTICS_IMAGES]
        statistics = stored_layer_statistics(out / "layers.json", loaded, data.task, seen, next(stage))
        layers, reason, probes = (given, "given by the user", []) if given else _short_list(search, statistics)
        norms = {s.layer: s.hidden_norm for s in statistics}
        tried = [setting for layer in layers for setting in options.grid.settings(layer, norms[layer])]
        tried += options.grid.alone
        tried.sort(key=lambda setting: setting.gentleness)
        dropped = search.run(tried)
        scored = {setting: search.scored(setting) for setting in (VANILLA, *tried)}
        counts = {setting: own.counts for setting, own in scored.items()}
        choice, by_mode, free = _choices(counts, dropped, options, data.labelled)
        chosen = finalists([choice, *by_mode.values(), *([free] if free else [])], counts, options.runners_up)
        looks = _count_look(out, options) if data.checking and chosen else 0
        held_out = check_held_out(search, data, chosen, choice.best)
        pope_rows = check_pope(search, pope, choice.best, tried) if pope and choice.best else []
    agreement = free and judge_label_free(counts, choice, free, options.limits)
    record = _record(loaded, data, options) | {"layers": layers, "held_out_looks": looks}
    record |= choice_record(choice, held_out, record["limits"])
    numbers = {
        "model": loaded.record(),
        "calibrated": not record["refusal"],
        "refusal": record["refusal"] or "",
        "record": record,
        "bootstrap": options.bootstrap,
        "layers": [asdict(s) for s in statistics],
        "shortlist": {"layers": layers, "reason": reason},
        "probes": probes,
        "settings": [
            _described(setting) | choice.entry(None if setting == VANILLA else setting, own, dropped.get(setting))
            for setting, own in scored.items()
        ],
        "by_mode": {mode: found.best and found.best.record() for mode, found in by_mode.items()},
        "held_out": held_out,
        "without_labels": free and {"chosen": free.best and free.best.record(), "agreement": agreement},
        "pope": pope_rows,
        "seconds": round(time.perf_counter() - started, 1),
        "environment": {"versions": versions(), "hardware": hardware()},
    }
    return Outcome(choice, by_mode, scored, numbers)


def _count_look(out: Path, options: CalibrationOptions) -> int:
    """How many calibrations of a folder have looked at its held-out images, this one included.

    Whoever looks often enough finds a lucky choice. The same calibration again, or continued, is no new look.
    """
    asked = to_json({name: value for name, value in asdict(options).items() if name != "batch_size"})
    folder = out / _LOOKS
    write_new(folder / f"{hashlib.sha256(asked.encode()).hexdigest()[:16]}.json", asked)
    return len(list(folder.glob("*.json")))


def _choices(
    counts: Mapping[Setting, Counts], dropped: Mapping[Setting, str], options: CalibrationOptions, labelled: bool
) -> tuple[Choice[Setting], dict[str, Choice[Setting]], Choice[Setting] | None]:
    """The choice, the best of each mode if there are several, and what would be chosen without labels if asked for."""
    vanilla = counts[VANILLA]
    rivals = {s: found for s, found in counts.items() if s != VANILLA and s not in dropped}
    by_mode = {
        mode: options.choose(
            {s: found for s, found in rivals.items() if s.mode == mode and s.alpha_max}, vanilla, labelled
        )
        for mode in (options.grid.modes if len(options.grid.modes) > 1 else ())
    }
    free = options.choose(rivals, vanilla, False, "grounding") if options.label_free and labelled else None
    return options.choose(rivals, vanilla, labelled), by_mode, free


def _described(setting: Setting) -> dict[str, Any]:
    return {"vanilla": True} if setting == VANILLA else setting.record()


def _record(loaded: LoadedModel, data: CalibrationData, options: CalibrationOptions) -> dict[str, Any]:
    """What `RudderConfig.calibration` says of the search, whatever was chosen: data, ids, rules, versions."""
    about = loaded.record()
    return {
        **_asked(data, options),
        "images": [sample.image_id for sample in data.choosing],
        "held_out_images": [sample.image_id for sample in data.checking],
        "decoding": "greedy",
        "lineage": options.lineage,
        "limits": options.limits.record(data.labelled) | {"confidence": options.confidence},
        "grid": asdict(options.grid),
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


def _plan(loaded: LoadedModel, data: CalibrationData, options: CalibrationOptions) -> dict[str, Any]:
    """What all answers of a folder have in common; grid, layers, limits and objective may change."""
    record = loaded.record()
    return {
        "model": {name: record[name] for name in ("name", "revision", "class", "dtype", "generation_config")},
        "choosing": [sample.id for sample in data.choosing],
        "checking": [sample.id for sample in data.checking],
        **_asked(data, options),
    }


def _asked(data: CalibrationData, options: CalibrationOptions) -> dict[str, Any]:
    """Where images come from and what is asked about them."""
    longest = options.max_new_tokens or data.task.max_new_tokens
    return {"data": data.record, "prompt": data.choosing[0].prompt, "max_new_tokens": longest}


def _short_list(
    search: SettingSearch, statistics: Sequence[LayerStatistics]
) -> tuple[list[int], str, list[dict[str, Any]]]:
    """Layers worth the grid, why, and the scores of what they were compared by, vanilla first.

    By a sweep of a few settings over all layers on the first images, or by statistics alone.
    """
    options = search.options
    if not options.grid.pushes:
        return [], "none, because no push was asked for", []
    if options.probe == 0:
        return *shortlist(statistics, options.shortlist), []
    settings = {s.layer: options.grid.probes(s.layer, s.hidden_norm) for s in statistics}
    samples = search.samples[: options.probe]
    probes = [VANILLA, *(probe for tried in settings.values() for probe in tried)]
    search.decode(probes, samples)
    scored = {probe: search.scored(probe, options.probe) for probe in probes}
    quick = replace(options, bootstrap=1, confidence=0.0)
    best: dict[int, float] = {}
    for layer, tried in settings.items():
        counts = {probe: scored[probe].counts for probe in tried}
        best[layer] = quick.choose(counts, scored[VANILLA].counts, search.labelled).score
    sign = -1 if OBJECTIVES[options.objective].higher_is_better else 1
    ranked = sorted(statistics, key=lambda s: (sign * best[s.layer], -s.rank_score))[: options.shortlist]
    values = ", ".join(f"layer {s.layer} ({best[s.layer]:.4f})" for s in ranked)
    reason = (
        f"{in_words(options.objective)} within the limits in a sweep of {len(settings[ranked[0].layer])} settings "
        f"over all layers on {len(samples)} images, among equals by alignment x specificity of CARD: {values}"
    )
    return [s.layer for s in ranked], reason, [_described(probe) | scores_entry(own) for probe, own in scored.items()]


def finalists(choices: Sequence[Choice[Setting]], counts: Mapping[Setting, Counts], runners_up: int) -> list[Setting]:
    """The settings to check: the choice, the next ones, and the best by other rules (of each mode, without labels).

    Args:
        choices: The choice first.
        counts: Of vanilla and all settings, on the images to choose with.
        runners_up: How many come next, if they are better than vanilla.
    """
    first = choices[0]
    if first.best is None:
        return []
    vanilla = loss(first.objective, counts[VANILLA].total())
    better = [c for c in first.feasible if loss(first.objective, counts[c].total()) < vanilla]
    following = [c for c in better if c != first.best][:runners_up]
    others = [choice.best for choice in choices if choice.best is not None]
    return list(dict.fromkeys([first.best, *following, *others]))


def check_held_out(
    search: SettingSearch, data: CalibrationData, chosen: Sequence[Setting], best: Setting | None
) -> list[dict[str, Any]]:
    """Decode vanilla and the finalists on the held-out images, and the finalists with another image's evidence.

    Returns:
        For each, vanilla first, its scores with intervals, and its differences to vanilla, to vanilla's captions cut
        to its recall, and to itself where each image is steered by the CARD (and contrasted by the values) of another
        one: what is left of the effect then is not about the image.
    """
    if not data.checking or not chosen:
        return []
    own = replace(search, task=data.check_task, samples=data.checking)
    own.decode([VANILLA, *chosen], data.checking)
    scored = {setting: own.scored(setting) for setting in (VANILLA, *chosen)}
    others = {"minus_vanilla": dict.fromkeys(chosen, scored[VANILLA])}
    if data.labelled:
        others["minus_truncated"] = {setting: truncated(scored[VANILLA], scored[setting]) for setting in chosen}
    if len(data.checking) > 1:
        other = replace(own, other_card=True, answers={})
        other.refresh()
        other.decode(chosen, data.checking)
        others["own_minus_other_card"] = {setting: other.scored(setting) for setting in chosen}
    return held_out_rows(scored, others, best, search.options.bootstrap, search.options.seed)


def check_pope(search: SettingSearch, task: Task, best: Setting, tried: Sequence[Setting]) -> list[dict[str, Any]]:
    """Answer POPE's questions with the chosen setting and its neighbours, the first token unsteered and steered.

    Args:
        search: What decoded the images to choose with.
        task: POPE's questions, about images that were not used for choosing.
        best: The chosen setting.
        tried: The settings that were tried.

    Returns:
        For each setting, vanilla first, its description, scores, and the change of accuracy against vanilla.
    """
    options = replace(search.options, max_new_tokens=task.max_new_tokens, label_free=False, objective="mean")
    asked = replace(search, task=task, samples=task.samples, options=options)
    around = [best, *neighbours(best, tried)]
    firsts = (False, True) if best.alpha_max else (False,)
    varied = [replace(setting, steer_first_token=first) for first in firsts for setting in around]
    settings = list(dict.fromkeys([VANILLA, best, *varied]))
    asked.decode(settings, task.samples)
    scored = {setting: asked.scored(setting) for setting in settings}
    found = []
    for setting, own in scored.items():
        change = compare(scored[VANILLA].counts, own.counts, own.metrics, options.bootstrap, options.seed)["accuracy"]
        found.append(
            {
                "setting": ("chosen: " if setting == best else "") + setting.describe(),
                **setting.record(),
                **scores_entry(own),
                "change": change_in_points(asdict(change)),
            }
        )
    return found
