"""Calibration from beginning to end on a tiny model: the choice, files, resuming, several processes."""

from __future__ import annotations

import copy
import json
import shutil
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from rudder_hf import RudderConfig
from rudder_hf.calibrate import (
    VANILLA,
    CalibrationData,
    CalibrationOptions,
    Grid,
    Limits,
    Outcome,
    Setting,
    calibrate,
    decode_settings,
    find_data,
    pope_task,
    save_outcome,
)
from rudder_hf.calibrate import outcome as outcome_module
from rudder_hf.calibrate import search as search_module
from rudder_hf.calibrate.report import report, summary
from rudder_hf.calibrate.search import SettingSearch
from rudder_hf.evaluate.tasks import DataOptions
from rudder_hf.hub.card import Provenance, render_card
from rudder_hf.metrics.errors import InputError
from rudder_hf.runtime.environment import Process
from tests.support.evaluating import damage, ended_stages, loaded
from tests.support.helpers import in_threads
from tests.support.planting import GRID, NEW, answer, assert_same, planted, planted_scenes

# A model with random weights writes nothing worth a limit of fluency.
LOOSE = Limits(length_floor=0.0, nll_rise=1e3, distinct_drop=1.0)


def images(count: int = 6, check: int = 4) -> CalibrationData:
    return find_data(DataOptions(), count, check)


def options(**changes: Any) -> CalibrationOptions:
    given: dict[str, Any] = {"grid": GRID, "layers": (1, 2), "limits": LOOSE, "confidence": 0.0}
    return CalibrationOptions(**(given | {"max_new_tokens": NEW, "bootstrap": 50} | changes))


def numbers(outcome: Outcome) -> dict[str, Any]:
    """What two runs of one calibration have in common."""
    found: dict[str, Any] = json.loads(json.dumps(outcome.numbers))
    del found["seconds"], found["environment"], found["record"]["date"]
    return found


def batches(out: Path) -> list[dict[str, Any]]:
    """What one process has stored."""
    return [json.loads(line) for line in (out / "batches" / "process-0000.jsonl").read_text().splitlines()]


def answers(out: Path, questions: Sequence[str]) -> dict[Setting, dict[str, str]]:
    """What was stored for some questions, by setting."""
    found: dict[Setting, dict[str, str]] = {}
    for batch in batches(out):
        for question in set(questions) & set(batch["answers"]) if not batch["other_card"] else ():
            for setting, row in zip(batch["settings"], batch["answers"][question], strict=True):
                found.setdefault(Setting.of(setting), {})[question] = row["answer"]
    return found


def test_answers_are_those_of_generate(tmp_path: Path) -> None:
    """Both modes, both spans, the first token steered or not: what is stored is what each setting alone writes."""
    grid = Grid((0.5, 1.5), (2.0,), ("beta", "add"), ("mean",), ("prompt", "text"), (False, True))
    data = images(3, 1)
    outcome = calibrate(loaded(), data, tmp_path, options(layers=(2,), grid=grid))
    assert len(outcome.scored) == 1 + 2 * 2 * 2 * 2
    expected = {setting: {s.id: answer(data, s, setting) for s in data.choosing} for setting in outcome.scored}
    assert answers(tmp_path, [s.id for s in data.choosing]) == expected
    assert len({text for texts in expected.values() for text in texts.values()}) > 6  # the settings do differ


