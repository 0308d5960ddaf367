"""`rudder analyze` from beginning to end: numbers, figures, report, resuming, images without annotations."""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
from itertools import combinations
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from typer.testing import Result

from rudder_hf import RudderConfig, attach
from rudder_hf.analyze import Study, analyze, find_images
from rudder_hf.analyze import run as analysis
from rudder_hf.analyze.report import html_figure, new_figure, save_figure, styled
from rudder_hf.analyze.run import (
    SHOWN,
    ImageTraces,
    gate_numbers,
    geometry_numbers,
    read_images,
    rotation,
    unpacked,
)
from rudder_hf.analyze.tokens import escape
from rudder_hf.evaluate.tasks import DataOptions
from rudder_hf.metrics.chair import chair
from rudder_hf.runtime.answers import encode
from rudder_hf.runtime.errors import InputError
from rudder_hf.runtime.models import LoadedModel
from rudder_hf.runtime.report import no_progress
from rudder_hf.runtime.store import Store
from tests.support.analyzing import Page
from tests.support.command import refused, rudder
from tests.support.evaluating import damage, loaded
from tests.support.processors import PROCESSORS
from tests.support.zoo import FAMILIES

NEW = 8


@pytest.fixture(autouse=True)
def _extras() -> None:
    pytest.importorskip("matplotlib", reason="matplotlib, of the extra plots, is not installed")


def check_folder(out: Path) -> tuple[dict[str, Any], Page]:
    """Everything is there and can be read; nothing outside is asked for."""
    numbers = json.loads((out / "numbers.json").read_text())
    text = (out / "report.html").read_text()
    page = Page(text)
    assert page.addresses
    assert all(address.startswith(("data:image/png;base64,", "#")) for address in page.addresses)
    assert not re.search(r"https?:|//|url\(|@import|<script|<link", re.sub(r"base64,[^\"]+", "", text))
    figures = sorted((out / "figures").glob("*.png"))
    assert [path.stem for path in figures] == ["gate", "geometry", "layers"]
    for path in figures:
        with Image.open(path) as figure:
            assert min(figure.size) > 200
        assert ElementTree.parse(path.with_suffix(".svg")).getroot().tag.endswith("svg")
    assert len(figures) == text.count('<div class="figure"') == text.count("Not supported:") - 1
    # The summary comes before the first answer and the first figure.
    assert 0 < text.index('id="summary"') < text.index('id="tokens"') < text.index('<div class="figure"')
    for line in numbers["summary"]:
        assert escape(line) in text
    return numbers, page


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    """The command on a handful of embedded scenes."""
    out = tmp_path_factory.mktemp("embedded") / "analysis"
    return rudder("analyze", "--limit", 12, "--batch-size", 12, "--out", out), out


@pytest.mark.slow
def test_embedded_scenes(embedded: tuple[Result, Path]) -> None:
    result, out = embedded
    assert result.exit_code == 0, result.output
    numbers, page = check_folder(out)
    assert numbers["images"] == 12
    assert all(line in result.stdout for line in numbers["summary"])
    assert f"The image turns CARD by {numbers['geometry']['rotation']['mean']:.1f}°" in result.stdout
    assert "Next: open" in result.stdout
    assert len(numbers["tokens"]) == SHOWN
    tokens = [t for e in numbers["tokens"] for a in ("vanilla", "steered") for t in e[a]["tokens"]]
    words = [token for token in tokens if token["text"].strip()]
    assert len(page.tokens) == len(words)
    marked = [token for token in page.tokens if "absent" in (token["class"] or "")]
    assert len(marked) == sum(bool(token["absent"]) for token in words)
    assert all("similarity" in (t["data-tip"] or "") for t in page.tokens)
    # Every number is in a table, too, which needs no mouse.
    assert page.tags.count("tr") == len(words) + 2 * SHOWN
    study = Study(loaded(), find_images(DataOptions(limit=12)), loaded().config_with({}))
    present = study.present()
    assert present is not None
    assert list(numbers["present"].values()) == [sorted(row) for row in present]
    truth = dict(enumerate(present))
    rows = [row for batch in Store(out, "analyze").batches() for row in batch["answers"]]
    assert [row["sample"] for row in rows] == [sample.id for sample in study.task.samples]
    for name in ("vanilla", "steered"):
        texts = [row[name]["text"] for row in rows]
        found = numbers["answers"][name]
        assert found["absent"] / found["mentions"] == pytest.approx(
            chair(list(enumerate(texts)), truth).scores["chair_i"]
        )
    assert numbers["answers"]["differ"] == sum(row["vanilla"]["text"] != row["steered"]["text"] for row in rows)


