"""The tables of README.md and docs/test-bed.md, from the result files that `run.py` wrote beside this program.

python -m benchmarks.embedded.tables             prints all tables
python -m benchmarks.embedded.tables --readme    prints the README's
python -m benchmarks.embedded.tables --write     puts them between their comments on the pages
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rudder_hf.evaluate.result import FORMAT, MethodResult, MetricDifference, Result
from rudder_hf.evaluate.statements import TIES, verdict
from rudder_hf.evaluate.tables import THROUGHPUT
from rudder_hf.methods import GROUPS
from rudder_hf.runtime.report import Table, heading, number, with_interval
from rudder_hf.runtime.store import read_json

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent
MODELS = {
    "llava": "LLaVA, seed 0",
    "llava-1": "LLaVA, seed 1",
    "llava-2": "LLaVA, seed 2",
    "idefics2": "Idefics2",
}
SHIPPED = ("llava", "idefics2")
COLUMNS = ("chair_s", "chair_i", "recall", "f1")
LABELS = {
    "vanilla": "vanilla",
    "rudder-beta": "RUDDER-Beta",
    "rudder-add": "RUDDER-Add",
    "rudder-released": "RUDDER-Beta as released",
    "vcd": "VCD",
    "pai": "PAI",
    "dola": "DoLa",
    "flb": "first logit boosting",
    "plausibility": "plausibility cut-off alone",
    "vista": "VISTA",
    "vti": "VTI",
    "contrast": "contrast (not in the paper)",
    "rudder-beta+contrast": "RUDDER-Beta + contrast (not in the paper)",
    "rudder-mean": "control: mean CARD",
    "rudder-shuffled": "control: another image's CARD",
    "rudder-random": "control: random direction",
    "rudder-negated": "control: minus CARD",
    "contrast-random": "control of the contrast: random values",
    "contrast-shuffled": "control of the contrast: another image's values",
    "contrast-negated": "control of the contrast: towards the mean",
}
# Methods of others: RUDDER as released and the cut-off alone are no peers.
PEERS = tuple(name for name in GROUPS["peers"] if name not in ("rudder-released", "plausibility"))
README_PEERS = 3
STRICTEST = "rudder-mean"  # of the controls
ON_OTHER_PAGES = ("rudder-released", "flb")  # docs/paper.md and the models' own pages have these
CONTROLS = {
    "rudder-mean": "the mean CARD",
    "rudder-shuffled": "another image's CARD",
    "rudder-random": "a random direction",
    "rudder-negated": "-CARD",
}
CONTRAST_COLUMNS = {"chair_s": "CHAIR_S", "f1": "F1", "repeated_mentions": "repeated mentions"}


@dataclass(frozen=True)
class Row:
    """A row of the README's table, and a point of its chart."""

    label: str
    method: MethodResult
    marker: str = "s"
    ours: bool = False


def stored_results(folder: Path) -> dict[str, dict[str, Result]]:
    """Return the results of every model in a folder, by what was measured; those of another format are left out."""
    found = {path: read_json(path) for path in sorted(folder.glob("*.json"), key=lambda path: path.stem)}
    return {
        path.stem: read_json(path, dict[str, Result])
        for path, results in found.items()
        if results.get("greedy", {}).get("format") == FORMAT
    }


@cache
def _stored_here() -> dict[str, dict[str, Result]]:
    return stored_results(FOLDER)


def result(name: str) -> Result | None:
    """Return the result of a model, all methods by greedy search on scenes that nothing was chosen on, or None."""
    return _stored_here().get(name, {}).get("greedy")


def readme_rows() -> list[Row]:
    """Vanilla, RUDDER, its strictest control, the tuned peers with the highest F1, and the contrast: at most seven."""
    found = result("llava")
    if found is None:
        return []
    methods = {method.method: method for method in found.methods}
    peers = sorted((methods[name] for name in PEERS if name in methods), key=lambda peer: -_f1(peer))
    markers = {"vanilla": "*", "rudder-beta": "o", "rudder-mean": "X", "contrast": "D"}
    shown = ["vanilla", "rudder-beta", "rudder-mean", *(peer.method for peer in peers[:README_PEERS]), "contrast"]
    return [
        Row(LABELS[name], methods[name], markers.get(name, "s"), name == "rudder-beta")
        for name in shown
        if name in methods
    ]


