"""Recorded results that were measured with other code are named."""

from __future__ import annotations

import json
from pathlib import Path

from rudder_hf.runtime.environment import CODE, versions
from tools.stale import stale_results


def test_results_of_other_code_are_named(tmp_path: Path) -> None:
    now = versions()
    assert len(str(now[CODE])) == 16
    results = {"new": {"a": [{"versions": now}]}, "other": {"versions": {**now, CODE: "0" * 16}}}
    results["old"] = {"runs": [{"versions": {"rudder_hf": "0.1.0"}}]}
    for name, result in results.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(result))
    stale = stale_results(tmp_path)
    assert set(stale) == {"other.json", "old.json"}
    assert stale["old.json"] == "0.1.0 (code unknown)"


def test_the_committed_results_say_what_they_were_measured_with() -> None:
    for measured in stale_results().values():
        assert measured[0].isdigit()