def test_a_finished_analysis_is_never_overwritten(embedded: tuple[Result, Path], tmp_path: Path) -> None:
    _, out = embedded
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    refused(rudder("analyze", "--limit", 12, "--out", out), "never overwritten")
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before
    (tmp_path / "analysis.json").write_text("{}")
    refused(rudder("analyze", "--out", tmp_path), "nothing that this version of rudder analyze could continue")


def test_answers_are_those_of_generate() -> None:
    model = loaded()
    task = find_images(DataOptions(limit=3))
    config = model.config_with({"k": 8.0})
    seen = read_images(Study(model, task, config, NEW), task.samples)
    tokenizer = model.processor.tokenizer
    for sample, found in zip(task.samples, seen, strict=True):
        inputs = encode(model.model, model.processor, [task.image(sample)], [sample.prompt])
        start = inputs["input_ids"].shape[1]
        options: dict[str, Any] = {"max_new_tokens": NEW, "do_sample": False, "return_dict_in_generate": True}
        plain = model.model.generate(**inputs, **options)
        with attach(model.model, config):
            steered = model.model.generate(**inputs, **options, output_rudder=True)
        for output, answer in ((plain, found.vanilla), (steered, found.steered)):
            ids = output.sequences[0, start:]
            assert answer.text == tokenizer.decode(ids, skip_special_tokens=True)
        for name in ("similarity", "gate", "push"):
            expected = getattr(steered.rudder, name)[0, : len(found.steered.spans)].tolist()
            assert found.steered.trace[name] == pytest.approx(expected, abs=1e-4)
        assert unpacked([found.card])[0] == pytest.approx(steered.rudder.card[0].numpy(), abs=1e-5)
        assert found.text_card is not None
        assert np.linalg.norm(unpacked([found.text_card])) == pytest.approx(1, abs=1e-5)
        assert set(found.vanilla.trace["gate"]) == set(found.vanilla.trace["push"]) == {0.0}


@pytest.mark.parametrize("name", ["idefics2", "instructblip"])
def test_other_families_are_read(name: str, tmp_path: Path) -> None:
    config = RudderConfig(layer=1, alpha_max=3.0)
    other = LoadedModel(name, FAMILIES[name].build(), PROCESSORS[name](), {"": config}, "test")
    task = find_images(DataOptions(limit=2))
    first, second = read_images(Study(other, task, config, 4), task.samples)
    assert unpacked([first.card, second.card]).shape == (2, 32)
    assert {len(values) for values in first.steered.trace.values()} == {len(first.steered.spans)}
    if first.text_card is not None and second.text_card is not None:
        one, other = unpacked([first.text_card, second.text_card])
        assert one == pytest.approx(other, abs=1e-5)  # the same prompt


def test_the_gate_over_the_similarity() -> None:
    """Tokens with a gate of 0 were not steered: they count as tokens, not in the mean gate."""
    traces = [
        {"similarity": [0.9, -0.5, 0.3], "gate": [0.0, 0.2, 0.6]},
        {"similarity": [-0.5, 0.5], "gate": [0.4, 0.8]},
    ]
    found = gate_numbers(traces)
    assert (found["tokens"]["n"], sum(found["tokens"]["histogram"])) == (5, 5)
    assert found["mean_gate"] == pytest.approx(0.5)
    assert [gate for _, gate in found["curve"]] == pytest.approx([0.3, 0.6, 0.8])
    assert [at for at, _ in found["curve"]] == pytest.approx([-0.5, 0.3, 0.5], abs=1.4 / 20)
    assert gate_numbers([{"similarity": [], "gate": []}])["curve"] == []


def test_small_rotations_keep_their_digits() -> None:
    a = np.asarray([[1.0, 0.0]])
    for degrees in (1e-7, 1e-3, 40.5, 179.9999):
        angle = math.radians(degrees)
        assert rotation(a, np.asarray([[math.cos(angle), math.sin(angle)]]))[0] == pytest.approx(degrees, rel=1e-9)