def _f1(method: MethodResult) -> float:
    return method.metrics["f1"].value


def _cell(method: MethodResult, metric: str) -> str:
    """The value, its change against vanilla, and a mark where the change is significant."""
    value, change = number(method.metrics[metric].value, "percent"), method.differences.get(metric)
    if change is None:
        return value
    mark = "" if verdict(change) == TIES else "\\*"
    return f"{value} ({number(change.value, change.unit, sign=True)}{mark})"


def method_table(found: Result, rows: list[tuple[str, MethodResult]]) -> str:
    """Return a row for each method: five columns, with changes against vanilla and marks where significant."""
    first = found.methods[0].metrics
    headings = ["", *(heading(first[name].label, first[name].direction) for name in COLUMNS), "throughput ↑"]
    cells = []
    for label, method in rows:
        speed = method.cost.get(THROUGHPUT)
        cells.append([label, *(_cell(method, name) for name in COLUMNS), "-" if speed is None else f"{speed:.2f}"])
    return Table(headings, cells).markdown()


MARKS = (
    "In parentheses: the change against vanilla. \\* marks significant changes (the paired 95 % interval leaves out 0 "
    "and p is at most 0.05)."
)

CHART = """<picture>
  <source media="(prefers-color-scheme: dark)" srcset="docs/images/cost-dark.png">
  <img alt="CHAIR_S against time per token, for the rows of the table" src="docs/images/cost-light.png" width="830">
</picture>"""


def readme_block() -> str:
    """The README's table with what it says."""
    found, rows = result("llava"), readme_rows()
    if found is None:
        return ""
    ours = next(row.method for row in rows if row.ours)
    peers = [peer for peer in found.methods if peer.method in PEERS]
    better = [LABELS[peer.method] for peer in peers if _f1(peer) > _f1(ours)]
    said = (
        f"Tuned peers with a higher F1 than RUDDER-Beta here: {'; '.join(better) or 'none'}. A token of this model "
        "takes 2 to 3 ms, so that RUDDER's 0.2 ms shows; see [speed](docs/speed.md) for larger models."
    )
    measured = {label: each for name, label in MODELS.items() if (each := result(name)) is not None}
    shares = {
        label: _share(each.methods[0], each.method("rudder-beta"), "chair_s") for label, each in measured.items()
    }
    general = [
        label for label, each in measured.items() if verdict(each.method(STRICTEST).steered_minus["chair_s"]) == TIES
    ]
    said += (
        f"\n\nOn {len(shares)} such models RUDDER-Beta changes CHAIR_S by {', '.join(shares.values())}. Where the "
        f"mean CARD does as much, the effect is not specific to the image: {', '.join(general) or 'on none of them'} "
        "([test bed](docs/test-bed.md))."
    )
    parts = [
        f"Measured on the embedded LLaVA, greedy search, {len(found.image_ids):,} scenes that nothing was chosen on. "
        f"Each method was tuned on eight settings; of the peers, the {README_PEERS} with the highest F1 are shown:",
        method_table(found, [(row.label, row.method) for row in rows]),
        f"{MARKS} *Mean CARD* is the control that matters most: one direction for all images. {said}",
        CHART,
    ]
    return "\n\n".join(parts)


def test_bed_block() -> str:
    """One table for each shipped model, all methods."""
    parts = []
    for name in SHIPPED:
        found = result(name)
        if found is not None:
            about = f"**{MODELS[name]}**, {len(found.image_ids):,} scenes:"
            rows = [(LABELS[m.method], m) for m in found.methods if m.method not in ON_OTHER_PAGES]
            parts += [about, method_table(found, rows)]
    return "\n\n".join([*parts, MARKS] if parts else [])


