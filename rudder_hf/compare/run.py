"""A comparison from beginning to end: choose settings, run everything on other images, time it.

OUT/tuning/   a run of all candidates of all methods on the calibration images
OUT/greedy/, beam/, nucleus/, pope/   a run for each decoding, and of yes/no questions, with its result
OUT/table.md  the tables
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..benchmark.costs import CostSettings, measure_costs
from ..calibrate.choice import Choice, Rule, in_words
from ..calibrate.run import CalibrationData, check_runs, find_data
from ..calibrate.search import CalibrationOptions, best_layers, control, search, stored_layer_statistics
from ..evaluate.methods import make_methods
from ..evaluate.result import Result, Scoring
from ..evaluate.run import Run, RunOptions, Variant
from ..evaluate.tables import TABLE_FILE, THROUGHPUT, markdown, save_result
from ..evaluate.tasks import DataOptions, Task, batches, encode_samples, make_task
from ..methods import BUDGET, CONTROL_OF, NAMES, Method, method_class
from ..methods.base import Inputs
from ..methods.rudder import Attached
from ..metrics.statistics import SAMPLES
from ..runtime.answers import DECODING_NAMES, Decoding
from ..runtime.errors import InputError, check_least
from ..runtime.models import LoadedModel
from ..runtime.report import Progress, no_progress
from ..runtime.store import RESULT_FILE, acquired, write_over

POPE = "pope"
_LAYERS = 2
_LOCK_FILE = ".lock"
NOTHING_BETTER = "no setting within the limits is better than vanilla"


@dataclass(frozen=True)
class CompareOptions:
    """How to compare."""

    methods: tuple[str, ...] = NAMES  # vanilla is always among them
    decodings: tuple[str, ...] = ("greedy",)
    limit: int = 500  # images to evaluate captions on
    pope_limit: int = 40  # images that yes/no questions are asked about; 0 asks none
    tune_limit: int = 80  # calibration images that settings are chosen on
    rule: Rule = field(default_factory=Rule)  # what settings are chosen by
    max_new_tokens: int | None = None  # longest caption; None is the task's own
    costs: CostSettings = field(default_factory=CostSettings)
    bootstrap: int = SAMPLES
    run: RunOptions = field(default_factory=lambda: RunOptions(50))

    def __post_init__(self) -> None:
        for what, given, known in (("decoding", self.decodings, DECODING_NAMES), ("method", self.methods, NAMES)):
            if unknown := [name for name in given if name not in known]:
                raise InputError(f"there is no {what} {unknown[0]!r}; choose from {', '.join(known)}")
        check_least(self, limit=1, pope_limit=0, tune_limit=2, bootstrap=1)
        if 0 < self.pope_limit < 5:
            raise InputError(
                f"pope_limit is {self.pope_limit}; give at least 5: absent objects come from other images"
            )
        ordered = dict.fromkeys(("vanilla", *(name for name in NAMES if name in self.methods)))
        object.__setattr__(self, "methods", tuple(ordered))


@dataclass(frozen=True)
class ComparisonData:
    """The images."""

    calibration: CalibrationData  # to choose settings on
    tasks: dict[str, Task]  # to evaluate on: captions for each decoding, and yes/no questions as "pope"


def find_comparison_data(source: DataOptions, options: CompareOptions) -> ComparisonData:
    """The embedded scenes, or COCO if the source has data.

    Images to evaluate on are those that `rudder evaluate` draws; settings are chosen on none of them.

    Raises:
        InputError: There are too few images, or they have no annotations.
    """
    captions, questions = ("scenes", "scenes-pope") if source.data is None else ("chair", "pope")
    # Settings are chosen on a split of the scenes of its own, whichever other one is evaluated.
    chosen_on = replace(source, split=None) if source.data is None else source
    if source.data is None and source.split == "calibration":
        raise InputError("settings are chosen on the split calibration of the scenes: evaluate on another one")
    given = replace(source, seed=options.run.seed)
    tasks = dict.fromkeys(options.decodings, make_task(captions, replace(given, limit=options.limit)))
    if options.pope_limit:
        tasks[POPE] = make_task(questions, replace(given, limit=options.pope_limit, prompt=None))
    evaluated = {sample.image for task in tasks.values() for sample in task.samples}
    return ComparisonData(find_data(chosen_on, options.tune_limit, 0, evaluated), tasks)


@dataclass(frozen=True)
class Tuned:
    """What settings were chosen for every method."""

    methods: dict[str, Method]  # vanilla, every method with its settings, and controls with those of what they control
    choices: dict[str, Choice[int]]
    notes: list[str]  # what the settings were chosen by, and which methods are left out


def check_comparison_folder(out: Path) -> None:
    """See that a folder is new or that of a comparison, and nobody works in it, before a model is loaded.

    Raises:
        InputError: It is something else.
        BlockingIOError: Another comparison is at work there.
    """
    if _only_read(out):
        return
    check_runs(out, "tuning", *DECODING_NAMES, POPE)
    if out.exists():
        with alone(out):
            pass


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """Keep other comparisons out of a folder: two at once would time each other.

    Raises:
        BlockingIOError: Another comparison is at work there.
    """
    out.mkdir(parents=True, exist_ok=True)
    lock = acquired(out / _LOCK_FILE, f"Another comparison works in {out}")
    try:
        yield
    finally:
        with suppress(OSError):  # Windows keeps open files
            (out / _LOCK_FILE).unlink()
        lock.release()


def compare(
    loaded: LoadedModel, data: ComparisonData, out: Path, options: CompareOptions, progress: Progress = no_progress
) -> dict[str, Result]:
    """Compare methods on a model; interrupted, the same call goes on where it was.

    Args:
        loaded: The stock model and its processor.
        data: The images.
        out: Folder of this comparison, new or its own.
        options: How to compare.
        progress: Is called with what is done.

    Returns:
        The result of each decoding, and of "pope".

    Raises:
        InputError: The folder belongs to another comparison.
        BlockingIOError: Another comparison is at work there.
    """
    if _only_read(out):
        return _finished_results(out, options)
    with alone(out):
        tuned = tune(loaded, data.calibration, out, options, progress)
        costs = _stored_costs(out, tuned.methods)
        if costs is None:
            task = data.calibration.choosing
            inputs = encode_samples(loaded, task, task.samples[:1])
            costs = throughputs(loaded, tuned.methods, inputs, options.costs, progress)
        results = {
            name: measure(loaded, task, name, tuned.methods, tuned.notes, out / name, options, costs, progress)
            for name, task in data.tasks.items()
        }
        text, path = markdown(list(results.values())), out / TABLE_FILE
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            write_over(path, text)
    return results


def tune(
    loaded: LoadedModel, calibration: CalibrationData, out: Path, options: CompareOptions,
    progress: Progress = no_progress,
) -> Tuned:  # fmt: skip
    """Choose settings for every method on the calibration images.

    Methods without a search space are run as published.
    """
    task = calibration.choosing
    decoding = Decoding("greedy", options.max_new_tokens or task.max_new_tokens)
    run = Run(out / "tuning").begin(task, loaded, decoding, replace(options.run, likelihood="none"))
    names = [name for name in options.methods if name not in CONTROL_OF]
    norms: dict[int, float] = {}
    note = _rule_note(options.rule, len(task.samples))
    if any(method_class(name).search_space({0: 1.0}) != method_class(name).search_space({}) for name in names):
        statistics = stored_layer_statistics(run, task.samples, progress)
        wanted = CalibrationOptions(shortlist=_LAYERS, rule=options.rule)
        layers, reason = best_layers(run, statistics, wanted, progress)
        norms = {layer: next(s.hidden_norm for s in statistics if s.layer == layer) for layer in layers}
        note += f" RUDDER's {_LAYERS} layers: {reason}."

    def prompts() -> Iterator[Inputs]:
        return (encode_samples(loaded, task, part) for part in batches(task.samples, options.run.batch_size))

    spaces = {name: space for name in names if (space := method_class(name).search_space(norms))}
    gentlest = {name: space[0] for name, space in spaces.items()}
    made, left_out = make_methods(names, loaded, gentlest, names, prompts)
    methods = {method.name: method for method in made}
    candidates: dict[str, list[Method]] = {
        name: [replace(methods[name], **own) for own in space]  # type: ignore[type-var]
        for name, space in spaces.items()
        if name in methods
    }
    choices = search(run, candidates, options.rule, progress)
    for name, found in choices.items():
        if found.best is None:
            left_out.append(f"{name} is left out: {NOTHING_BETTER}")
            del methods[name]
        else:
            methods[name] = candidates[name][found.best]
    for name in options.methods:
        if name in CONTROL_OF:
            own = methods.get(CONTROL_OF[name])
            if isinstance(own, Attached):
                methods[name] = control(method_class(name), own, loaded, prompts)
            else:
                left_out.append(f"{name} is left out: {CONTROL_OF[name]}, which it is a control of, is")
    ordered = {name: methods[name] for name in options.methods if name in methods}
    return Tuned(ordered, choices, [*left_out, note])


def measure(
    loaded: LoadedModel, task: Task, name: str, methods: Mapping[str, Method], said: Sequence[str], path: Path,
    options: CompareOptions, costs: Mapping[str, Mapping[str, float]], progress: Progress = no_progress,
) -> Result:  # fmt: skip
    """Run methods on a task, and write the result.

    Args:
        loaded: The model.
        task: What to answer.
        name: A decoding, or "pope", which is decoded greedily.
        methods: By what tables call them, the first is what the others are compared with.
        said: Notes for the result.
        path: The folder of the run.
        options: Of the comparison.
        costs: Of methods, by label.
        progress: Is called with what is done.
    """
    longest = (None if name == POPE else options.max_new_tokens) or task.max_new_tokens
    decoding = Decoding("greedy" if name == POPE else name, longest)
    run = Run(path).begin(task, loaded, decoding, options.run)
    run.answer(list(methods.values()), progress)
    variants = [Variant.of(method, label) for label, method in methods.items()]
    result = run.result(Scoring(bootstrap=options.bootstrap), variants)
    rows = [replace(row, cost=dict(costs.get(row.name, {}))) for row in result.methods]
    return save_result(replace(result, methods=rows, notes=[*result.notes, *said]), run.path, tables=False)


def _only_read(out: Path) -> bool:
    """Whether a folder has a finished comparison and cannot be written."""
    return (out / TABLE_FILE).exists() and not os.access(out, os.W_OK)


def _finished_results(out: Path, options: CompareOptions) -> dict[str, Result]:
    """The results of a finished comparison.

    Raises:
        InputError: Methods that are asked for were not compared.
    """
    results = _stored_results(out)
    for result in results.values():
        known = [row.name for row in result.methods] + [note.split()[0] for note in result.notes if "left out" in note]
        if missing := set(options.methods) - set(known):
            raise InputError(f"{out} cannot be written, and has no result of {', '.join(sorted(missing))}.")
    return results


def _stored_results(out: Path) -> dict[str, Result]:
    """The results that are written already, by the folders of their runs."""
    return {path.parent.name: Result.load(path) for path in sorted(out.glob(f"*/{RESULT_FILE}"))}


def _stored_costs(out: Path, methods: Mapping[str, Method]) -> dict[str, dict[str, float]] | None:
    """What was measured when results were written with these settings; None if that is not all."""
    rows = [row for result in _stored_results(out).values() for row in result.methods if row.name in methods]
    found = {row.name: row.cost for row in rows if row.settings == Variant.of(methods[row.name]).settings}
    return found if found.keys() == methods.keys() else None


def throughputs(
    loaded: LoadedModel, methods: Mapping[str, Method], inputs: dict[str, Any], settings: CostSettings,
    progress: Progress = no_progress,
) -> dict[str, dict[str, float]]:  # fmt: skip
    """Throughput of each method relative to vanilla's under greedy search."""
    costs, _ = measure_costs(loaded.model, methods, inputs, settings, progress)
    found: dict[str, dict[str, float]] = {}
    for cost in costs:
        values = {THROUGHPUT: cost.ratio.median if cost.ratio else 1.0, "forwards_per_token": cost.forwards_per_token}
        found[cost.method] = {name: round(value, 4) for name, value in values.items()}
    return found


def _rule_note(rule: Rule, images: int) -> str:
    return (
        f"Settings are the best of {BUDGET} for each method on {images} other images: {in_words(rule.objective)} with "
        f"at least {rule.recall_floor:.0%} of vanilla's recall, as `rudder calibrate` chooses. Controls have "
        "RUDDER-Beta's or the contrast's settings. Throughput is relative to vanilla's."
    )
