"""A comparison from beginning to end: tune, evaluate, ask, time, and put everything together.

OUT/plan.json                                 what is compared; a folder with another plan is refused
OUT/comparison.json, table.md, *.png, *.svg   the result, written when everything is done, never overwritten
OUT/state/                                    answers of tuning and evaluation, batch by batch: a killed run goes on
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ..benchmark.costs import measure_costs
from ..benchmark.report import Case
from ..calibrate.choice import in_words
from ..calibrate.data import CalibrationData
from ..calibrate.layers import shortlist, stored_layer_statistics
from ..calibrate.peers import MethodSearch, Tuning
from ..evaluate.methods import sources_of
from ..evaluate.run import batches, encode_samples
from ..evaluate.tasks.base import samples_hash
from ..methods import BUDGET, GROUPS, Method
from ..runtime.environment import hardware, timestamp, versions
from ..runtime.figures import figures_available
from ..runtime.models import LoadedModel
from ..runtime.progress import Progress, consecutive, no_progress, stages
from ..runtime.store import Store, read_json, to_json, write_new
from .figure import save_figures
from .options import CompareOptions, ComparisonData
from .table import Comparison, markdown
from .variants import Runs, Variant, candidates, reference, untuned, with_tuned

RESULT, TABLE, STATE = "comparison.json", "table.md", "state"
_LAYERS = 2


def compare(
    loaded: LoadedModel, data: ComparisonData, out: Path, options: CompareOptions, progress: Progress = no_progress
) -> Comparison:
    """Compare methods on a model; interrupted, the same call goes on where it was.

    Args:
        loaded: The stock model, its processor, and RUDDER's settings for it.
        data: The images.
        out: Folder of this comparison, new or its own.
        options: How to compare.
        progress: Is called with what is done.

    Raises:
        InputError: The folder belongs to another comparison.
    """
    plan = _plan(loaded, data, options)
    Store(out, "compare").start(plan)
    if (out / RESULT).exists():
        return Comparison.load(out / RESULT)
    state, calibration = out / STATE, data.calibration
    stage = stages(progress, [""] * (2 + len(data.captions)) + ["costs"])

    def prompts() -> Iterator[dict[str, Any]]:
        for part in batches(calibration.choosing, options.batch_size):
            yield encode_samples(loaded, calibration.task, part)

    made = untuned(options.methods, loaded, sources_of(loaded, prompts))
    seen = calibration.choosing
    statistics = stored_layer_statistics(state / "layers.json", loaded, calibration.task, seen, next(stage))
    norms = {entry.layer: entry.hidden_norm for entry in statistics}
    tried = candidates(made, {layer: norms[layer] for layer in shortlist(statistics, _LAYERS)[0]})
    tunings = _tune(loaded, calibration, state, options, tried, next(stage))
    variants = with_tuned(made, tried, tunings)
    rows = Runs(loaded, state, options).rows(variants, data, stage)
    measured = _costs(loaded, calibration, variants, state / "costs.json", options, next(stage))
    ours = reference(variants)
    comparison = Comparison(
        title=_title(loaded, data),
        rows=rows,
        costs=measured.costs,
        reference="" if ours is None else f"{ours.name}, {ours.settings}",
        notes=_notes(data, options, made),
        tunings={name: asdict(tuning) for name, tuning in tunings.items()},
        record={
            **plan,
            "data": {name: task.data for name, task in data.captions.items()},
            "calibration_images": [sample.image_id for sample in calibration.choosing],
            "costs": {"prompt_tokens": measured.prompt_tokens, "runs": [asdict(run) for run in measured.runs]},
            "command": options.command,
            "finished": timestamp(),
            "versions": versions(),
            "hardware": hardware(),
        },
        margin=options.margin,
    )
    write_new(out / TABLE, markdown(comparison))
    if figures_available():
        save_figures(comparison, out)
    # Last: a folder with this file is complete.
    write_new(out / RESULT, comparison.to_json())
    return Comparison.load(out / RESULT)


def _plan(loaded: LoadedModel, data: ComparisonData, options: CompareOptions) -> dict[str, Any]:
    return {
        "model": loaded.record(),
        "rudder": {name: config.to_diff_dict() for name, config in loaded.settings.items()},
        "options": options.record(),
        "calibration": samples_hash(data.calibration.choosing),
        "captions": {name: samples_hash(task.samples) for name, task in data.captions.items()},
        "questions": samples_hash(data.questions.samples),
    }


def _tune(
    loaded: LoadedModel,
    data: CalibrationData,
    state: Path,
    options: CompareOptions,
    tried: Mapping[str, Sequence[Method]],
    progress: Progress,
) -> dict[str, Tuning]:
    """Choose settings, by greedy search; by beam search for methods that know nothing else."""
    searches: dict[str, MethodSearch] = {}
    for decoding, beams in (("greedy", 1), ("beam", options.costs.num_beams)):
        mine = [name for name in tried if name not in searches and not tried[name][0].refuses(decoding)]
        seen = replace(data, choosing=data.choosing[: options.tune_beam_limit]) if decoding == "beam" else data
        size = max(1, options.batch_size // beams)
        folder, rules = state / f"tuning-{decoding}", options.calibration
        search = MethodSearch(loaded, seen, folder, rules, decoding, options.costs.num_beams, size)
        searches |= dict.fromkeys(mine, search)
    sizes = [len(search.task.samples) * (1 + len(tried[name])) for name, search in searches.items()]
    parts = dict(zip(searches, consecutive(progress, sizes), strict=True))
    tunings = {name: search.tune(tried[name], parts[name]) for name, search in searches.items()}
    return {name: tunings[name] for name in tried if name in tunings}


def _costs(
    loaded: LoadedModel,
    data: CalibrationData,
    variants: Sequence[Variant],
    path: Path,
    options: CompareOptions,
    progress: Progress,
) -> Case:
    """What each method costs, with the settings that the comparison is about; measured once."""
    if not path.exists():
        # The last variant of a method that can be run is the tuned one, if there is one.
        methods = {variant.name: variant.method for variant in variants if variant.method is not None}
        greedy = [name for name, method in methods.items() if not method.refuses("greedy")]
        # Under beams only what has to be compared there: those that know nothing else, and RUDDER.
        beam = [name for name, method in methods.items() if method.refuses("greedy") or name in GROUPS["rudder"]]
        decodings = {"greedy": greedy, "beam": beam} if "beam" in options.decodings else {"greedy": greedy}
        inputs = encode_samples(loaded, data.task, data.choosing[:1])
        costs, runs = measure_costs(loaded.model, methods, inputs, decodings, options.costs, progress)
        case = Case(loaded.name, {}, int(inputs["input_ids"].shape[1]), costs, runs)
        write_new(path, to_json(asdict(case)))
    found: Case = read_json(path, Case)
    return found


def _title(loaded: LoadedModel, data: ComparisonData) -> str:
    sizes = ", ".join(f"{name} {len(task.samples)}" for name, task in data.captions.items())
    return (
        f"{loaded.name}: settings chosen on {len(data.calibration.choosing)} images; images captioned: {sizes}; "
        f"{len(data.questions.samples)} yes/no questions about {len(data.questions.image_ids())} images"
    )


def _notes(data: ComparisonData, options: CompareOptions, made: Mapping[str, Variant]) -> list[str]:
    limits = options.calibration.limits
    beam_only = [name for name, variant in made.items() if variant.method and variant.method.refuses("greedy")]
    first = min(options.tune_beam_limit, len(data.calibration.choosing))
    by_beams = f" ({', '.join(beam_only)} by beam search, on the first {first} of them)" if beam_only else ""
    notes = [
        f"tuned: the best of {BUDGET} settings on the calibration images by greedy search{by_beams}, "
        f"chosen as `rudder calibrate` does: {in_words(options.calibration.objective)} with at "
        f"least {limits.recall_floor:.0%} of vanilla's recall, at most {limits.nll_rise} nats per token more, and at "
        f"most {limits.distinct_drop:.0%} fewer distinct word pairs, kept in {options.calibration.confidence:.0%} of "
        f"bootstrap draws. RUDDER's {BUDGET} are four strengths at the two "
        "layers that statistics of the unsteered model rank first.",
        "calibrated: RUDDER's stored settings for the model, which a larger search may have found. Controls have the "
        "calibrated settings of rudder-beta, those of the contrast its default settings.",
        "published: the settings of the published code for captions and for yes/no questions, which were found for "
        "other models.",
    ]
    if "vti" in made and made["vti"].method is not None:
        notes.append("vti: directions from 50 pairs of captions of training scenes, one of each with absent objects.")
    return notes