def test_the_setting_that_is_right_is_chosen(tmp_path: Path) -> None:
    """The truth is what one setting says: it has to win, with labels, with certainty, and on held-out images."""
    data, winner = planted_scenes(8, 12)
    modes = replace(GRID, modes=("beta", "add"))
    pope = replace(pope_task(data), max_new_tokens=1)
    reports: list[tuple[str, int, int]] = []
    wanted = options(grid=modes, label_free=True, objective="paper")
    outcome = calibrate(loaded(), data, tmp_path, wanted, None, lambda *report: reports.append(report), pope)
    assert outcome.choice.best == winner
    assert ended_stages(reports) == [f"{number} of 5" for number in range(1, 6)]
    assert outcome.choice.score == 0 < outcome.choice.vanilla
    assert max(outcome.choice.wins, key=lambda c: outcome.choice.wins[c]) == winner
    assert outcome.choice.out_of_bag[0] < 0
    assert outcome.by_mode["beta"].best == winner
    assert outcome.by_mode["add"].best != winner
    numbers = outcome.numbers
    assert (numbers["calibrated"], numbers["refusal"]) == (True, "")

    # Held-out images: the winner and its rivals, each also with another image's CARD.
    held_out = {Setting.of(row["settings"] or {}): row for row in numbers["held_out"]}
    change = held_out[winner]["minus_vanilla"]["chair_s"]
    assert (change["right"], change["value"]) == (0, -change["left"])
    assert change["low"] <= change["value"] <= change["high"] < 0
    assert {VANILLA, winner} < set(held_out)
    assert {s for s, row in held_out.items() if "own_minus_other_card" in row} == set(held_out) - {VANILLA}
    assert [s for s, row in held_out.items() if row["chosen"]] == [winner]
    specific = held_out[winner]["own_minus_other_card"]["chair_s"]
    assert specific["right"] == 0
    assert specific["left"] > 0  # another image's CARD says other things

    # Without labels something is chosen too, and how far that carries is told.
    found = numbers["without_labels"]["agreement"]
    assert found["share_of_gain"] <= 1
    assert found["same_choice"] == (numbers["without_labels"]["chosen"] == winner.record())
    assert found["good_enough"] or found["share_of_gain"] < 0.8 or found["recall"] < Limits().recall_floor

    # POPE: steering after the first token cannot change a one-word answer; the report says so.
    vanilla = numbers["pope"][0]
    assert vanilla["alpha_max"] == 0
    unmoved = [e for e in numbers["pope"][1:] if not e["steer_first_token"]]
    assert any(e["setting"].startswith("chosen: ") for e in unmoved)
    assert len(unmoved) == 3  # the choice, and its neighbours in strength and in k
    assert all((e["scores"], e["change"]) == (vanilla["scores"], "+0.0 [+0.0, +0.0]") for e in unmoved)
    asked = [s.id for s in pope.samples]
    said = {setting: tuple(texts[q] for q in asked) for setting, texts in answers(tmp_path, asked).items()}
    late, first = ({a for s, a in said.items() if s.steer_first_token is steered} for steered in (False, True))
    assert len(late) == 1
    assert first - late

    text = report(numbers)
    for part in (
        "Best with mode add",
        "another image's CARD",
        "without labels",
        "cannot change an answer of one word",
    ):
        assert part in text
    config = outcome.config("org/base", None)
    assert Setting.of(config) == winner
    record = config.calibration
    assert record is not None
    assert record["held_out"]["chair_s"]["high"] < 0
    assert record["held_out_own_minus_other_card"]["chair_s"]["right"] == 0
    assert record["settings"] == winner.record()
    assert outcome.config("org/base", None, "add").mode == "add"


@pytest.mark.parametrize("push", [False, True])
def test_a_contrast_that_is_right_is_chosen(tmp_path: Path, push: bool) -> None:
    """Alone or with a push, from a grid over both; every answer is that of the setting run by itself."""
    grid = replace(GRID, contrast=(0.0, 9.0), contrast_after=(1, 3))
    winner = Setting(-1, contrast=9.0, contrast_after=3)
    data, pushed = planted_scenes(8, 6)
    if push:
        winner = replace(pushed, contrast=9.0, contrast_after=3)
    data = planted(data, winner)
    chosen = options(grid=grid, layers=(2,), objective="paper")
    outcome = calibrate(loaded(), data, tmp_path, chosen, pope=replace(pope_task(data), max_new_tokens=2))
    assert len(outcome.scored) == 1 + 2 + 4 * 3  # vanilla, contrasts alone, each push without and with them
    expected = {setting: {s.id: answer(data, s, setting) for s in data.choosing} for setting in outcome.scored}
    assert answers(tmp_path, [s.id for s in data.choosing]) == expected
    assert outcome.choice.best == winner
    assert outcome.choice.score == 0 < outcome.choice.vanilla

    config = outcome.config("org/base", None)
    assert Setting.of(config) == winner
    assert (config.contrast, config.contrast_after, config.alpha_max) == (9.0, 3, winner.alpha_max)
    assert config.calibration is not None
    assert config.calibration["settings"] == winner.record()
    assert "beyond the paper" in render_card(config, "org/name")
    text, said = report(outcome.numbers), "\n".join(summary(outcome.numbers))
    assert "Image-value contrast alone (beyond the paper)" in text
    assert ("another image's CARD and values" if push else "another image's values") in text
    assert "Beyond the paper" in said
    assert winner.describe() in said
    row = next(row for row in outcome.numbers["held_out"] if row["chosen"])
    assert row["own_minus_other_card"]["chair_s"]["right"] == 0 < row["own_minus_other_card"]["chair_s"]["left"]
    save_outcome(outcome, tmp_path, None, None)  # figures too


