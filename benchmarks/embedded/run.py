"""Measure the models that were trained on the scenes: tune every method alike, then judge all by 1,000 fresh scenes.

    python -m benchmarks.embedded.run --out runs llava idefics2 llava-1=FOLDER llava-2=FOLDER
    python -m benchmarks.embedded.run --out trial --results trial --limit 8 llava        # a first look, in minutes

`llava` and `idefics2` come with the package; FOLDER is what `python -m tools.train_scenes` wrote. Each method is tuned
on eight settings by the rule of `rudder calibrate` on the 300 scenes of the split `calibration`, and judged by those
of `evaluation4`, on which nothing was ever chosen:

- greedy, all models: every method, vanilla's captions cut to its recall, and RUDDER-Beta's controls;
- yes/no questions (POPE's), all models: RUDDER with the first token off and on;
- beam search and nucleus sampling, the models of the package: RUDDER, the contrast, and the two peers that were best
  on the calibration scenes.

A killed run goes on when the command is repeated; several models can be measured at once, by a process each. NAME.json
has a model's results ("greedy", "pope", "beam", "nucleus"), which `tables.py` makes tables of; results.md shows all
models.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.embedded.tables import COLUMNS, LABELS, MARKS, SHIPPED, method_table, stored_results
from rudder_hf.benchmark.costs import CostSettings
from rudder_hf.calibrate import find_data
from rudder_hf.compare.run import CompareOptions, Tuned, measure, throughputs, tune
from rudder_hf.evaluate.result import Result
from rudder_hf.evaluate.run import RunOptions
from rudder_hf.evaluate.tables import short_table, title
from rudder_hf.evaluate.tasks import DataOptions, encode_samples, make_task
from rudder_hf.methods import Method, get
from rudder_hf.methods.rudder import RudderBeta
from rudder_hf.runtime.models import load_model
from rudder_hf.runtime.report import ProgressBar, Table, heading, with_interval
from rudder_hf.runtime.store import read_json, to_json, write_over

HERE = Path(__file__).parent
SPLIT = "evaluation4"
PEERS = ("vcd", "pai", "vista", "dola", "vti", "flb")
CONTROLS = ("rudder-shuffled", "rudder-mean", "rudder-random", "rudder-negated")
METHODS = ("vanilla", "rudder-beta", "rudder-add", "rudder-released", *PEERS, "contrast", *CONTROLS)
OTHER_DECODINGS = ("vanilla", "rudder-beta", "rudder-add", "contrast")  # and the two best peers
FIRST = ", first token steered"


@dataclass(frozen=True)
class Sizes:
    """How many scenes."""

    tuned: int = 300  # to choose on
    captions: int = 1000  # to judge by, greedily
    others: int = 500  # with beams and by sampling
    questions: int = 150  # that yes/no questions are asked about

    def at_most(self, limit: int | None) -> Sizes:
        """The same, each of them limited."""
        return self if limit is None else Sizes(**{name: min(limit, size) for name, size in asdict(self).items()})


def measure_model(name: str, source: str, given: argparse.Namespace) -> None:
    """Everything about one model."""
    out, results, sizes = given.out / name, given.results, Sizes().at_most(given.limit)
    # Results name a model by what it is, not by where it lay.
    loaded = replace(load_model(source), name=f"embedded:{name}")
    options = CompareOptions(
        methods=tuple(given.methods), max_new_tokens=64, costs=CostSettings(new_tokens=32, rounds=8),
        run=RunOptions(given.batch_size, likelihood="none", command=f"benchmarks/embedded/run.py {name}"),
    )  # fmt: skip
    calibration = find_data(DataOptions(), sizes.tuned, 0)
    scenes = make_task("scenes", DataOptions(split=SPLIT, limit=sizes.captions))
    with ProgressBar() as bar:
        tuned = tune(loaded, calibration, out, options, bar)
        timed = out / "costs.json"
        costs = read_json(timed) if timed.exists() else {}
        new = {key: method for key, method in tuned.methods.items() if key == "vanilla" or key not in costs}
        if len(new) > 1:
            inputs = encode_samples(loaded, scenes, scenes.samples[:1])
            costs |= throughputs(loaded, new, inputs, options.costs, bar)
            write_over(timed, to_json(costs))

        path = results / f"{name}.json"
        found = read_json(path) if path.exists() else {}

        def judged(what: str, task: Any, methods: dict[str, Method]) -> None:
            result = measure(loaded, task, what, methods, tuned.notes, out / what, options, costs, bar)
            found[what] = asdict(result)
            # A line for each: programs read them.
            lines = (f"{json.dumps(key)}:{json.dumps(each, separators=(',', ':'))}" for key, each in found.items())
            write_over(path, "{\n" + ",\n".join(lines) + "\n}\n")

        judged("greedy", scenes, tuned.methods)
        asked = make_task("scenes-pope", DataOptions(split=SPLIT, limit=sizes.questions))
        judged("pope", asked, with_first_token(tuned.methods))
        if name in SHIPPED and not given.greedy:
            few = make_task("scenes", DataOptions(split=SPLIT, limit=sizes.others))
            chosen = {key: tuned.methods[key] for key in few_methods(tuned)}
            judged("beam", few, chosen)
            # Under sampling the cut-off of unlikely tokens, which peers have too, lowers hallucination by itself.
            judged("nucleus", few, chosen | {"plausibility": get("plausibility")})
    write_over(results / "results.md", page(results))


def few_methods(tuned: Tuned) -> list[str]:
    """What is run with other decodings; the best peers are those with the best scores on the calibration scenes."""
    peers = [name for name in PEERS if name in tuned.methods and name in tuned.choices]
    peers.sort(key=lambda name: tuned.choices[name].score)
    return [name for name in (*OTHER_DECODINGS, *peers[:2]) if name in tuned.methods]


def with_first_token(methods: dict[str, Method]) -> dict[str, Method]:
    """Vanilla and RUDDER for yes/no questions: an answer is its first token, which the paper does not steer."""
    found = {"vanilla": methods["vanilla"]}
    for name in ("rudder-beta", "rudder-add"):
        if isinstance(method := methods.get(name), RudderBeta):
            found |= {name: method, name + FIRST: replace(method, steer_first_token=True)}
    return found


def page(folder: Path) -> str:
    """The page of all models: a table for each decoding, and what RUDDER's controls leave of its effect."""
    parts = []
    for name, results in stored_results(folder).items():
        parts.append(f"# {name}")
        for result in results.values():
            parts.append(f"{title(result)}:")
            if result.kind == "pope":
                parts.append(short_table(result).markdown())
                continue
            parts.append(method_table(result, [(LABELS[method.name], method) for method in result.methods]))
            if table := controls(result):
                parts += ["RUDDER-Beta minus its controls, with paired 95 % intervals:", table]
        parts += [MARKS, *results["greedy"].notes]
    return "\n\n".join(parts) + "\n"


