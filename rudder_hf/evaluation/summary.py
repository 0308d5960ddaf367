"""A short table of several results: `python -m rudder_hf.evaluation.summary RESULT.json ...` prints Markdown.

One row for each method and decoding, the difference to the result's first method below each score.
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


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="A short Markdown table of several results of one task.")
    parser.add_argument("results", nargs="+", type=Path)
    print(summary([json.loads(path.read_text()) for path in parser.parse_args().results]))


if __name__ == "__main__":
    main()
