"""No command writes into the results folder of another one, or of another run."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from rudder_hf.runtime.plans import Command
from rudder_hf.runtime.store import Store
from tests.support.command import refused, rudder

NOUNS = {
    "evaluate": "an evaluation",
    "calibrate": "a calibration",
    "compare": "a comparison",
    "analyze": "an analysis",
}


def test_every_command_with_a_folder_is_here() -> None:
    assert set(NOUNS) == set(get_args(Command))


@pytest.mark.parametrize(
    ("mine", "theirs"), [(mine, theirs) for mine in (*NOUNS, "benchmark") for theirs in NOUNS if mine != theirs]
)
def test_the_folder_of_another_command_is_refused(mine: str, theirs: Command, tmp_path: Path) -> None:
    Store(tmp_path, theirs).start({"model": {"name": "tiny"}, "seed": 0})
    before = sorted(tmp_path.rglob("*"))
    # There is no such model: the folder is looked at before anything large is loaded.
    result = rudder(mine, "--model", tmp_path / "no-model", "--out", tmp_path)
    refused(result, f"{tmp_path} holds {NOUNS[theirs]} of tiny")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_file_of_costs_or_scores_has_no_place_in_the_folder_of_a_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    Store(run, "calibrate").start({"model": {"name": "tiny"}})
    refused(rudder("benchmark", "--shape", "tiny", "--out", run / "costs.json"), "holds a calibration of tiny")
    assert [path.name for path in run.iterdir()] == ["plan.json"]


@pytest.mark.parametrize("mine", NOUNS)
def test_a_folder_of_something_else_is_refused(mine: str, tmp_path: Path) -> None:
    (tmp_path / "rudder-benchmark-001.json").write_text("{}")
    refused(rudder(mine, "--out", tmp_path), "(rudder-benchmark-001.json): choose a new folder.")
