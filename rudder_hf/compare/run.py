"""A comparison from beginning to end: tune, evaluate, ask, time, and put everything together.

OUT/comparison.json, table.md, *.png, *.svg   the result, written when everything is done, never overwritten
OUT/state/                                    answers of tuning and evaluation, batch by batch: a killed run goes on
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ..benchmark.bench import VANILLA
from ..benchmark.costs import Cost, measure_costs
from ..calibrate.data import CalibrationData, batches
from ..calibrate.layers import LayerStatistics, layer_statistics, shortlist
from ..calibrate.peers import MethodSearch, Tuning
from ..evaluate.methods import sources_of
from ..evaluate.tasks import Task
from ..evaluate.tasks.base import Sample, samples_hash
from ..methods import BUDGET, GROUPS, Method
from ..metrics.errors import InputError
from ..runtime.environment import hardware, timestamp, versions
from ..runtime.inputs import encode
from ..runtime.models import Subject
from ..runtime.progress import Progress
from ..runtime.store import read_json, to_json, write_new
from .options import CompareOptions, ComparisonData
from .record import Comparison
from .runs import Cells
from .variants import CONTROL, PUBLISHED, Entry, candidates, entries, make_for

RESULT, TABLE, STATE = "comparison.json", "table.md", "state"
_LAYERS = 2


def compare(
    subject: Subject, data: ComparisonData, out: Path, options: CompareOptions, progress: Progress | None = None
) -> Comparison:
    """Compare methods on a model; interrupted, the same call goes on where it was.

    Args:
        subject: The stock model, its processor, and RUDDER's settings for it.
        data: The pictures.
        out: Folder of this comparison, new or its own.
        options: How to compare.
        progress: Is told what is done, how many of how many.

    Raises:
        InputError: The folder belongs to another comparison.
    """
    say: Progress = progress or (lambda text, done, total: None)
    _check_plan(out, subject, data, options)
    if (out / RESULT).exists():
        return Comparison.load(out / RESULT)
    say("preparing", 0, 1)
    made = make_for(options.methods, subject, sources_of(subject, lambda: _prompts(subject, data, options)))
    statistics = _statistics(subject, data.calibration, out / STATE / "layers.json")
    tried = candidates(made, _hidden_norms(statistics))
    tunings = _tune(subject, data.calibration, out / STATE, options, tried, say)
    listed = entries(made, tried, tunings)
    cells = Cells(
        subject, out / STATE, options.batch_size, options.num_beams, options.top_p, options.seed,
        options.max_new_tokens, say,
    )  # fmt: skip
    own = {entry.key: own_decoding(entry, options) for entry in listed}
    for decoding, task in data.captions.items():
        for entry in listed:
            # A method that cannot decode so has a row that says it.
            cannot = entry.refuses(decoding)
            if cannot or options.everywhere or not _once(entry, tunings) or own[entry.key] == decoding:
                cells.captions(entry, decoding, task)
    asked = {*own.values()} - {None}
    for entry in listed:
        for decoding in options.decodings:
            if own[entry.key] == decoding or (entry.method == VANILLA and decoding in asked):
                cells.questions(entry, decoding, data.questions)
    measured = _costs(subject, data.calibration, listed, out / STATE / "costs.json", options, say)
    comparison = Comparison(
        title=_title(subject, data, options),
        rows=cells.rows(listed, list(data.captions), options.bootstrap),
        costs=[Cost.from_dict(cost) for cost in measured["costs"]],
        reference=cells.reference(listed),
        notes=_notes(data, options, made),
        tunings={name: tuning.to_dict() for name, tuning in tunings.items()},
        record={
            "model": subject.record(),
            "options": options.record(),
            "data": {name: task.data for name, task in data.captions.items()},
            "calibration_pictures": [sample.image_id for sample in data.calibration.choosing],
            "costs": {key: value for key, value in measured.items() if key != "costs"},
            "command": options.command,
            "finished": timestamp(),
            "versions": versions(),
            "hardware": hardware(),
        },
    )
    _write(comparison, out)
    return comparison


def _once(entry: Entry, tunings: Mapping[str, Tuning]) -> bool:
    """Whether an entry is run under its own decoding only: controls, and published settings beside tuned ones."""
    tuning = tunings.get(entry.method)
    return entry.variant == CONTROL or (
        entry.variant == PUBLISHED and tuning is not None and tuning.chosen is not None
    )


def own_decoding(entry: Entry, options: CompareOptions) -> str | None:
    """The first decoding that a method allows."""
    if entry.intervention is None:
        return options.decodings[0]
    allowed = [d for d in options.decodings if not entry.refuses(d)]
    return allowed[0] if allowed else None


def _write(comparison: Comparison, out: Path) -> None:
    from ..runtime.figures import figures_available
    from .picture import save_pictures
    from .table import markdown

    write_new(out / TABLE, markdown(comparison))
    if figures_available():
        save_pictures(comparison, out)
    # Last: a folder with this file is complete.
    write_new(out / RESULT, comparison.to_json())


def _check_plan(out: Path, subject: Subject, data: ComparisonData, options: CompareOptions) -> None:
    plan = {
        "model": subject.record(),
        "rudder": {name: config.to_diff_dict() for name, config in subject.settings.items()},
        "options": options.record(),
        "calibration": samples_hash(data.calibration.choosing),
        "captions": {name: samples_hash(task.samples) for name, task in data.captions.items()},
        "questions": samples_hash(data.questions.samples),
    }
    plan = json.loads(json.dumps(plan, default=str))
    path = out / STATE / "plan.json"
    if write_new(path, json.dumps(plan, indent=1) + "\n"):
        return
    known = json.loads(path.read_text(encoding="utf-8"))
    if different := sorted(name for name in {*known, *plan} if known.get(name) != plan.get(name)):
        raise InputError(
            f"{out} holds a comparison with another {', '.join(different)}: choose a new folder, or repeat its command"
        )


def _inputs(subject: Subject, task: Task, samples: Sequence[Sample]) -> dict[str, Any]:
    return encode(subject.model, subject.processor, [task.image(s) for s in samples], [s.prompt for s in samples])


def _prompts(subject: Subject, data: ComparisonData, options: CompareOptions) -> Iterator[dict[str, Any]]:
    """The calibration pictures, from which controls take other pictures' CARDs."""
    for part in batches(data.calibration.choosing, options.batch_size):
        yield _inputs(subject, data.calibration.task, part)


