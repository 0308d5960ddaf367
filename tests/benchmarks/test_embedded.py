"""The test bed's programs: everything about one model, from tuning to its page, and the README's pictures."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from benchmarks.embedded import run as embedded
from benchmarks.embedded import tables
from rudder_hf.calibrate import Rule
from tests.support.evaluating import loaded


@pytest.mark.slow
def test_a_model_is_tuned_judged_and_has_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A model with random weights writes nothing worth a limit.
    loose = Rule("f1", recall_floor=0.0, distinct_drop=1.0, repeated_rise=1.0, confidence=0.0, bootstrap=20)
    original = embedded.CompareOptions

    def small(**given: Any) -> Any:
        costs = replace(given["costs"], new_tokens=3, rounds=1, warmup=0)
        return original(**given | {"rule": loose, "max_new_tokens": 6, "costs": costs, "bootstrap": 50})

    monkeypatch.setattr(embedded, "CompareOptions", small)
    monkeypatch.setattr(embedded, "load_model", lambda source: replace(loaded(), name=source))
    methods = ["vanilla", "rudder-beta", "vcd", "rudder-mean"]
    results = tmp_path / "results"
    given = {"out": tmp_path / "runs", "results": results, "limit": 4, "batch_size": 50, "methods": methods}
    embedded.measure_model("llava", "embedded:llava", argparse.Namespace(**given, greedy=False))
    assert sorted(path.name for path in results.iterdir()) == ["llava.json", "results.md"]
    stored = tables.stored_results(results)["llava"]
    assert list(stored) == ["greedy", "pope", "beam", "nucleus"]
    greedy = stored["greedy"]
    assert [row.name for row in greedy.methods] == methods
    assert greedy.data["split"] == "evaluation4"
    assert greedy.method("rudder-mean").steered_minus["chair_s"].p_value >= 0
    assert [row.name for row in stored["nucleus"].methods][-1] == "plausibility"
    asked = [row.name for row in stored["pope"].methods]
    assert asked == ["vanilla", "rudder-beta", "rudder-beta, first token steered"]
    text = (results / "results.md").read_text()
    assert "RUDDER-Beta minus its controls" in text
    assert "| vanilla, cut to its recall |" in text
    # A method that is added later is timed beside vanilla, and the rest is as it was.
    costs = json.loads((tmp_path / "runs" / "llava" / "costs.json").read_text())
    given["methods"] = [*methods, "rudder-random"]
    embedded.measure_model("llava", "embedded:llava", argparse.Namespace(**given, greedy=True))
    later = json.loads((tmp_path / "runs" / "llava" / "costs.json").read_text())
    assert {name: later[name] for name in ("rudder-beta", "vcd")} == {n: costs[n] for n in ("rudder-beta", "vcd")}
    later = tables.stored_results(results)["llava"]
    assert {row.name for row in later["greedy"].methods} == set(given["methods"])
    assert later["beam"] == stored["beam"]


def test_the_page_shows_the_results() -> None:
    assert (tables.FOLDER / "results.md").read_text() == embedded.page(tables.FOLDER)


@pytest.mark.slow
def test_the_pictures_are_those_of_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawn again, they are the stored ones, and the output that the README shows stays word for word."""
    pytest.importorskip("matplotlib", reason="matplotlib, of the extra plots, is not installed")
    from benchmarks.embedded import pictures

    stored, before = pictures.OUT, pictures.README.read_text()
    shutil.copy(pictures.README, tmp_path / "README.md")
    monkeypatch.setattr(pictures, "README", tmp_path / "README.md")
    monkeypatch.setattr(pictures, "OUT", tmp_path / "images")
    monkeypatch.setattr(sys, "argv", ["pictures.py"])
    pictures.main()
    assert (tmp_path / "README.md").read_text() == before
    drawn = sorted(path.name for path in (tmp_path / "images").iterdir())
    assert {"answers-dark.png", "answers-light.png"} <= set(drawn) <= {path.name for path in stored.iterdir()}
    for name in drawn:
        with Image.open(tmp_path / "images" / name) as new, Image.open(stored / name) as old:
            assert (new.size, getattr(new, "text", {})) == (old.size, getattr(old, "text", {}))
