"""A short table of several results: `python -m rudder_hf.evaluate.summary RESULT.json ...` prints Markdown.

One row for each method and decoding, the difference to the result's first method beside each score. A file of
calibration records by the model's name gives one row for each model.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

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


def _cell(method: dict[str, Any], name: str, first: bool) -> str:
    value = method["metrics"].get(name)
    if value is None:
        return ""
    text = f"{value['value']:.1f}"
    if first:
        return f"{text} [{value['low']:.1f}, {value['high']:.1f}]"
    change = (method.get("differences") or {}).get(name)
    return text if change is None else f"{text} ({change['value']:+.1f} [{change['low']:+.1f}, {change['high']:+.1f}])"


def summary(results: list[dict[str, Any]]) -> str:
    """Markdown of results of one kind of task (CHAIR or POPE)."""
    names = SHOWN[results[0]["kind"]]
    labels = [results[0]["methods"][0]["metrics"][name]["label"] for name in names]
    lines = [f"| decoding | method | {' | '.join(labels)} |", "|---" * (len(names) + 2) + "|"]
    for result in results:
        first_token = any(m["settings"].get("steer_first_token") for m in result["methods"])
        decoding = result["decoding"]["name"] + (", first token steered" if first_token else "")
        for number, method in enumerate(result["methods"]):
            cells = [_cell(method, name, number == 0) for name in names]
            lines.append(f"| {decoding} | {NAMES.get(method['name'], method['name'])} | {' | '.join(cells)} |")
    return "\n".join(lines)


def models_table(records: dict[str, dict[str, Any]]) -> str:
    """Markdown of calibration records: what each model gained on its held-out pictures, also with others' CARDs."""
    lines = [
        "| model | setting | CHAIR_S | CHAIR_I | Recall | Broken | CHAIR_S, another image's CARD | CHAIR_I |",
        "|---" * 8 + "|",
    ]
    for name, record in records.items():
        held, own, chosen = record["held_out"], record["held_out_own_minus_other_card"], record["settings"]
        span = "" if chosen["span"] == "prompt" else f", span {chosen['span']}"
        cells = [name, f"layer {chosen['layer']}, alpha_max {chosen['alpha_max']:g}, k {chosen['k']:g}{span}"]
        for score in ("chair_s", "chair_i", "recall"):
            before, after, *change = (100 * held[score][key] for key in ("left", "right", "value", "low", "high"))
            cells.append(f"{before:.1f} -> {after:.1f} ({change[0]:+.1f} [{change[1]:+.1f}, {change[2]:+.1f}])")
        cells.append(" -> ".join(f"{100 * held['broken_sentences'][side]:.1f}" for side in ("left", "right")))
        cells += [f"{100 * own[score]['left']:.1f}" for score in ("chair_s", "chair_i")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="A short Markdown table of several results of one task.")
    parser.add_argument("results", nargs="+", type=Path, help="result files, or one file of calibration records")
    results = [json.loads(path.read_text()) for path in parser.parse_args().results]
    print(summary(results) if "kind" in results[0] else models_table(results[0]))


if __name__ == "__main__":
    main()
