"""The costs on random shapes: the program runs, and its file is a report of `rudder benchmark`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import speed
from rudder_hf.benchmark import BenchmarkReport


def test_the_program_measures_shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "speed.json"
    options = ["--rounds", "1", "--new-tokens", "3", "--prompt-tokens", "20", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["speed.py", "--shape", "tiny", "deep", *options])
    speed.main()
    tiny, deep = BenchmarkReport.load(out).cases
    assert [(case.name, case.prompt_tokens, case.model["shape"]["layers"]) for case in (tiny, deep)] == [
        ("tiny", 20, 4),
        ("deep", 20, 32),
    ]
    for name, operators in (("rudder-beta", 12), ("rudder-add", 1)):
        assert deep.cost(name).operators_per_token - deep.cost("vanilla").operators_per_token == operators
        assert deep.cost(name).forwards_per_token == 1.0
    with pytest.raises(FileExistsError, match="never overwritten"):
        speed.main()


def test_a_prompt_without_room_for_the_image_is_refused() -> None:
    model = speed.build_model(speed.SHAPES["tiny"], speed.torch.float32, 0)
    with pytest.raises(SystemExit, match="at least 18"):
        speed.random_prompt(model, 17, 0)
