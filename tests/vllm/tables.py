"""The recorded results as tables; `python -m tests.vllm table`, which needs no vLLM, puts them into the page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from rudder_hf.integrations.vllm import TESTED

ROOT = Path(__file__).parent.parent.parent
RESULTS = ROOT / "benchmarks" / "vllm"
PAGE = RESULTS / "README.md"


def recorded(part: str, release: str = TESTED[-1]) -> dict[str, Any]:
    """The last result of a part with a release of vLLM; empty if there is none."""
    path = RESULTS / f"{part}-{release}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def parity_table() -> str:
    """Each configuration with the answers that are right, round by round, for each release of vLLM."""
    lines = ["| configuration | " + " | ".join(f"vLLM {release}" for release in TESTED) + " |", "|---" * 3 + "|"]
    results = [recorded("parity", release).get("configurations", {}) for release in TESTED]
    for name in results[-1]:
        lines.append(f"| {name} | " + " | ".join(_right(found.get(name, {})) for found in results) + " |")
    return "\n".join(lines)


def _right(found: dict[str, Any]) -> str:
    """The right answers of each round, and those of steered requests among them."""
    if "rounds" not in found:
        return f"did not run: {found.get('error', 'not recorded').splitlines()[0]}"
    return ", ".join(
        f"{part['right']}/{part['requests']} ({part['right of steered']}/{part['steered']})"
        for part in found["rounds"]
    )


def _ratios(found: dict[str, Any]) -> list[str]:
    """Median and interval, by the clock and by CPU time."""
    parts = []
    for kind in ("seconds", "cpu seconds"):
        low, high = found[f"interval by {kind}"]
        parts.append(f"{found[f'throughput ratio by {kind}']:.3f} [{low:.3f}, {high:.3f}]")
    return parts


def load_table(part: str = "load") -> str:
    """Throughput of each mix as a ratio to vLLM without RUDDER."""
    lines = ["| steered | requests per second | tokens per second | ratio | ratio of CPU time |", "|---" * 5 + "|"]
    for name, found in recorded(part)["mix"].items():
        rates = f"{found['requests per second']:.1f} | {found['tokens per second']:.0f}"
        lines.append(f"| {name} | {rates} | {' | '.join(_ratios(found))} |")
    return "\n".join(lines)


def growth_table(part: str = "load") -> str:
    """The same for batches and contexts of several sizes, all steered."""
    lines = ["| batch | words of context | ratio | ratio of CPU time |", "|---|---|---|---|"]
    for found in recorded(part).get("growth", []):
        lines.append(f"| {found['batch']} | {found['words of context']} | {' | '.join(_ratios(found['100 %']))} |")
    return "\n".join(lines)


TABLES = {"parity": parity_table, "load": load_table, "growth": growth_table}


def put_tables() -> None:
    """Write the tables to their places on the page."""
    text = PAGE.read_text()
    for name, table in TABLES.items():
        place = re.compile(rf"(<!-- vllm {name} -->\n).*?(\n<!-- end of vllm {name} -->)", re.DOTALL)
        rows = table()
        text = place.sub(rf"\g<1>{rows}\g<2>", text)
    PAGE.write_text(text)