def test_geometry_of_known_vectors() -> None:
    text = np.tile([[1.0, 0.0, 0.0]], (4, 1))
    image = np.asarray([[1.0, 1, 0], [1, 0, 1], [1, -1, 0], [1, 0, -1]])
    found = geometry_numbers(image, text)
    assert (found["rotation"]["mean"], found["rotation"]["n"]) == (pytest.approx(45), 4)
    assert found["rotation"]["spread"] == pytest.approx([45, 45])
    pairs = [math.degrees(math.acos(a @ b / 2)) for a, b in combinations(image, 2)]
    assert found["between_images"]["mean"] == pytest.approx(np.mean(pairs))
    assert sum(found["between_images"]["histogram"]) == len(pairs) == 6
    without = geometry_numbers(image, None)
    assert "rotation" not in without
    assert without["between_images"]["n"] == 6
    assert "between_images" not in geometry_numbers(image[:1], None)


def test_images_without_annotations(tiny_model: Path, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    task = find_images(DataOptions(limit=6))
    for number, sample in enumerate(task.samples):
        task.image(sample).save(photos / f"{number} <i>.png")
    options = ("--data", photos, "--set", "layer=2", "--set", "alpha_max=12", "--max-new-tokens", NEW)
    out = tmp_path / "out"
    result = rudder("analyze", "--model", tiny_model, *options, "--out", out)
    assert result.exit_code == 0, result.output
    numbers, page = check_folder(out)
    assert "Left out: which objects are in the images" in result.stdout
    assert set(numbers["answers"]) == {"differ"}
    assert "present" not in numbers
    assert not any("absent" in (token["class"] or "").split() for token in page.tokens)
    assert numbers["tokens"][0]["id"] == "0 <i>.png"


class Killed(BaseException):
    """Stands for a kill: nothing catches it."""


def test_an_interrupted_analysis_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, config = loaded(), loaded().config_with({})

    def run(name: str, progress: Any = no_progress, longest: int = NEW) -> dict[str, Any]:
        study = Study(model, find_images(DataOptions(limit=5)), config, longest, batch_size=2)
        return analyze(tmp_path / name, study, progress)

    def kill(text: str, done: int, total: int) -> None:
        if done == 2:
            raise Killed

    whole = run("whole")
    with pytest.raises(Killed):
        run("killed", kill)
    assert not (tmp_path / "killed" / "numbers.json").exists()
    with pytest.raises(ValueError, match="max_new_tokens is 8 there and 7 here"):
        run("killed", longest=NEW - 1)
    shutil.copytree(tmp_path / "killed", tmp_path / "damaged")
    damage(tmp_path / "damaged" / "answers" / "0.jsonl", ["answers", 0, "card"], 3)
    with pytest.raises(InputError, match=r"0.jsonl is damaged .*card is 3, but has to be a text"):
        run("damaged")
    read: list[int] = []

    def counting(study: Study, part: Any) -> list[ImageTraces]:
        read.append(len(part))
        return read_images(study, part)

    monkeypatch.setattr(analysis, "read_images", counting)
    assert run("killed") == whole
    assert read == [1]  # the last batch alone
    stored = json.loads((tmp_path / "killed" / "numbers.json").read_text())
    assert stored == json.loads((tmp_path / "whole" / "numbers.json").read_text())
    for file in ("figures/gate.svg", "figures/geometry.png", "report.html"):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "killed" / file).read_bytes(), file


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    refused(rudder("analyze", "--out", tmp_path / "out"), "pip install 'rudder-hf[plots]'")
    assert not (tmp_path / "out").exists()


def test_the_same_figure_is_the_same_file(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        with styled():
            figure, axes = new_figure(3, 2, rows=2)
            axes[1].plot([1, 2], [3, 4])
            png = save_figure(figure, tmp_path / folder / "layer 1.5")
        assert png.name == "layer 1.5.png"
        assert 'alt="the &quot;figure&quot;" width="288"' in html_figure(
            png.read_bytes(), 'the "figure"'
        )  # three inches
    for suffix in (".png", ".svg"):
        one, two = ((tmp_path / folder / f"layer 1.5{suffix}").read_bytes() for folder in ("one", "two"))
        assert one == two
