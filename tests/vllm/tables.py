"""The recorded results as tables for the README. Needs no vLLM: `python -m tests.vllm table`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent.parent.parent / "benchmarks" / "vllm"


def recorded(part: str) -> dict[str, Any]:
    """The last result of a part."""
    found: dict[str, Any] = json.loads((RESULTS / f"{part}.json").read_text())
    return found


def parity_table() -> str:
    """Each configuration with the answers that are right, round by round."""
    lines = ["| configuration | right, of all | right, of steered |", "|---|---|---|"]
    for name, found in recorded("parity")["configurations"].items():
        if "rounds" not in found:
            lines.append(f"| {name} | did not run: {found['error'].splitlines()[0]} | |")
            continue
        total = ", ".join(f"{part['right']}/{part['requests']}" for part in found["rounds"])
        steered = ", ".join(f"{part['right of steered']}/{part['steered']}" for part in found["rounds"])
        lines.append(f"| {name} | {total} | {steered} |")
    return "\n".join(lines)


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