def test_contrasts_alone_need_no_layers(tmp_path: Path) -> None:
    grid = Grid(strengths=(0.0,), contrast=(4.0, 9.0), contrast_after=(1,))
    outcome = calibrate(loaded(), images(), tmp_path, options(grid=grid, layers=None, probe=2))
    assert set(outcome.scored) == {VANILLA, *(Setting(-1, contrast=value, contrast_after=1) for value in (4.0, 9.0))}
    assert outcome.numbers["shortlist"]["layers"] == outcome.numbers["probes"] == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save_outcome(outcome, tmp_path, None, None)
    with pytest.raises(InputError, match="strength 0"):
        Grid(strengths=(0.0, 0.5))
    with pytest.raises(ValueError, match="`contrast` is -1"):
        Grid(contrast=(-1.0,))


class Killed(BaseException):
    """Stands for a kill: nothing catches it."""


def killed_after(calls: int) -> Any:
    left = [calls]

    def progress(text: str, done: int, total: int) -> None:
        left[0] -= done > 0 and "settings" in text
        if left[0] == 0:
            raise Killed

    return progress


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Setting, str]]:
    """Grows by what is decoded: setting and sample."""
    found: list[tuple[Setting, str]] = []
    original = SettingSearch._decode_batch

    def counting(self: SettingSearch, settings: Sequence[Setting], places: Sequence[int]) -> None:
        found.extend((setting, self.samples[place].id) for setting in settings for place in places)
        original(self, settings, places)

    monkeypatch.setattr(SettingSearch, "_decode_batch", counting)
    return found


def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path, decoded: list[tuple[Setting, str]]) -> None:
    whole = calibrate(loaded(), images(), tmp_path / "whole", options(batch_size=10))
    with pytest.raises(Killed):
        calibrate(loaded(), images(), tmp_path / "killed", options(batch_size=10), progress=killed_after(2))
    kept = batches(tmp_path / "killed")
    assert len(kept) == 2
    with (tmp_path / "killed" / "batches" / "process-0000.jsonl").open("a") as file:
        file.write('{"settings": [')  # a line torn by the kill
    decoded.clear()
    resumed = calibrate(loaded(), images(), tmp_path / "killed", options(batch_size=10))
    assert numbers(resumed) == numbers(whole)
    done = {(Setting.of(setting), sample) for b in kept for setting in b["settings"] for sample in b["answers"]}
    assert not done & set(decoded)
    decoded.clear()
    again = calibrate(loaded(), images(), tmp_path / "killed", options(batch_size=10))
    assert decoded == []
    assert numbers(again) == numbers(whole)


def test_a_larger_grid_decodes_only_what_is_new(tmp_path: Path, decoded: list[tuple[Setting, str]]) -> None:
    small = calibrate(loaded(), images(), tmp_path / "grown", options(runners_up=0))
    decoded.clear()
    larger = options(grid=Grid(strengths=(0.5, 1.0, 1.5), k=(2.0, 8.0)), runners_up=0)
    grown = calibrate(loaded(), images(), tmp_path / "grown", larger)
    chosen = {s.id for s in images().choosing}
    assert {setting for setting, sample in decoded if sample in chosen} == set(grown.scored) - set(small.scored)
    found, whole = numbers(grown), numbers(calibrate(loaded(), images(), tmp_path / "whole", larger))
    # The held-out images were looked at by the smaller search already, and that is said.
    assert (found["record"].pop("held_out_looks"), whole["record"].pop("held_out_looks")) == (2, 1)
    assert found == whole
    assert "2 calibrations of this folder have looked at these held-out images" in report(grown.numbers)
    assert "2 calibrations of this folder" in "\n".join(summary(grown.numbers))
    said = "2 calibrations have looked at these held-out images"
    assert said in render_card(grown.config("org/base", None))
    assert "calibrations of this folder" not in report(small.numbers)