def controls(result: Result) -> str:
    """RUDDER-Beta minus each of its controls, and minus vanilla's captions cut to its recall; empty without it."""
    against = {LABELS[row.name]: row.steered_minus for row in result.methods if row.steered_minus}
    for row in result.methods:
        if row.name == "rudder-beta" and row.control is not None:
            against["vanilla, cut to its recall"] = row.control.differences
    rows = [
        [label, *(with_interval(c.value, c.low, c.high, c.unit, sign=True) for c in map(changes.__getitem__, COLUMNS))]
        for label, changes in against.items()
    ]
    first = result.methods[0].metrics
    return (
        Table(["", *(heading(first[name].label, first[name].direction) for name in COLUMNS)], rows).markdown()
        if rows
        else ""
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="NAME[=FOLDER]", help="embedded models, or trained ones")
    parser.add_argument("--out", type=Path, required=True, help="where answers are kept, new or continued")
    parser.add_argument("--results", type=Path, default=HERE, help="where results and pages go")
    parser.add_argument("--limit", type=int, help="fewer scenes of every kind, to try it out")
    parser.add_argument(
        "--methods", nargs="+", choices=METHODS, default=METHODS, help="fewer of them; add others later"
    )
    parser.add_argument("--greedy", action="store_true", help="leave out beams and sampling")
    parser.add_argument("--batch-size", type=int, default=100)
    given = parser.parse_args()
    for model in given.models:
        name, _, folder = model.partition("=")
        if not folder and name not in SHIPPED:
            sys.exit(f"{name} does not come with the package: give {name}=FOLDER")
        measure_model(name, f"embedded:{folder or name}", given)
        print(f"{name}: {given.results / name}.json")


if __name__ == "__main__":
    main()
