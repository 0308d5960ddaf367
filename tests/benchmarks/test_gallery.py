"""The paper's further figures of CARD: found where they were planted, not found in noise, drawn from an analysis."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from rudder_hf.cli.main import app
from tests.support.analyzing import traced

pytest.importorskip("sklearn", reason="scikit-learn, of the extra test, is not installed")
from benchmarks.analysis import gallery

NOISE = np.random.default_rng(0).normal(size=(60, 8))
PRESENT = [["cat"] if row % 2 else ["dog"] for row in range(60)]
PLANTED = NOISE + 4 * np.outer([row % 2 for row in range(60)], np.eye(8)[0])


@pytest.fixture(autouse=True)
def _few_shuffles(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, count in {"SHUFFLES": 99, "DRAWS": 200, "CLOUDS": 2, "PROBE_SHUFFLES": 2}.items():
        monkeypatch.setattr(gallery, name, count)


@pytest.mark.parametrize(("cards", "there"), [(PLANTED, True), (NOISE, False)])
def test_what_cards_contain_of_the_image_is_found(cards: Any, there: bool) -> None:
    probe = gallery.probe_numbers(cards, PRESENT, seed=0)
    assert probe is not None
    assert (probe["mean_auc"] > 0.9) == there
    assert abs(np.mean(probe["shuffled_mean_auc"]) - 0.5) < 0.25
    for make in (gallery.neighbour_numbers, gallery.category_numbers):
        found = make(cards, PRESENT, 0)
        assert found is not None
        assert (found["p_value"] == pytest.approx(0.01)) == there
    clusters = gallery.cluster_numbers(cards, seed=0)
    assert clusters is not None
    assert (clusters["silhouettes"][2] > max(clusters["without_clusters"]) + 0.05) == there
    assert not there or clusters["k"] == 2


def test_detectors_on_known_answers() -> None:
    """A dog in the image and a cat that is not: the similarity is wrong about one in four."""
    answers = [asdict(traced("a dog and a cat", [0, 0.5, 0, 0, -0.5 if row % 4 else 0.9])) for row in range(20)]
    found = gallery.detector_numbers(answers, [["dog"]] * 20, seed=0)
    assert found is not None
    assert (found["grounded"], found["hallucinated"]) == (20, 20)
    value, low, high = found["auc"]["similarity"]
    assert value == pytest.approx(0.75)
    assert low < 0.75 < high
    assert found["auc"]["place in the answer"][0] == 1
    assert gallery.detector_numbers(answers, [["dog", "cat"]] * 20, seed=0) is None


def test_the_program_draws_from_an_analysis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    analysis, out = tmp_path / "analysis", tmp_path / "gallery"
    command = ["analyze", "--limit", "24", "--batch-size", "12", "--max-new-tokens", "40", "--out", str(analysis)]
    assert CliRunner().invoke(app, command).exit_code == 0
    monkeypatch.setattr(sys, "argv", ["gallery.py", str(analysis), "--out", str(out)])
    gallery.main()
    numbers = json.loads((out / "gallery.json").read_text())
    assert numbers["analysis"]["images"] == 24
    assert numbers["neighbours"]
    assert numbers["clusters"]
    assert numbers["detector"]
    with Image.open(out / "gallery.png") as figure:
        assert min(figure.size) > 600
    monkeypatch.setattr(sys, "argv", ["gallery.py", str(tmp_path), "--out", str(out)])
    with pytest.raises(SystemExit, match="no finished `rudder analyze`"):
        gallery.main()
