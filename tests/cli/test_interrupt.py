"""Ctrl-C: one sentence on how to go on, exit code 130, and the repeated command finishes the work."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.slow
def test_an_interrupted_evaluation_says_how_to_go_on_and_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "run"
    arguments = ("evaluate", "--limit", "40", "--batch-size", "2", "--methods", "vanilla", "--no-likelihood", "--out")
    command = [sys.executable, "-m", "rudder_hf", *arguments, str(out)]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not any(path.stat().st_size > 2000 for path in out.glob("answers/*.jsonl")):
        assert process.poll() is None, "it ended before it was interrupted"
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"Interrupted. What is finished is kept in {out}: repeat the command to go on." in errors
    assert "Traceback" not in errors
    assert not (out / "result.json").exists()
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    assert (out / "result.json").exists()