def _statistics(subject: Subject, data: CalibrationData, path: Path) -> list[LayerStatistics]:
    """Statistics of every layer from one pass of the unsteered model, or as stored."""
    if not path.exists():
        parts = (_inputs(subject, data.task, part) for part in batches(data.choosing, 20))
        found = layer_statistics(subject.model, parts)
        write_new(path, json.dumps([entry.record() for entry in found], indent=1) + "\n")
    return [LayerStatistics(**record) for record in json.loads(path.read_text(encoding="utf-8"))]


def _hidden_norms(statistics: Sequence[LayerStatistics]) -> dict[int, float]:
    """The layers that RUDDER is tuned on, with the norm of their hidden states."""
    norms = {entry.layer: entry.hidden_norm for entry in statistics}
    return {layer: norms[layer] for layer in shortlist(statistics, _LAYERS)[0]}


def _tune(
    subject: Subject, data: CalibrationData, state: Path, options: CompareOptions,
    candidates: Mapping[str, Sequence[Method]], say: Progress,
) -> dict[str, Tuning]:  # fmt: skip
    """Choose settings, by greedy search; by beam search for methods that know nothing else."""
    tunings: dict[str, Tuning] = {}
    for decoding in ("greedy", "beam"):
        beams = options.num_beams if decoding == "beam" else 1
        mine = [n for n, tried in candidates.items() if n not in tunings and not tried[0].refuses(decoding)]
        if not mine:
            continue
        size = max(1, options.batch_size // beams)
        folder = state / f"tuning-{decoding}"
        seen = replace(data, choosing=data.choosing[: options.beam_pictures]) if beams > 1 else data
        with MethodSearch(
            subject, seen, folder, options.calibration, decoding, options.num_beams, size, say
        ) as search:
            for name in mine:
                tunings[name] = search.tune(candidates[name])
    return {name: tunings[name] for name in candidates if name in tunings}


def _costs(
    subject: Subject,
    data: CalibrationData,
    listed: Sequence[Entry],
    path: Path,
    options: CompareOptions,
    progress: Progress,
) -> dict[str, Any]:
    """What each method costs, with the settings that the comparison is about; measured once."""
    if not path.exists():
        # The last entry of a method that can be run is the tuned one, if there is one.
        methods = {entry.method: entry.intervention for entry in listed if entry.intervention is not None}
        greedy = [name for name, method in methods.items() if not method.refuses("greedy")]
        # Under beams only what has to be compared there: those that know nothing else, and RUDDER.
        beam = [name for name, method in methods.items() if method.refuses("greedy") or name in GROUPS["rudder"]]
        decodings = {"greedy": greedy, "beam": beam} if "beam" in options.decodings else {"greedy": greedy}
        inputs = _inputs(subject, data.task, data.choosing[:1])
        costs, runs = measure_costs(subject.model, methods, inputs, decodings, options.costs, progress)
        record = {
            "created": timestamp(),
            "prompt_tokens": int(inputs["input_ids"].shape[1]),
            "costs": [asdict(cost) for cost in costs],
            "runs": [asdict(run) for run in runs],
        }
        write_new(path, to_json(record))
    found: dict[str, Any] = read_json(path)
    return found


def _title(subject: Subject, data: ComparisonData, options: CompareOptions) -> str:
    sizes = ", ".join(f"{name} {len(task.samples)}" for name, task in data.captions.items())
    return (
        f"{subject.name}: settings chosen on {len(data.calibration.choosing)} pictures; pictures captioned: {sizes}; "
        f"{len(data.questions.samples)} yes/no questions about {len(data.questions.image_ids())} pictures"
    )


def _notes(data: ComparisonData, options: CompareOptions, made: Mapping[str, Entry]) -> list[str]:
    limits = options.calibration.limits
    notes = [
        f"tuned: the best of {BUDGET} settings on the calibration pictures by greedy search (opera by beam search, on "
        f"the first {min(options.beam_pictures, len(data.calibration.choosing))} of them), "
        f"chosen as `rudder calibrate` does: least {options.calibration.objective} of CHAIR_S and CHAIR_I with at "
        f"least {limits.recall_floor:.0%} of vanilla's recall, at most {limits.nll_rise} nats per token more, and at "
        f"most {limits.distinct_drop:.0%} fewer distinct word pairs, kept in {options.calibration.confidence:.0%} of "
        f"bootstrap draws. RUDDER's {BUDGET} are four strengths at the two "
        "layers that statistics of the unsteered model rank first.",
        "calibrated: RUDDER's stored settings for the model, which a larger search may have found. Controls have the "
        "calibrated settings of rudder-beta.",
        "published: the settings of the published code for captions and for yes/no questions, which were found for "
        "other models.",
    ]
    if "vti" in made and made["vti"].intervention is not None:
        notes.append("vti: directions from 50 pairs of captions of training scenes, one of each with absent objects.")
    return notes
