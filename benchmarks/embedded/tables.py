"""The tables of README.md and docs, and a page for each model, from the result files of `run.py` beside this program.

python benchmarks/embedded/tables.py           prints all tables
python benchmarks/embedded/tables.py --write   puts them between their comments on the pages, and writes the models'
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rudder_hf.benchmark.report import BenchmarkReport
from rudder_hf.compare import Comparison, Row, markdown
from rudder_hf.evaluate.result import EvaluationResult, MethodResult, MetricDifference, MetricValue
from rudder_hf.evaluate.tables import method_table, notes, with_change
from rudder_hf.methods import GROUPS
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
CAPTIONS = ("chair_s", "chair_i", "chair_i_distinct", "recall", "precision", "f1", "repeated_mentions")
BETA, ADD = "RUDDER-Beta", "RUDDER-Add"
AGAINST_CUT = "CHAIR_S minus the truncated control's"
TUNED, BY_PAPER = ", one of eight settings", " by the paper's rule"
RULES = {
    "fresh": "RUDDER as calibrated, others as tuned, or as published where nothing was better than vanilla",
    "fresh-paper": "RUDDER" + BY_PAPER,
    "fresh-tuned": "RUDDER" + TUNED,
}
# Rows of the tables that have a column for each model: the method, and by which rule its settings were chosen.
METHODS = {
    ("rudder-beta", "fresh"): BETA,
    ("rudder-add", "fresh"): ADD,
    ("rudder-beta", "fresh-tuned"): BETA + TUNED,
    ("rudder-add", "fresh-tuned"): ADD + TUNED,
    ("rudder-beta", "fresh-paper"): BETA + BY_PAPER,
    ("rudder-add", "fresh-paper"): ADD + BY_PAPER,
    ("pai", "fresh"): "PAI",
    ("pai-attention", "fresh"): "PAI, attention alone",
    ("vcd", "fresh"): "VCD",
    ("dola-low", "fresh"): "DoLa, lower layers",
    ("dola-high", "fresh"): "DoLa, higher layers",
    ("vista", "fresh"): "VISTA",
    ("vista-vsv", "fresh"): "VISTA, steering alone",
    ("vista-sla", "fresh"): "VISTA, logits alone",
    ("vti", "fresh"): "VTI",
    ("contrast", "fresh"): "contrast (not in the paper)",
    ("rudder-beta+contrast", "fresh"): "RUDDER-Beta with contrast (not in the paper)",
}
CONTROLS = {
    ("rudder-random", "fresh"): "random direction",
    ("rudder-shuffled", "fresh"): "another image's CARD",
    ("rudder-mean", "fresh"): "mean CARD of other images",
    ("rudder-negated", "fresh"): "minus CARD",
    ("rudder-text-only", "fresh"): "CARD without the image",
    ("rudder-shuffled", "fresh-paper"): "another image's CARD" + BY_PAPER,
    ("rudder-mean", "fresh-paper"): "mean CARD of other images" + BY_PAPER,
    ("contrast-random", "fresh"): "contrast: random values",
    ("contrast-shuffled", "fresh"): "contrast: another image's values",
    ("contrast-negated", "fresh"): "contrast: towards the mean",
}
# What the README leaves out: it has one line for each idea.
README_LEAVES_OUT = ("rudder-add", "pai-attention", "dola-high", "vista", "vista-sla", "rudder-beta+contrast")
# Rows of the decodings: method, and which of its settings. Peers without tuned ones have the published ones.
DECODED = (
    *((name, variant) for variant in ("calibrated", "tuned") for name in GROUPS["rudder"]),
    *((name, "tuned") for name in (*GROUPS["peers"], *GROUPS["contrast"])),
)

Values = Mapping[str, MetricValue]
Changes = Mapping[str, MetricDifference]


@dataclass(frozen=True)
class Measured:
    """What `run.py` measured of one model.

    Attributes:
        label: The model, in words.
        comparison: All methods and decodings on the split `evaluation`.
        fresh: Methods on the fresh scenes, by the rule that chose their settings.
        pope: Yes/no questions, without and with a steered first token.
        numbers: Everything else: vanilla's scores, records of calibrations, pairs of methods, splits one by one.
    """

    label: str
    comparison: Comparison
    fresh: Mapping[str, EvaluationResult]
    pope: Mapping[str, EvaluationResult]
    numbers: Mapping[str, Any]

    def row(self, method: str, variant: str = "", decoding: str = "greedy") -> Row | None:
        """A row of the comparison."""
        wanted = (method, variant, decoding)
        return next((r for r in self.comparison.rows if (r.method, r.variant, r.decoding) == wanted), None)

    def nothing_better(self, method: str) -> bool:
        """Whether a method was run as published, because no setting that it was tuned on was better than vanilla."""
        row = self.row(method, "tuned")
        return row is not None and not row.metrics and method not in GROUPS["rudder"]

    def on_fresh_scenes(self, method: str, rule: str = "fresh") -> MethodResult | None:
        """A method on the fresh scenes; None if it was not measured."""
        result = self.fresh.get(rule)
        return next((found for found in result.methods if found.name == method), None) if result else None


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
        {rule: from_json(EvaluationResult, numbers[rule]["result"]) for rule in numbers if rule.startswith("fresh")},
        {
            "no": from_json(EvaluationResult, numbers["pope"]),
            "yes": from_json(EvaluationResult, numbers["pope-first"]),
        },
        numbers,
    )


def models() -> list[Measured]:
    """All models."""
    return [measured(name) for name in MODELS]


def _cells(metrics: Values, changes: Changes) -> list[str]:
    return [with_change(metrics.get(name), changes.get(name)) for name in CAPTIONS]


def _change(change: MetricDifference) -> str:
    return with_interval(change.value, change.low, change.high, change.unit, sign=True)


def _recorded(change: Mapping[str, Any]) -> str:
    return _change(from_json(MetricDifference, change))


def _against_cut(method: MethodResult) -> str:
    """CHAIR_S of a method minus that of vanilla's captions cut to the same recall."""
    if method.control is None:
        return "-"
    return _change(method.control.differences["chair_s"]) + (" (uncut)" if method.control.mentions is None else "")


