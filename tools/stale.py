"""Which recorded results were measured with other code than the present one.

    python -m tools.stale

A stale result is not wrong: it says with which version it was measured. It says so until its command is run again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rudder_hf.runtime.environment import CODE, versions

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def recorded_versions(result: Any) -> Iterator[dict[str, Any]]:
    """Every record of versions in a result, however deep."""
    if isinstance(result, dict):
        if "rudder_hf" in result:
            yield result
        result = list(result.values())
    if isinstance(result, list):
        for part in result:
            yield from recorded_versions(part)


def stale_results(folder: Path = BENCHMARKS) -> dict[str, str]:
    """Result files whose code is not the present one, with the versions that they were measured with."""
    present = versions()[CODE]
    found = {}
    for path in sorted(folder.rglob("*.json")):
        # vLLM's results have a digest and a test of their own.
        records = list(recorded_versions(json.loads(path.read_text(encoding="utf-8"))))
        if path.parent.name != "vllm" and any(record.get(CODE) != present for record in records):
            measured = sorted({f"{record['rudder_hf']} (code {record.get(CODE, 'unknown')})" for record in records})
            found[path.relative_to(folder).as_posix()] = ", ".join(measured)
    return found


if __name__ == "__main__":
    stale = stale_results()
    print(f"{len(stale)} recorded results were measured with other code than the present one ({versions()[CODE]}):")
    for name, measured in stale.items():
        print(f"  benchmarks/{name}: rudder_hf {measured}")
