"""The README's tables of the embedded models, from the result files beside this program.

    python benchmarks/embedded/tables.py benchmarks/embedded/greedy.json benchmarks/embedded/beam.json
    python benchmarks/embedded/tables.py benchmarks/embedded/models.json

Results of `rudder evaluate` give one row for each method and decoding, the difference to the result's first method
beside each score. A file of calibration records by the model's name gives one row for each model.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rudder_hf.evaluate.result import EvaluationResult
from rudder_hf.evaluate.tables import with_change
from rudder_hf.runtime.report import Table, with_interval
from rudder_hf.runtime.store import read_json

SHOWN = {
    "chair": ("chair_s", "chair_i", "recall", "broken_sentences", "repeated_sentences"),
    "pope": ("accuracy", "f1", "yes_ratio"),
}
NAMES = {
    "vanilla": "vanilla",
    "rudder-beta": "RUDDER-Beta",
    "rudder-add": "RUDDER-Add",
    "rudder-random": "random direction",
    "rudder-shuffled": "another image's CARD",
    "rudder-negated": "negated CARD",
}


def results_table(results: list[EvaluationResult]) -> str:
    """Markdown of results of one kind of task (CHAIR or POPE)."""
    names = SHOWN[results[0].kind]
    labels = [results[0].methods[0].metrics[name].label for name in names]
    rows = []
    for result in results:
        first_token = any(method.settings.get("steer_first_token") for method in result.methods)
        decoding = result.decoding["name"] + (", first token steered" if first_token else "")
        for method in result.methods:
            cells = [with_change(method.metrics[name], method.differences.get(name)) for name in names]
            rows.append([decoding, NAMES.get(method.name, method.name), *cells])
    return Table(["decoding", "method", *labels], rows).markdown()


def models_table(records: dict[str, dict[str, Any]]) -> str:
    """Markdown of calibration records: what each model gained on its held-out images, also with others' CARDs."""
    headings = ["model", "setting", "CHAIR_S", "CHAIR_I", "Recall", "Broken"]
    headings += ["CHAIR_S, another image's CARD", "CHAIR_I"]
    rows = []
    for name, record in records.items():
        held, own, chosen = record["held_out"], record["held_out_own_minus_other_card"], record["settings"]
        span = "" if chosen["span"] == "prompt" else f", span {chosen['span']}"
        cells = [name, f"layer {chosen['layer']}, alpha_max {chosen['alpha_max']:g}, k {chosen['k']:g}{span}"]
        for score in ("chair_s", "chair_i", "recall"):
            before, after, *change = (100 * held[score][key] for key in ("left", "right", "value", "low", "high"))
            cells.append(f"{before:.1f} -> {after:.1f} ({with_interval(*change, 'percent', sign=True)})")
        cells.append(" -> ".join(f"{100 * held['broken_sentences'][side]:.1f}" for side in ("left", "right")))
        rows.append([*cells, *(f"{100 * own[score]['left']:.1f}" for score in ("chair_s", "chair_i"))])
    return Table(headings, rows).markdown()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", type=Path, help="result files, or one file of calibration records")
    paths = parser.parse_args().results
    if "format" in read_json(paths[0]):
        print(results_table([EvaluationResult.load(path) for path in paths]))
    else:
        print(models_table(read_json(paths[0])))


if __name__ == "__main__":
    main()