def controls_block() -> str:
    """RUDDER-Beta on every model: against vanilla, against its controls, and what it costs the text."""
    measured = {label: found for name, label in MODELS.items() if (found := result(name)) is not None}
    if not measured:
        return ""
    ours = [found.method("rudder-beta") for found in measured.values()]
    controls = [{m.method: m.steered_minus for m in found.methods if m.steered_minus} for found in measured.values()]
    rows = [["CHAIR_S against vanilla", *(_change(one.differences.get("chair_s")) for one in ours)]]
    for metric, label in {"chair_s": "CHAIR_S", "chair_i": "CHAIR_I"}.items():
        shares = [_share(found.methods[0], one, metric) for found, one in zip(measured.values(), ours, strict=True)]
        rows.append([f"{label}, as a share of vanilla's", *shares])
    for name, label in CONTROLS.items():
        rows.append([f"CHAIR_S against {label}", *(_change(own.get(name, {}).get("chair_s")) for own in controls)])
    cut = [one.control.differences if one.control else {} for one in ours]
    rows.append(["CHAIR_S against the truncated control", *(_change(one.get("chair_s")) for one in cut)])
    for metric, label in {"f1": "F1", "repeated_mentions": "repeated mentions"}.items():
        rows.append([f"{label} against vanilla", *(_change(one.differences.get(metric)) for one in ours)])
    table = Table(["RUDDER-Beta", *measured], rows).markdown()
    return f"{table}\n\nIn brackets: paired 95 % bootstrap intervals over scenes, not corrected for their number."


def released_block() -> str:
    """RUDDER-Beta as printed and as released, on the shipped models, each tuned alike."""
    parts = []
    for name in SHIPPED:
        if (found := result(name)) is not None:
            rows = [(LABELS[key], found.method(key)) for key in ("vanilla", "rudder-beta", "rudder-released")]
            parts += [f"**{MODELS[name]}**, {len(found.image_ids):,} scenes:", method_table(found, rows)]
    return "\n\n".join([*parts, MARKS] if parts else [])


def _share(vanilla: MethodResult, ours: MethodResult, metric: str) -> str:
    """Return by which share of vanilla's value a method changes a metric."""
    return f"{100 * (ours.metrics[metric].value / vanilla.metrics[metric].value - 1):+.0f} %"


def contrast_block() -> str:
    """The image-value contrast on every model, as changes against vanilla."""
    rows = []
    for name, label in MODELS.items():
        found = result(name)
        for method in [] if found is None else found.methods:
            if method.method == "contrast":
                chosen = f"{method.settings['contrast']:g}, after {method.settings['contrast_after']}"
                rows.append([label, chosen, *(_change(method.differences.get(metric)) for metric in CONTRAST_COLUMNS)])
    return Table(["", "contrast", *CONTRAST_COLUMNS.values()], rows).markdown() if rows else ""


def _change(change: MetricDifference | None) -> str:
    return "-" if change is None else with_interval(change.value, change.low, change.high, change.unit, sign=True)


BLOCKS: dict[str, Callable[[], str]] = {
    "readme": readme_block,
    "test-bed": test_bed_block,
    "controls": controls_block,
    "contrast": contrast_block,
    "released": released_block,
}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--readme", action="store_true", help="the README's table alone")
    parser.add_argument("--write", action="store_true", help="put the tables on the pages that have a place for them")
    given = parser.parse_args()
    blocks = {name: block() for name, block in BLOCKS.items() if name == "readme" or not given.readme}
    if not given.write:
        print("\n\n".join(blocks.values()))
        return
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        text = path.read_text()
        for name, block in blocks.items():
            start, end = f"<!-- embedded {name} -->", f"<!-- end of embedded {name} -->"
            if start in text:
                before, rest = text.split(start)
                text = f"{before}{start}\n{block}\n{end}{rest.split(end)[1]}"
        if text != path.read_text():
            path.write_text(text)
            print(f"Written to {path.name}")


if __name__ == "__main__":
    main()