def _across(title: str, cells: Callable[[Measured, str, str], str], rows: Mapping[tuple[str, str], str]) -> str:
    """A table with a row for each method and a column for each model."""
    table = [[label, *(cells(model, *row) for model in models())] for row, label in rows.items()]
    return Table([title, *MODELS.values()], table, labels=1).markdown()


def _fresh_table(metric: str, title: str) -> str:
    """Changes of a metric against vanilla on the scenes that nothing was chosen on, greedy search."""

    def cell(model: Measured, method: str, rule: str) -> str:
        found = model.on_fresh_scenes(method, rule)
        if found is None:
            return "-"
        return _change(found.differences[metric]) + (", published" if model.nothing_better(method) else "")

    return _across(title, cell, METHODS | CONTROLS)


def chair_s_table() -> str:
    """CHAIR_S of every method and model."""
    return _fresh_table("chair_s", "CHAIR_S")


def chair_i_table() -> str:
    """CHAIR_I of every method and model."""
    return _fresh_table("chair_i", "CHAIR_I")


def f1_table() -> str:
    """F1 of every method and model."""
    return _fresh_table("f1", "F1")


def truncated_table() -> str:
    """CHAIR_S of every method minus that of vanilla's captions cut to the same recall."""

    def cell(model: Measured, method: str, rule: str) -> str:
        found = model.on_fresh_scenes(method, rule)
        return "-" if found is None else _against_cut(found)

    return _across(AGAINST_CUT, cell, METHODS)


def decodings_table() -> str:
    """Every model under beam search and nucleus sampling: CHAIR_S and F1 against vanilla."""
    names = {name: label for (name, _), label in reversed(METHODS.items())} | {"opera": "OPERA"}

    def cell(model: Measured, decoding: str, metric: str, method: str, variant: str) -> str:
        row, published = model.row(method, variant, decoding), model.row(method, "published", decoding)
        if row is not None and row.metrics:
            return _change(row.changes[metric])
        if published is not None and published.metrics and variant == "tuned":
            return _change(published.changes[metric]) + ", published"
        return "-"

    rows = []
    for decoding in ("beam", "nucleus"):
        for metric, title in (("chair_s", "CHAIR_S"), ("f1", "F1")):
            for method, variant in DECODED:
                cells = [cell(model, decoding, metric, method, variant) for model in models()]
                if set(cells) != {"-"}:
                    rows.append([decoding, title, f"{names[method]}, {variant}", *cells])
    return Table(["decoding", "metric", "method", *MODELS.values()], rows, labels=3).markdown()


