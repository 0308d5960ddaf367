"""Folders of results: no command writes into that of another one, and an interrupted one goes on in its own."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from rudder_hf.runtime.store import Store
from tests.support.command import refused, rudder, started

COMMANDS = ("evaluate", "calibrate", "compare", "analyze")
OTHERS = {name: "evaluate" if name == "analyze" else "analyze" for name in COMMANDS}


@pytest.mark.parametrize("mine", COMMANDS)
def test_the_folder_of_another_command_or_version_is_refused(mine: str, tmp_path: Path) -> None:
    Store(tmp_path, OTHERS[mine]).start({"model": {"name": "tiny"}, "seed": 0})
    before = sorted(tmp_path.rglob("*"))
    # There is no such model: the folder is looked at before anything large is loaded.
    refused(rudder(mine, "--model", tmp_path / "no-model", "--out", tmp_path), str(tmp_path))
    assert sorted(tmp_path.rglob("*")) == before
    (tmp_path / "plan.json").write_text('{"format": 2, "command": "evaluate", "plan": {}}')
    result = rudder(mine, "--model", tmp_path / "no-model", "--out", tmp_path)
    refused(result, "earlier version" if mine in ("calibrate", "compare") else "another version (format 2")


def test_files_of_costs_have_no_place_in_the_folder_of_a_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    Store(run, "evaluate").start({"model": {"name": "tiny"}})
    refused(rudder("benchmark", "--out", run / "costs.json"), f"{run} holds a run")
    assert [path.name for path in run.iterdir()] == ["plan.json"]
    (tmp_path / "costs.json").write_text("{}")
    refused(rudder("evaluate", "--out", tmp_path), "(costs.json, run): choose a new folder.")


@pytest.mark.slow
def test_an_interrupted_evaluation_says_how_to_go_on_and_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "run"
    arguments = ("evaluate", "--limit", "40", "--batch-size", "2", "--methods", "vanilla", "--out")
    process = started(*arguments, out)
    deadline = time.monotonic() + 120
    while not any(path.stat().st_size > 2000 for path in out.glob("answers/*.jsonl")):
        assert process.poll() is None, "it ended before it was interrupted"
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"Interrupted. What is finished is kept in {out}: repeat the command to go on." in said
    assert "Traceback" not in said
    assert not (out / "result.json").exists()
    assert started(*arguments, out).wait(timeout=300) == 0
    assert (out / "result.json").exists()
