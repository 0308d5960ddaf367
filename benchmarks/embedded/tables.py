"""The tables of README.md and docs/test-bed.md, from the result files of `run.py` beside this program.

python benchmarks/embedded/tables.py           prints all tables
python benchmarks/embedded/tables.py --write   puts them between their comments on the pages
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rudder_hf.compare import Comparison, Row
from rudder_hf.evaluate.result import ControlResult, EvaluationResult, MethodResult, MetricDifference, MetricValue
from rudder_hf.evaluate.tables import with_change
from rudder_hf.runtime.records import from_json
from rudder_hf.runtime.report import Table, change_in_points, heading, number, with_interval
from rudder_hf.runtime.store import read_json

FOLDER = Path(__file__).parent
MODELS = {"llava": "LLaVA, seed 0", "llava-1": "LLaVA, seed 1", "llava-2": "LLaVA, seed 2", "idefics2": "Idefics2"}
COMPARED = ("llava", "llava-1", "idefics2")
CAPTIONS = ("chair_s", "chair_i", "chair_i_distinct", "recall", "precision", "f1", "broken_sentences")
METHODS = {
    "rudder-beta": "RUDDER-Beta",
    "rudder-add": "RUDDER-Add",
    "pai": "PAI, tuned",
    "vcd": "VCD, tuned",
    "dola-low": "DoLa (lower layers), tuned",
    "contrast": "contrast, tuned (not in the paper)",
    "rudder-beta+contrast": "RUDDER-Beta with contrast, tuned (not in the paper)",
}
CONTROLS = {
    "rudder-random": "random direction",
    "rudder-shuffled": "another image's CARD",
    "contrast-random": "contrast: random values",
    "contrast-shuffled": "contrast: another image's values",
}
README_COLUMNS = ("chair_s", "chair_i", "recall", "f1")
BY_PAPER = "RUDDER-Beta by the paper's rule"
# Which of a method's settings the tables show.
OWN = {"rudder-beta": "calibrated", "rudder-add": "calibrated"}

Values = Mapping[str, MetricValue]
Changes = Mapping[str, MetricDifference]


@dataclass(frozen=True)
class Measured:
    """What `run.py` measured of one model.

    Attributes:
        label: The model, in words.
        comparison: All methods on the split `evaluation`.
        results: Of `rudder evaluate`: "second" is the split `evaluation2`, "paper" RUDDER by the paper's rule, "pope"
            and "pope-first" are yes/no questions without and with a steered first token.
        numbers: Everything else: vanilla's scores, records of calibrations, paired differences of pairs of methods.
    """

    label: str
    comparison: Comparison
    results: Mapping[str, EvaluationResult]
    numbers: Mapping[str, Any]

    def row(self, method: str, variant: str = "", decoding: str = "greedy") -> Row | None:
        """A row of the comparison."""
        wanted = (method, variant, decoding)
        return next((r for r in self.comparison.rows if (r.method, r.variant, r.decoding) == wanted), None)


@cache
def read(name: str) -> dict[str, Any]:
    """All numbers of a model."""
    numbers: dict[str, Any] = read_json(FOLDER / f"{name}.json")
    return numbers


@cache
def measured(name: str) -> Measured:
    """What was measured of a model that methods were compared on."""
    numbers = read(name)
    results = {key: from_json(EvaluationResult, numbers[key]) for key in ("second", "paper", "pope", "pope-first")}
    return Measured(MODELS[name], from_json(Comparison, numbers["comparison"]), results, numbers)


def models() -> list[Measured]:
    """The models that methods were compared on."""
    return [measured(name) for name in COMPARED]


def _cells(metrics: Values, changes: Changes, names: tuple[str, ...] = CAPTIONS) -> list[str]:
    return [with_change(metrics.get(name), changes.get(name)) for name in names]


def _headings(metrics: Values, names: tuple[str, ...] = CAPTIONS) -> list[str]:
    return [heading(metrics[name].label, metrics[name].direction) for name in names]


def _compared(model: Measured, decoding: str) -> Iterator[list[str]]:
    """Rows of a model: vanilla, RUDDER and its truncated control, the best peers, the contrast."""
    vanilla = model.row("vanilla", "", decoding)
    assert vanilla is not None
    yield [model.label, "vanilla", *_cells(vanilla.metrics, {})]
    for method, label in METHODS.items():
        row = model.row(method, OWN.get(method, "tuned"), decoding)
        if row is None:
            continue
        if not row.metrics:
            yield [model.label, label, row.note, *[""] * (len(CAPTIONS) - 1)]
            continue
        yield [model.label, label, *_cells(row.metrics, row.changes)]
        yield from _cut(model, label, row.control)
        if method == "rudder-add" and decoding == "greedy":
            for name, words in (("rudder-beta", BY_PAPER), ("rudder-add", "RUDDER-Add by the paper's rule")):
                found = model.results["paper"].method(name)
                yield [model.label, words, *_cells(found.metrics, found.differences)]
                yield from _cut(model, words, found.control)


def _cut(model: Measured, label: str, control: ControlResult | None) -> Iterator[list[str]]:
    """The row of a truncated control, unless the method recalls as much as vanilla, whose captions are then uncut."""
    if control is not None and control.mentions is not None:
        yield [model.label, f"vanilla cut to the recall of {label}", *_cells(control.metrics, {})]


def _caption_table(rows: list[list[str]], first: str = "model") -> str:
    vanilla = measured("llava").row("vanilla")
    assert vanilla is not None
    return Table([first, "method", *_headings(vanilla.metrics)], rows, labels=2).markdown()


def main_table() -> str:
    """Every model on the split `evaluation`, greedy search."""
    return _caption_table([row for model in models() for row in _compared(model, "greedy")])


def second_table() -> str:
    """Every model on the split `evaluation2`: settings as before, scenes that nothing has seen."""
    rows = []
    for model in models():
        result = model.results["second"]
        for name, label in {"vanilla": "vanilla", **METHODS}.items():
            found = next((method for method in result.methods if method.name == name), None)
            if found is None:
                continue
            rows.append([model.label, label, *_cells(found.metrics, found.differences)])
            rows += _cut(model, label, found.control)
    return _caption_table(rows)


def decodings_table() -> str:
    """The LLaVA of seed 0 under beam search and nucleus sampling."""
    model = measured("llava")
    rows = [[name, *row[1:]] for name in ("beam", "nucleus") for row in _compared(model, name)]
    return _caption_table(rows, "decoding")


def controls_table() -> str:
    """What controls change on the split `evaluation2`, where RUDDER and contrast have the same settings as they."""
    rows = []
    for model in models():
        for name, label in {"rudder-beta": "RUDDER-Beta", "contrast": "contrast, tuned", **CONTROLS}.items():
            found = next((method for method in model.results["second"].methods if method.name == name), None)
            if found is not None:
                changes = [found.differences[metric] for metric in ("chair_s", "chair_i", "f1")]
                rows.append([model.label, label, *(_change(change) for change in changes)])
    return Table(["model", "method", "CHAIR_S", "CHAIR_I", "F1"], rows, labels=2).markdown()


def contrast_table() -> str:
    """The contrast on `evaluation2`: its setting, changes against vanilla, and against tuned PAI."""
    rows = []
    for model in models():
        found = model.results["second"].method("contrast")
        changes = [_change(found.differences[name]) for name in ("chair_s", "chair_i", "recall", "f1")]
        duel = model.numbers["duels"].get("contrast minus pai")
        against = _change(from_json(MetricDifference, duel["f1"])) if duel else "no tuned PAI"
        broken = number(found.metrics["broken_sentences"].value, "percent")
        chosen = f"{found.settings['contrast']:g}, after {found.settings['contrast_after']}"
        rows.append([model.label, chosen, *changes, broken, against])
    headings = [
        "model",
        "contrast",
        "CHAIR_S",
        "CHAIR_I",
        "recall",
        "F1",
        "broken sentences",
        "F1 minus that of tuned PAI",
    ]
    return Table(headings, rows, labels=2).markdown()


def _change(change: MetricDifference) -> str:
    return with_interval(change.value, change.low, change.high, change.unit, sign=True)


def pope_table() -> str:
    """Yes/no questions, the first token unsteered and steered."""
    names = ("accuracy", "f1", "yes_ratio")
    rows = []
    for model in models():
        for result, when in (("pope", "no"), ("pope-first", "yes")):
            for found in model.results[result].methods:
                if found.name == "vanilla" and when == "yes":
                    continue
                label = METHODS.get(found.name, found.name)
                steered = "-" if found.name == "vanilla" else when
                rows.append([model.label, label, steered, *_cells(found.metrics, found.differences, names)])
    headings = ["model", "method", "first token steered", "accuracy", "F1", "yes"]
    return Table(headings, rows, labels=3).markdown()


def vanilla_table() -> str:
    """The unsteered models, measured after their training."""
    names = ("chair_s", "chair_i", "chair_i_distinct", "recall", "precision", "f1", "broken", "false_places")
    rows = []
    for name, label in MODELS.items():
        found = read(name)["vanilla"]["vanilla"]["evaluation"]
        pope = " / ".join(f"{found['pope'][name]['accuracy']:.1f}" for name in ("random", "popular", "adversarial"))
        rows.append([label, *(f"{found[metric]:.1f}" for metric in names), pope])
    headings = ["model", "CHAIR_S", "CHAIR_I", "distinct", "recall", "precision", "F1", "broken sentences"]
    return Table(
        [*headings, "wrong place", "POPE accuracy: random / popular / adversarial"], rows, labels=1
    ).markdown()


def settings_table() -> str:
    """What each calibration chose, and what the held-out images say of it."""
    rows = []
    for name, label in MODELS.items():
        for objective, by_mode in read(name)["calibration"].items():
            for mode, record in by_mode.items():
                chosen = record["settings"]
                gate = f", k {chosen['k']:g}" if mode == "beta" else ""
                text = (
                    f"{mode}, layer {chosen['layer']}, alpha_max {chosen['alpha_max']:g}{gate}, span {chosen['span']}"
                )
                parts = [(record["held_out"], metric) for metric in ("chair_s", "chair_i", "recall", "f1")]
                parts.append((record["held_out_own_minus_other_card"], "chair_s"))
                shown = [change_in_points(found[metric]) for found, metric in parts]
                rows.append([label, objective, text, *shown, "no" if record["refusal"] else "yes"])
    headings = [
        "model",
        "objective",
        "settings",
        "CHAIR_S",
        "CHAIR_I",
        "recall",
        "F1",
        "CHAIR_S, own minus other CARD",
    ]
    return Table([*headings, "calibrated"], rows, labels=2).markdown()


def duel_table() -> str:
    """Pairs of methods on `evaluation2`: the first minus the second, paired by scene."""
    rows = []
    for model in models():
        for pair, found in model.numbers["duels"].items():
            changes = {name: from_json(MetricDifference, change) for name, change in found.items()}
            rows.append(
                [model.label, pair, *(_change(changes[name]) for name in ("chair_s", "chair_i", "recall", "f1"))]
            )
    return Table(["model", "pair", "CHAIR_S", "CHAIR_I", "recall", "F1"], rows, labels=2).markdown()


def readme_table() -> str:
    """The README's: the LLaVA of seed 0 with costs."""
    model = measured("llava")
    rows = [_costed(model, "vanilla", "vanilla", model.row("vanilla"))]
    for method, label in METHODS.items():
        if method in ("rudder-add", "rudder-beta+contrast"):
            continue
        rows.append(_costed(model, method, label, model.row(method, OWN.get(method, "tuned"))))
        if method == "rudder-beta":
            found = model.results["paper"].method(method)
            rows.append(_costed(model, method, BY_PAPER, found))
            assert found.control is not None
            cut = [number(found.control.metrics[name].value, "percent") for name in README_COLUMNS]
            rows.append(["vanilla's captions, cut to the recall of the row above", *cut, "-", "-"])
    headings = ["", "CHAIR_S ↓", "CHAIR_I ↓", "recall ↑", "F1 ↑", "throughput", "forwards per token"]
    return Table(headings, rows, labels=1).markdown()


