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
MODELS = {
    "llava": "LLaVA, seed 0",
    "llava-1": "LLaVA, seed 1",
    "llava-2": "LLaVA, seed 2",
    "llava-1-elsewhere": "LLaVA, seed 1 with other kernels",
    "idefics2": "Idefics2",
}
CAPTIONS = (
    *("chair_s", "chair_i", "chair_i_distinct", "recall", "precision", "f1"),
    *("repeated_mentions", "broken_sentences"),
)
BETA, ADD = "RUDDER-Beta", "RUDDER-Add"
METHODS = {
    "rudder-beta": BETA,
    "rudder-add": ADD,
    "pai": "PAI",
    "vcd": "VCD",
    "dola-low": "DoLa (lower layers)",
    "vti": "VTI",
    "contrast": "contrast (not in the paper)",
    "rudder-beta+contrast": "RUDDER-Beta with contrast (not in the paper)",
}
CONTROLS = {
    "rudder-random": "random direction",
    "rudder-shuffled": "another image's CARD",
    "contrast-random": "contrast: random values",
    "contrast-shuffled": "contrast: another image's values",
}
README_COLUMNS = ("chair_s", "chair_i", "recall", "precision", "f1")
BY_PAPER = " by the paper's rule"
# Rows of the decodings: method, and which of its settings.
DECODED = (
    *(("rudder-beta", "calibrated"), ("rudder-add", "calibrated"), ("rudder-beta", "tuned")),
    *((name, "tuned") for name in ("pai", "vcd", "dola-low", "vti", "contrast", "rudder-beta+contrast")),
    ("opera", "published"),
)

Values = Mapping[str, MetricValue]
Changes = Mapping[str, MetricDifference]


@dataclass(frozen=True)
class Measured:
    """What `run.py` measured of one model.

    Attributes:
        label: The model, in words.
        comparison: All methods and decodings on the split `evaluation`.
        fresh: The calibrated and tuned settings on the fresh scenes.
        by_paper: RUDDER by the paper's rule on the fresh scenes.
        pope: Yes/no questions, without and with a steered first token.
        numbers: Everything else: vanilla's scores, records of calibrations, pairs of methods, splits one by one.
    """

    label: str
    comparison: Comparison
    fresh: EvaluationResult
    by_paper: EvaluationResult
    pope: Mapping[str, EvaluationResult]
    numbers: Mapping[str, Any]

    def row(self, method: str, variant: str = "", decoding: str = "greedy") -> Row | None:
        """A row of the comparison."""
        wanted = (method, variant, decoding)
        return next((r for r in self.comparison.rows if (r.method, r.variant, r.decoding) == wanted), None)

    def on_each_split(self, method: str, rule: str = "fresh") -> list[str]:
        """Changes of CHAIR_S and F1 on one split after the other: `-3.0, -2.6`."""
        splits = [split[method] for split in self.numbers[rule]["splits"].values()]
        return [
            ", ".join(number(split[name]["value"], "percent", True) for split in splits) for name in ("chair_s", "f1")
        ]


@cache
def read(name: str) -> dict[str, Any]:
    """All numbers of a model."""
    numbers: dict[str, Any] = read_json(FOLDER / f"{name}.json")
    return numbers


@cache
def measured(name: str) -> Measured:
    """What was measured of a model."""
    numbers = read(name)
    return Measured(
        MODELS[name],
        from_json(Comparison, numbers["comparison"]),
        *(from_json(EvaluationResult, numbers[rule]["result"]) for rule in ("fresh", "fresh-paper")),
        {
            "no": from_json(EvaluationResult, numbers["pope"]),
            "yes": from_json(EvaluationResult, numbers["pope-first"]),
        },
        numbers,
    )


def models() -> list[Measured]:
    """All models."""
    return [measured(name) for name in MODELS]


def _cells(metrics: Values, changes: Changes, names: tuple[str, ...] = CAPTIONS) -> list[str]:
    return [with_change(metrics.get(name), changes.get(name)) for name in names]


def _headings(names: tuple[str, ...] = CAPTIONS) -> list[str]:
    metrics = measured("llava").fresh.method("vanilla").metrics
    return [heading(metrics[name].label, metrics[name].direction) for name in names]


def _fresh_methods(model: Measured) -> Iterator[tuple[str, MethodResult, list[str]]]:
    """Methods on the fresh scenes: label, result, and changes on each split; RUDDER also by the paper's rule."""
    for name, label in METHODS.items():
        if found := next((method for method in model.fresh.methods if method.name == name), None):
            yield label, found, model.on_each_split(name)
        if name == "rudder-add":
            for by_rule in ("rudder-beta", "rudder-add"):
                split = model.on_each_split(by_rule, "fresh-paper")
                yield METHODS[by_rule] + BY_PAPER, model.by_paper.method(by_rule), split


def _cut(control: ControlResult | None, names: tuple[str, ...] = CAPTIONS) -> Iterator[list[str]]:
    """The row of a truncated control, unless the method recalls as much as vanilla, whose captions are then uncut."""
    if control is not None and control.mentions is not None:
        yield ["vanilla's captions, cut to the recall of the row above", *_cells(control.metrics, {}, names)]