def test_batches_shrink_when_memory_runs_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that fits five rows, and one that fits none."""
    expected = numbers(calibrate(loaded(), images(3, 2), tmp_path / "large", options(layers=(1,))))
    tried: list[int] = []

    def small(model: Any, inputs: Any, settings: Any, *, batch_size: int, **kwargs: Any) -> Any:
        tried.append(batch_size)
        if min(batch_size, len(settings) * len(inputs["input_ids"])) > fits[0]:
            raise torch.OutOfMemoryError("no memory")
        return decode_settings(model, inputs, settings, batch_size=batch_size, **kwargs)

    fits = [5]
    monkeypatch.setattr(search_module, "decode_settings", small)
    found = numbers(calibrate(loaded(), images(3, 2), tmp_path / "small", options(layers=(1,))))
    assert tried[0] == 256
    assert max(tried[1:]) < 10
    assert_same(found, expected)
    fits = [0]
    with pytest.raises(torch.OutOfMemoryError):
        calibrate(loaded(), images(3, 2), tmp_path / "none", options(layers=(1,)))


def test_another_calibration_is_not_mixed_in(tmp_path: Path) -> None:
    calibrate(loaded(), images(3, 2), tmp_path / "out", options(layers=(1,)))
    with pytest.raises(InputError, match="with max_new_tokens 8; this command has max_new_tokens 9"):
        calibrate(loaded(), images(3, 2), tmp_path / "out", options(max_new_tokens=NEW + 1))
    with pytest.raises(InputError, match=r"3 ids|choosing"):
        calibrate(loaded(), images(4, 2), tmp_path / "out", options())
    (tmp_path / "old" / "state").mkdir(parents=True)
    (tmp_path / "old" / "state" / "plan.json").write_text("{}")
    with pytest.raises(InputError, match="nothing that this version of rudder calibrate could continue"):
        calibrate(loaded(), images(3, 2), tmp_path / "old", options())


@pytest.mark.parametrize(
    ("file", "place", "value", "words"),
    [
        ("plan.json", [], [], "it is \\[\\], but has to be an object"),
        ("layers.json", [1, "hidden_norm"], ..., r"\[1\] lacks hidden_norm"),
        ("batches/process-0000.jsonl", [], None, "it is null, but has to be an object"),
        ("batches/process-0000.jsonl", ["answers"], [], "answers is \\[\\], but has to be an object"),
        ("result-001/calibration.json", ["settings"], {}, "settings is {}, but has to be a list"),
        ("result-001/calibration.json", ["record"], ..., "lacks record"),
    ],
)
def test_damaged_files_are_named(
    tmp_path: Path, finished: Path, file: str, place: list[str | int], value: object, words: str
) -> None:
    shutil.copytree(finished, tmp_path / "out")
    damage(tmp_path / "out" / file, place, value)
    with pytest.raises(InputError, match=f"{file} is damaged.*{words}"):
        save_outcome(
            calibrate(loaded(), images(3, 1), tmp_path / "out", options(layers=(2,))), tmp_path / "out", "", ""
        )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small calibration."""
    out = tmp_path_factory.mktemp("calibration") / "out"
    save_outcome(calibrate(loaded(), images(3, 1), out, options(layers=(2,))), out, "toy", None)
    return out


@pytest.mark.slow
def test_several_processes_come_to_the_same_choice(tmp_path: Path) -> None:
    """Two ranks at the same time, each with a model of its own; they meet in the folder alone."""
    wanted = options(label_free=True, layers=None, probe=4, shortlist=2)
    expected = numbers(calibrate(loaded(), images(), tmp_path / "alone", wanted))

    def rank(number: int) -> Any:
        mine = replace(loaded(), model=copy.deepcopy(loaded().model))
        return lambda: numbers(calibrate(mine, images(), tmp_path / "shared", wanted, Process(number, 2)))

    for found in in_threads([rank(0), rank(1)]):
        assert found["shortlist"] == expected["shortlist"]
        assert [s["chosen"] for s in found["settings"]] == [s["chosen"] for s in expected["settings"]]
        for one, other in zip(found["settings"], expected["settings"], strict=True):
            # Another batch may differ in the last bit of a likelihood.
            assert one["scores"] == pytest.approx(other["scores"], abs=1e-4)
    files = sorted((tmp_path / "shared" / "batches").glob("*.jsonl"))
    assert [path.name for path in files] == ["process-0000.jsonl", "process-0001.jsonl"]
    assert all(path.stat().st_size for path in files)


