"""Ctrl-C in real processes: what is kept is said at once, the command stops, and nothing finished is lost."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from rudder_hf.cli.interrupt import PATIENCE
from tests.support.command import started

QUICK = ("--device", "cpu", "--max-new-tokens", 24)
EVALUATE = ("evaluate", *QUICK, "--methods", "vanilla", "--limit", 60, "--batch-size", 20)
COMMANDS = {
    "evaluate": EVALUATE,
    "calibrate": ("calibrate", *QUICK, "--limit", 60, "--check-limit", 0, "--layers", 2, "--batch-size", 4),
    "compare": ("compare", *QUICK, "--methods", "rudder-beta", "--tune-limit", 40, "--batch-size", 4),
    "analyze": ("analyze", *QUICK, "--limit", 60, "--batch-size", 2, "--parts", "tokens"),
}
SOON = 2.0  # seconds within which Ctrl-C says what is kept
DEADLINE = 300.0


def answers(out: Path) -> int:
    """How many answers are in a folder, counted in another way than the package does: by keys that they alone have."""
    texts = [path.read_text() for path in out.glob("**/batches/*.jsonl")]
    return sum(len(re.findall(r'"(?:answer|vanilla|steered)": ', text[: text.rfind("\n") + 1])) for text in texts)


def stored_lines(out: Path) -> int:
    """How many batches with answers are in a folder."""
    found = [line for path in out.glob("**/batches/*.jsonl") for line in path.read_text().splitlines(keepends=True)]
    return sum(line.endswith("\n") and '"launch"' not in line for line in found)


def wait_for_batch(process: subprocess.Popen[str], out: Path) -> None:
    until = time.monotonic() + DEADLINE
    while stored_lines(out) == 0:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < until
        time.sleep(0.01)


def interrupt(process: subprocess.Popen[str]) -> tuple[str, float]:
    """Send SIGINT; the message and how long it took."""
    assert process.stdout is not None
    process.send_signal(signal.SIGINT)
    begun = time.monotonic()
    for line in process.stdout:
        if "Interrupted" in line:
            return line.strip(), time.monotonic() - begun
    raise AssertionError("there was no message")


@pytest.mark.parametrize(
    "command",
    ["evaluate", *(pytest.param(name, marks=pytest.mark.slow) for name in ("calibrate", "compare", "analyze"))],
)
def test_what_is_kept_is_said_within_two_seconds(command: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = started(*COMMANDS[command], "--out", out)
    wait_for_batch(process, out)
    message, seconds = interrupt(process)
    assert process.wait(timeout=DEADLINE) == 130
    assert seconds < SOON
    found = re.fullmatch(
        rf"Interrupted\. Kept in {re.escape(str(out))}: ([\d,]+) answers(, layers.json)?\. Repeat .* to go on\.",
        message,
    )
    assert found, message
    assert int(found[1].replace(",", "")) == answers(out) > 0


def test_an_interrupt_in_the_middle_of_a_batch_loses_that_batch_alone(tmp_path: Path) -> None:
    whole, out = started(*EVALUATE, "--out", tmp_path / "whole"), tmp_path / "out"
    process = started(*EVALUATE, "--out", out)
    wait_for_batch(process, out)
    time.sleep(0.3)  # a batch of 20 takes longer than this by far
    kept = (out / "batches" / "process-0000.jsonl").read_bytes()
    message, seconds = interrupt(process)
    assert process.wait(timeout=DEADLINE) == 130
    assert seconds < SOON
    assert f"Kept in {out}: 20 answers." in message
    assert (out / "batches" / "process-0000.jsonl").read_bytes() == kept
    assert not (out / "result.json").exists()
    again = started(*EVALUATE, "--out", out)
    assert again.wait(timeout=DEADLINE) == 0, again.communicate()[0]
    assert whole.wait(timeout=DEADLINE) == 0
    assert (out / "batches" / "process-0000.jsonl").read_bytes().startswith(kept)
    assert (out / "samples.jsonl").read_bytes() == (tmp_path / "whole" / "samples.jsonl").read_bytes()
    results = [json.loads((folder / "result.json").read_text()) for folder in (out, tmp_path / "whole")]
    assert results[0]["methods"] == results[1]["methods"]
    assert [len(result["run"]["launches"]) for result in results] == [2, 1]


@pytest.mark.parametrize(
    ("arguments", "busy", "words"),
    [
        (
            ("benchmark", "--shape", "deep", "--out", "costs"),
            15,
            "Interrupted. Nothing was finished that could be kept.",
        ),
        (("verify",), 5, "Interrupted."),
    ],
)
@pytest.mark.slow
def test_commands_that_keep_nothing_say_so(
    arguments: tuple[str, ...], busy: float, words: str, tmp_path: Path
) -> None:
    process = started(*arguments, folder=tmp_path)
    time.sleep(busy)  # measuring, or on the way there
    assert process.poll() is None
    message, seconds = interrupt(process)
    assert (message, process.wait(timeout=DEADLINE)) == (words, 130)
    assert seconds < SOON
    assert list(tmp_path.iterdir()) == []


# One step of Python's that takes minutes, as a large forward pass may take many seconds: no handler of Python's runs
# within it.
LONG_STEP = """
import hashlib, typer
from pathlib import Path
from rudder_hf.cli import interrupt

def command(out: Path) -> None:
    print("begun", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 1_000_000_000)

interrupt.PATIENCE = {patience}
app = typer.Typer()
app.command()(interrupt.interruptible(command))
app()
"""


@pytest.mark.parametrize(("interrupts", "patience"), [(1, PATIENCE), (2, 1000.0)])
def test_a_long_step_is_ended_soon_and_by_a_second_interrupt_at_once(
    interrupts: int, patience: float, tmp_path: Path
) -> None:
    process = started("-c", LONG_STEP.format(patience=patience), tmp_path, module=False)
    assert process.stdout is not None
    assert "begun\n" in process.stdout
    message, seconds = interrupt(process)
    assert message == "Interrupted. Nothing was finished that could be kept."
    assert seconds < SOON
    if interrupts == 2:
        process.send_signal(signal.SIGINT)
    assert process.wait(timeout=DEADLINE) == 130