def fresh_table() -> str:
    """Every model on the scenes that nothing was chosen on, greedy search."""
    rows = []
    for model in models():
        rows.append([model.label, "vanilla", *_cells(model.fresh.method("vanilla").metrics, {}), "", ""])
        for label, found, split in _fresh_methods(model):
            rows.append([model.label, label, *_cells(found.metrics, found.differences), *split])
            rows += [[model.label, *row, "", ""] for row in _cut(found.control)]
    return Table(["model", "method", *_headings(), "CHAIR_S, each split", "F1, each split"], rows, labels=2).markdown()


def decodings_table() -> str:
    """Every model under beam search and nucleus sampling."""
    names = ("chair_s", "chair_i", "recall", "precision", "f1", "broken_sentences")
    rows = []
    for model in models():
        for decoding in ("beam", "nucleus"):
            if vanilla := model.row("vanilla", "", decoding):
                rows.append([model.label, decoding, "vanilla", *_cells(vanilla.metrics, {}, names)])
            for method, variant in DECODED:
                row = model.row(method, variant, decoding)
                if row is not None and row.metrics:
                    label = f"{METHODS.get(method, method.upper())}, {variant}"
                    rows.append([model.label, decoding, label, *_cells(row.metrics, row.changes, names)])
                    rows += [[model.label, decoding, *cut] for cut in _cut(row.control, names)]
    return Table(["model", "decoding", "method", *_headings(names)], rows, labels=3).markdown()


def controls_table() -> str:
    """What controls change on the fresh scenes, where RUDDER and contrast have the same settings as they."""
    rows = []
    for model in models():
        named = {"rudder-beta": BETA, "contrast": METHODS["contrast"], **CONTROLS}
        found = [(label, m) for name, label in named.items() for m in model.fresh.methods if m.name == name]
        by_paper = {"rudder-beta": BETA + BY_PAPER, "rudder-shuffled": "another image's CARD, same settings"}
        found += [(label, m) for name, label in by_paper.items() for m in model.by_paper.methods if m.name == name]
        for label, method in found:
            changes = [_change(method.differences[metric]) for metric in ("chair_s", "chair_i", "f1")]
            rows.append([model.label, label, *changes])
    return Table(["model", "method", "CHAIR_S", "CHAIR_I", "F1"], rows, labels=2).markdown()


def contrast_table() -> str:
    """The contrast on the fresh scenes: its setting, changes against vanilla, and against tuned PAI."""
    rows = []
    for model in models():
        found = model.fresh.method("contrast")
        changes = [_change(found.differences[name]) for name in ("chair_s", "chair_i", "recall", "f1")]
        duel = model.numbers["fresh"]["duels"].get("contrast minus pai")
        against = [_change(from_json(MetricDifference, duel[name])) for name in ("chair_s", "chair_i", "f1")]
        broken = number(found.metrics["broken_sentences"].value, "percent")
        chosen = f"{found.settings['contrast']:g}, after {found.settings['contrast_after']}"
        rows.append([model.label, chosen, *changes, broken, *against])
    headings = [
        "model",
        "contrast",
        "CHAIR_S",
        "CHAIR_I",
        "recall",
        "F1",
        "broken sentences",
        *(f"{name} minus tuned PAI" for name in ("CHAIR_S", "CHAIR_I", "F1")),
    ]
    return Table(headings, rows, labels=2).markdown()


def _change(change: MetricDifference) -> str:
    return with_interval(change.value, change.low, change.high, change.unit, sign=True)


def pope_table() -> str:
    """Yes/no questions, the first token unsteered and steered."""
    names = ("accuracy", "f1", "yes_ratio")
    rows = []
    for model in models():
        for when, result in model.pope.items():
            for found in result.methods:
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
    """Pairs of methods on the fresh scenes: the first minus the second, paired by scene."""
    rows = []
    for model in models():
        for pair, found in model.numbers["fresh"]["duels"].items():
            changes = {name: from_json(MetricDifference, change) for name, change in found.items()}
            rows.append(
                [model.label, pair, *(_change(changes[name]) for name in ("chair_s", "chair_i", "recall", "f1"))]
            )
    return Table(["model", "pair", "CHAIR_S", "CHAIR_I", "recall", "F1"], rows, labels=2).markdown()


def readme_table() -> str:
    """The README's: the LLaVA of seed 0 on the fresh scenes, with costs."""
    model = measured("llava")
    left_out = (METHODS["rudder-beta+contrast"], METHODS["vti"], ADD, ADD + BY_PAPER)
    rows = [["vanilla", *_cells(model.fresh.method("vanilla").metrics, {}, README_COLUMNS), "1", "1"]]
    for label, found, _ in _fresh_methods(model):
        if label not in left_out:
            cost = model.comparison.cost(found.name, "greedy")
            assert cost is not None
            assert cost.ratio is not None
            speed = with_interval(cost.ratio.median, *cost.ratio.interval, "ratio")
            scores = _cells(found.metrics, found.differences, README_COLUMNS)
            rows.append([label, *scores, speed, f"{cost.forwards_per_token:.0f}"])
            rows += [[*row, "-", "-"] for row in _cut(found.control, README_COLUMNS)]
    return Table(["", *_headings(README_COLUMNS), "throughput", "forwards per token"], rows, labels=1).markdown()


TABLES: dict[str, Callable[[], str]] = {
    "readme": readme_table,
    "vanilla": vanilla_table,
    "settings": settings_table,
    "fresh": fresh_table,
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
