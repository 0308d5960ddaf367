"""`rudder calibrate`: the planted setting is found, also after a kill and by two processes; bad input is one line."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rudder_hf import RudderConfig
from rudder_hf.calibrate import Setting
from rudder_hf.cli.main import app
from rudder_hf.hub.card import Provenance
from tests.support.command import refused, rudder, started
from tests.support.evaluating import loaded
from tests.support.planting import NEW, assert_same, planted_folder

IMAGES, CHECKED = 4, 9


@pytest.fixture(scope="module")
def saved_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    loaded().model.save_pretrained(path)
    loaded().processor.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def annotated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Setting]:
    """Images in COCO's layout, and the setting that has to win on them."""
    folder = tmp_path_factory.mktemp("coco") / "data"
    return folder, planted_folder(folder, IMAGES, CHECKED)


def command(saved_model: Path, data: Path, out: Path, *more: str) -> list[str]:
    limits = ["--recall-floor", "0.95", "--nll-rise", "99", "--distinct-drop", "1", "--confidence", "0"]
    sizes = ["--limit", str(IMAGES), "--check-limit", str(CHECKED), "--max-new-tokens", str(NEW), "--bootstrap", "50"]
    grid = ["--layers", "2", "--strengths", "0.5,1.5", "--k", "2,8", "--batch-size", "5", "--device", "cpu"]
    source = ["--model", str(saved_model), "--data", str(data), "--out", str(out)]
    return ["calibrate", *source, *limits, *sizes, *grid, *more]


def stored(folder: Path) -> dict[str, Any]:
    """A result without what differs between runs."""
    found: dict[str, Any] = json.loads((folder / "calibration.json").read_text())
    del found["seconds"], found["environment"], found["record"]["date"], found["record"]["versions"]
    return found


@pytest.mark.slow
def test_killed_and_continued_by_two_processes(
    saved_model: Path, annotated: tuple[Path, Setting], tmp_path: Path
) -> None:
    """Killed with -9, continued by two processes, and in one go: the planted setting each time, in the same files."""
    data, winner = annotated
    whole = CliRunner().invoke(app, command(saved_model, data, tmp_path / "whole"))
    assert whole.exit_code == 0, whole.output
    assert f"Chosen: {winner.describe()}" in whole.stdout
    config = RudderConfig.from_pretrained(tmp_path / "whole" / "result-001")
    assert Setting.of(config) == winner
    assert config.calibration is not None
    assert Provenance(config).calibrated, config.calibration["refusal"]

    out = tmp_path / "killed"
    arguments = command(saved_model, data, out)
    journal = out / "batches" / "process-0000.jsonl"
    running = started(*arguments)
    deadline = time.monotonic() + 300
    while not (journal.exists() and b"\n" in journal.read_bytes()):
        assert time.monotonic() < deadline
        assert running.poll() is None
        time.sleep(0.01)
    running.send_signal(signal.SIGKILL)
    running.communicate()
    kept = journal.read_bytes()
    assert not (out / "result-001").exists()

    # As `accelerate launch` and `torchrun` start them, one of them in this process.
    second = started(*arguments, RANK="1", WORLD_SIZE="2")
    first = CliRunner().invoke(app, arguments, env={"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"})
    assert first.exit_code == 0, first.output
    assert second.wait(timeout=300) == 0, second.communicate()[0]
    assert journal.read_bytes().startswith(kept[: kept.rfind(b"\n") + 1])  # nothing was done again
    assert (out / "batches" / "process-0001.jsonl").stat().st_size
    one, other = (sorted(p.name for p in (f / "result-001").rglob("*")) for f in (tmp_path / "whole", out))
    assert one == other
    assert_same(stored(out / "result-001"), stored(tmp_path / "whole" / "result-001"))


def test_nothing_better_than_vanilla_is_a_failure(saved_model: Path, tmp_path: Path) -> None:
    # No setting keeps a recall above vanilla's own in every draw of the images.
    more = ["--recall-floor", "1", "--nll-rise", "0", "--confidence", "0.99"]
    result = CliRunner().invoke(app, command(saved_model, Path("embedded:calibration"), tmp_path, *more))
    assert result.exit_code == 1, result.output
    assert "Chosen: vanilla" in result.stdout
    assert not (tmp_path / "result-001" / "config.json").exists()
    assert (tmp_path / "result-001" / "report.md").is_file()
    push = rudder("push", tmp_path / "result-001", "org/name", "--dry-run")
    refused(push, "result-001 is of a calibration that chose no settings")


def test_what_is_not_shown_is_not_called_calibrated(
    saved_model: Path, annotated: tuple[Path, Setting], tmp_path: Path
) -> None:
    """The planted setting is right, but nothing is held out to show it: console, report, numbers, config say so."""
    data, winner = annotated
    result = CliRunner().invoke(app, command(saved_model, data, tmp_path, "--check-limit", "0"))
    assert result.exit_code == 0, result.output
    missing = "there were no held-out images to check them on"
    assert f"Chosen: {winner.describe()}" in result.stdout
    assert f"Not called calibrated: {missing}." in result.stdout
    folder = tmp_path / "result-001"
    assert f"**These settings are not called calibrated: {missing}.**" in (folder / "report.md").read_text()
    found = stored(folder)
    assert (found["calibrated"], found["refusal"], found["record"]["held_out_looks"]) == (False, missing, 0)
    config = RudderConfig.from_pretrained(folder)
    assert config.calibration is not None
    assert config.calibration["refusal"] == missing
    assert not Provenance(config).calibrated


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--strengths", "strong"], "--strengths is 'strong'"),
        (["--contrast", "-1"], "`contrast` is -1"),
        (["--contrast", "0.4", "--contrast-after", "1.5"], "--contrast-after is '1.5'"),
        (["--pool", "max"], "--pool is 'max'"),
        (["--layers", "99"], "has 4 decoder layers"),
        (["--data", "no/such/folder"], "no/such/folder"),
        (["--recall-floor", "95"], "recall_floor is 95"),
    ],
)
def test_bad_input_is_one_line(saved_model: Path, tmp_path: Path, more: list[str], message: str) -> None:
    result = CliRunner().invoke(app, command(saved_model, Path("embedded"), tmp_path, *more))
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert len([line for line in result.stderr.splitlines() if line.startswith("Error")]) == 1


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--strengths", "nan", "the strength nan"),
        ("--strengths", "0.3,nan", "the strength nan"),
        ("--strengths", "0.3,inf", "the strength inf"),
        ("--k", "nan", "`k` is nan"),
        ("--k", "5,-1", "`k` is -1"),
        ("--contrast", "inf", "`contrast` is inf"),
        ("--recall-floor", "nan", "recall_floor is nan"),
        ("--length-floor", "nan", "length_floor is nan"),
        ("--nll-rise", "nan", "nll_rise is nan"),
        ("--nll-rise", "inf", "nll_rise is inf"),
        ("--distinct-drop", "nan", "distinct_drop is nan"),
        ("--confidence", "nan", "confidence is nan"),
    ],
)
def test_bad_numbers_are_refused_before_anything_is_loaded(
    tmp_path: Path, option: str, value: str, message: str
) -> None:
    refused(rudder("calibrate", "--model", tmp_path / "none", "--out", tmp_path / "out", option, value), message)
    assert list(tmp_path.iterdir()) == []