def test_contrasts_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    def contrasts(out: Path, **changes: Any) -> dict[str, float]:
        calibrate(loaded(), images(), out, options(layers=(1,), label_free=True, **changes))
        found = (b["answers"].items() for b in batches(out) if not b["other_card"])
        return {sample: rows[0]["contrast"] for answered in found for sample, rows in answered}

    large = contrasts(tmp_path / "large")
    assert large == pytest.approx(contrasts(tmp_path / "small", batch_size=5), abs=1e-3)
    assert len(large) >= 6


def test_results_hold_what_was_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcome_module, "figures_available", lambda: False)  # they have a test of their own
    data, winner = planted_scenes(6, 12)
    changes = options(layers=None, probe=3, shortlist=4, label_free=True, grid=replace(GRID, modes=("beta", "add")))
    outcome = calibrate(loaded(), data, tmp_path, changes)
    layers = outcome.numbers["shortlist"]["layers"]
    assert sorted(layers) == [0, 1, 2, 3]
    assert len(outcome.numbers["probes"]) == 1 + 2 * 4  # vanilla, and two settings at each of four layers
    folder = save_outcome(outcome, tmp_path, "org/base", None)
    assert folder.name == "result-001"
    assert save_outcome(outcome, tmp_path, "org/base", None) == folder  # the same again
    written = json.loads((folder / "calibration.json").read_text())
    assert written["record"]["images"] == [s.image_id for s in data.choosing]
    assert not set(written["record"]["images"]) & set(written["record"]["held_out_images"])
    assert [row["settings"] is None for row in written["held_out"]].count(True) == 1
    assert {"minus_vanilla", "own_minus_other_card"} < set(written["held_out"][1])
    text = (folder / "report.md").read_text()
    assert text == report(outcome.numbers) == report(written)
    headings = [f"## Layer {layer}" for layer in layers]
    for heading in ("How sure the choice is", "The sweep", *headings, "Limits", "without labels"):
        assert heading in text
    config = RudderConfig.from_pretrained(folder)
    assert Setting.of(config) == outcome.choice.best == winner
    assert config.base_model_name_or_path == "org/base"
    assert config.calibration is not None
    assert Provenance(config).calibrated
    expected = written["record"]
    expected["model"]["name"] = "org/base"
    assert config.calibration == expected
    for mode in ("beta", "add"):
        assert Setting.of(RudderConfig.from_pretrained(folder / mode)) == outcome.by_mode[mode].best


@pytest.mark.slow
def test_figures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    outcome = calibrate(loaded(), images(4, 2), tmp_path, options(layers=None, probe=2, shortlist=1))
    folder = save_outcome(outcome, tmp_path, "org/base", None)
    names = {"layers", "layer-sweep", f"heatmaps-layer{outcome.numbers['shortlist']['layers'][0]}"}
    assert {path.stem for path in folder.glob("*.png")} == {path.stem for path in folder.glob("*.svg")} == names
    for name in names:
        with Image.open(folder / f"{name}.png") as figure:
            assert figure.size[0] > 200


def test_a_folder_of_images_is_never_called_calibrated(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    source = images(6, 0)
    for sample in source.choosing:
        source.task.image(sample).save(folder / f"{sample.id}.png")
    data = find_data(DataOptions(folder), 4, 2)
    assert not data.labelled
    with pytest.raises(InputError, match="needs annotations"):
        calibrate(loaded(), data, tmp_path / "out", options())
    # A wide search, so that some setting is more grounded than vanilla.
    wide = Grid((0.1, 0.3, 0.6, 1.0, 1.5), (2.0, 8.0), ("beta", "add"))
    changes = options(objective="grounding", grid=wide, layers=(0, 1, 2, 3), runners_up=1)
    outcome = calibrate(loaded(), data, tmp_path / "out", changes)
    assert outcome.choice.best is not None
    assert outcome.choice.score > outcome.choice.vanilla
    assert not outcome.numbers["calibrated"]
    assert "no measurement" in outcome.numbers["refusal"]
    config = outcome.config("org/base", None)
    assert config.calibration is not None
    assert config.calibration["refusal"] == outcome.numbers["refusal"]
    assert not Provenance(config).calibrated
    assert "they are **not calibrated**: the criterion without labels" in render_card(config)
    assert "no measurement" in report(outcome.numbers)