def contrast_table() -> str:
    """The contrast on the fresh scenes: its setting, changes against vanilla, and against tuned PAI."""
    rows = []
    for model in models():
        found = model.fresh["fresh"].method("contrast")
        changes = [_change(found.differences[name]) for name in ("chair_s", "chair_i", "recall", "f1")]
        duel = model.numbers["fresh"]["duels"].get("contrast minus pai")
        against = [_recorded(duel[name]) for name in ("chair_s", "chair_i", "f1")]
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


def pope_table() -> str:
    """Yes/no questions, the first token unsteered and steered."""
    names = ("accuracy", "f1", "yes_ratio")
    rows = []
    for model in models():
        for when, result in model.pope.items():
            for found in result.methods:
                if found.name == "vanilla" and when == "yes":
                    continue
                label = METHODS.get((found.name, "fresh"), found.name)
                steered = "-" if found.name == "vanilla" else when
                cells = [with_change(found.metrics[name], found.differences.get(name)) for name in names]
                rows.append([model.label, label, steered, *cells])
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
    found = [model.numbers["fresh"]["duels"] for model in models()]
    rows = [
        [title, pair, *(_recorded(duels[pair][metric]) if pair in duels else "-" for duels in found)]
        for metric, title in (("chair_s", "CHAIR_S"), ("f1", "F1"))
        for pair in dict.fromkeys(pair for duels in found for pair in duels)
    ]
    return Table(["metric", "pair", *MODELS.values()], rows, labels=2).markdown()


def readme_table() -> str:
    """The README's: the LLaVA of seed 0 on the fresh scenes, with costs of `rudder benchmark`."""
    model = measured("llava")
    costs = BenchmarkReport.load(FOLDER / "costs.json").cases[0]
    vanilla = model.fresh["fresh"].method("vanilla").metrics
    rows = [["vanilla", *_cells(vanilla, {}), "-", "1", "1"]]
    for (method, rule), label in METHODS.items():
        found = model.on_fresh_scenes(method, rule)
        if method in README_LEAVES_OUT or found is None:
            continue
        cost = costs.cost(method)
        assert cost.ratio is not None
        speed = with_interval(cost.ratio.median, *cost.ratio.interval, "ratio")
        cells = _cells(found.metrics, found.differences)
        rows.append([label, *cells, _against_cut(found), speed, f"{cost.forwards_per_token:.0f}"])
        # A method that recalls as much as vanilla has vanilla uncut for its control.
        if found.control is not None and found.control.mentions is not None:
            cut = "vanilla's captions, cut to the recall of the row above"
            rows.append([cut, *_cells(found.control.metrics, {}), "-", "-", "-"])
    headings = [heading(vanilla[name].label, vanilla[name].direction) for name in CAPTIONS]
    return Table(["", *headings, AGAINST_CUT, "throughput", "forwards per token"], rows, labels=1).markdown()


def model_page(model: Measured) -> str:
    """Everything about a model: each rule's settings on the fresh scenes, on each split alone, and the comparison."""
    parts = [f"# {model.label}"]
    for rule, result in model.fresh.items():
        parts.append(f"## {len(result.image_ids)} fresh scenes, greedy search: {RULES[rule]}")
        parts += [method_table(result).markdown(), "\n".join(f"- {line}" for line in notes(result))]
        rows = [
            [split, method, *(_recorded(found[name]) for name in ("chair_s", "f1"))]
            for split, methods in model.numbers[rule]["splits"].items()
            for method, found in methods.items()
        ]
        parts.append(Table(["split", "method", "CHAIR_S", "F1"], rows, labels=2).markdown())
    return "\n\n".join([*parts, "## All methods and decodings", markdown(model.comparison)])


TABLES: dict[str, Callable[[], str]] = {
    "readme": readme_table,
    "vanilla": vanilla_table,
    "settings": settings_table,
    "chair_s": chair_s_table,
    "chair_i": chair_i_table,
    "f1": f1_table,
    "truncated": truncated_table,
    "duels": duel_table,
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
        for path, shown in pages.items():
            if write and start in shown:
                before, rest = shown.split(start)
                pages[path] = f"{before}{start}\n{text}\n{end}{rest.split(end)[1]}"
        if not write:
            print(f"{start}\n{text}\n{end}\n")
    if write:
        pages |= {FOLDER / f"{name}.md": model_page(measured(name)) for name in MODELS}
    for path, text in pages.items():
        if not path.exists() or text != path.read_text():
            path.write_text(text)
            print(f"Written to {path.name}")


if __name__ == "__main__":
    main()