def _costed(model: Measured, method: str, label: str, found: Row | MethodResult | None) -> list[str]:
    """A row of the README: scores, and what the method costs."""
    cost = model.comparison.cost(method, "greedy")
    assert found is not None
    assert cost is not None
    changes = found.changes if isinstance(found, Row) else found.differences
    speed = "1" if cost.ratio is None else with_interval(cost.ratio.median, *cost.ratio.interval, "ratio")
    return [label, *_cells(found.metrics, changes, README_COLUMNS), speed, f"{cost.forwards_per_token:.0f}"]


TABLES: dict[str, Callable[[], str]] = {
    "readme": readme_table,
    "vanilla": vanilla_table,
    "settings": settings_table,
    "main": main_table,
    "second": second_table,
    "duels": duel_table,
    "controls": controls_table,
    "decodings": decodings_table,
    "contrast": contrast_table,
    "pope": pope_table,
}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the tables on the pages that have a place for them")
    write = parser.parse_args().write
    root = FOLDER.parent.parent
    pages = {path: path.read_text() for path in (root / "README.md", *sorted((root / "docs").glob("*.md")))}
    for name, table in TABLES.items():
        start, end, text = f"<!-- embedded {name} -->", f"<!-- end of embedded {name} -->", table()
        for path, page in pages.items():
            if write and start in page:
                before, rest = page.split(start)
                pages[path] = f"{before}{start}\n{text}\n{end}{rest.split(end)[1]}"
        if not write:
            print(f"{start}\n{text}\n{end}\n")
    for path, page in pages.items():
        if page != path.read_text():
            path.write_text(page)
            print(f"Written to {path.name}")


if __name__ == "__main__":
    main()
