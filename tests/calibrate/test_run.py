"""Calibration from beginning to end on a tiny model: images, layers, choice, files, resuming, several processes."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rudder_hf import RudderConfig
from rudder_hf.calibrate import (
    CalibrationData,
    CalibrationOptions,
    Grid,
    Outcome,
    Rule,
    calibrate,
    config_of,
    find_data,
    layer_statistics,
    save_outcome,
)
from rudder_hf.calibrate.report import outcome_lines, report_markdown
from rudder_hf.calibrate.run import check_runs
from rudder_hf.calibrate.search import describe
from rudder_hf.core.backbones import find_backbone
from rudder_hf.evaluate.run import Run, RunOptions, Variant, answer_batch
from rudder_hf.evaluate.tasks import DataOptions, encode_samples
from rudder_hf.hub.card import Provenance, render_card
from rudder_hf.methods import get
from rudder_hf.methods.contrast import Contrast
from rudder_hf.methods.rudder import RudderBeta
from rudder_hf.runtime.environment import Process
from rudder_hf.runtime.errors import InputError
from tests.support.evaluating import loaded
from tests.support.helpers import in_threads
from tests.support.planting import GRID, NEW, planted, planted_scenes
from tests.support.zoo import FAMILIES, Row

# A model with random weights writes nothing worth a limit of fluency.
LOOSE = Rule(length_floor=0.0, distinct_drop=1.0, repeated_rise=1.0, confidence=0.0, bootstrap=50)


def images(count: int = 6, check: int = 4) -> CalibrationData:
    return find_data(DataOptions(), count, check)


def options(**changes: Any) -> CalibrationOptions:
    given: dict[str, Any] = {"grid": GRID, "layers": (1, 2), "rule": LOOSE, "max_new_tokens": NEW}
    return CalibrationOptions(**(given | changes))


def found(outcome: Outcome) -> dict[str, Any]:
    """What two runs of one calibration have in common."""
    record = {name: value for name, value in outcome.record.items() if name not in ("date", "versions")}
    tried = [(describe(method), method.settings()) for method in outcome.tried]
    parts = [outcome.choosing, *([outcome.checking] if outcome.checking else [])]
    return json.loads(json.dumps([record, tried, outcome.reason])) + [replace(part, run={}) for part in parts]


def test_the_candidate_that_is_right_is_chosen_and_called_calibrated(tmp_path: Path) -> None:
    """The truth is what one setting says: it has to win, and held-out images have to show it."""
    data, winner = planted_scenes(8, 12)
    outcome = calibrate(loaded(), data, tmp_path, options())
    assert outcome.best == winner
    assert outcome.choice.score == 0 < outcome.choice.vanilla
    record = outcome.record
    assert record["refusal"] is None
    assert record["held_out"]["chair_s"]["right"] == 0
    assert record["held_out"]["chair_s"]["high"] < 0
    # Another image's CARD says other things.
    assert record["held_out_own_minus_other_card"]["chair_s"]["left"] > 0
    assert not set(record["images"]) & set(record["held_out_images"])
    assert outcome.checking is not None
    assert [method.name for method in outcome.checking.methods] == [
        "vanilla", describe(winner), "with another image's CARD",
    ]  # fmt: skip

    folder = save_outcome(outcome, tmp_path, "org/base", None)
    assert folder.name == "result-001"
    assert save_outcome(outcome, tmp_path, "org/base", None) == folder  # the same again
    text = (folder / "report.md").read_text()
    assert text == report_markdown(outcome)
    for part in ("with another image's CARD", "## Candidates", describe(winner)):
        assert part in text
    config = RudderConfig.from_pretrained(folder)
    assert {name: config.settings()[name] for name in ("layer", "alpha_max", "k")} == {
        name: winner.settings()[name] for name in ("layer", "alpha_max", "k")
    }
    assert Provenance(config).calibrated
    assert config.calibration == config_of(outcome, "org/base", None).calibration
    assert any(line.startswith("Called calibrated: on 12 held-out images") for line in outcome_lines(outcome))


@pytest.mark.parametrize("push", [False, True])
def test_a_contrast_that_is_right_is_chosen(tmp_path: Path, push: bool) -> None:
    """Alone or with a push, from a grid over both."""
    data, pushed = planted_scenes(8, 6)
    winner: Any = Contrast(contrast=9.0)
    if push:
        assert isinstance(pushed, RudderBeta)
        own = {name: getattr(pushed, name) for name in ("layer", "alpha_max", "k", "span")}
        winner = get("rudder-beta+contrast", **own, contrast=9.0)
    data = planted(data, winner)
    outcome = calibrate(loaded(), data, tmp_path, options(grid=replace(GRID, contrast=(0.0, 9.0)), layers=(2,)))
    assert len(outcome.tried) == 1 + 4 * 2  # the contrast alone, each push without and with it
    assert outcome.best == winner
    config = config_of(outcome, "org/base", None)
    assert (config.contrast, bool(config.alpha_max)) == (9.0, push)
    assert "beyond the paper" in render_card(config, "org/name")
    assert outcome.record["held_out_own_minus_other_card"]["chair_s"]["left"] > 0


def test_contrasts_alone_need_no_layers(tmp_path: Path) -> None:
    grid = Grid(strengths=(0.0,), contrast=(4.0, 9.0))
    outcome = calibrate(loaded(), images(), tmp_path, options(grid=grid, layers=None, probe=2))
    assert outcome.tried == [Contrast(contrast=4.0), Contrast(contrast=9.0)]
    assert outcome.record["layers"] == []


def test_layers_come_from_a_short_sweep(tmp_path: Path) -> None:
    outcome = calibrate(loaded(), images(), tmp_path, options(layers=None, probe=3, shortlist=2))
    layers = outcome.record["layers"]
    assert len(layers) == 2
    assert {method.settings()["layer"] for method in outcome.tried} == set(layers)
    assert "a sweep of 2 candidates for each layer on 3 images" in outcome.reason
    # Layers that are not tried further have answers to these images alone.
    by_key: dict[str, int] = {}
    for key, _ in Run(tmp_path / "choosing").answers():
        by_key[key] = by_key.get(key, 0) + 1
    assert sorted(set(by_key.values())) == [3, 6]


def test_a_finished_run_is_read_and_a_larger_grid_decodes_only_what_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[tuple[str, str]] = []

    def counting(task: Any, loaded: Any, method: Any, samples: Any, *more: Any) -> Any:
        decoded.extend((Variant.of(method).key, sample.id) for sample in samples)
        return answer_batch(task, loaded, method, samples, *more)

    monkeypatch.setattr("rudder_hf.evaluate.run.answer_batch", counting)
    wanted, choosing = options(run=RunOptions(2), layers=(1,)), {sample.id for sample in images().choosing.samples}
    whole = calibrate(loaded(), images(), tmp_path / "whole", wanted)
    assert decoded
    decoded.clear()
    with monkeypatch.context() as patch:  # also from a folder that cannot be written
        patch.setattr("os.access", lambda *of: False)
        check_runs(tmp_path / "whole")
        assert found(calibrate(loaded(), images(), tmp_path / "whole", wanted)) == found(whole)
    assert decoded == []
    with pytest.raises(InputError, match=r"holds other work \(.*samples is 6 there and 5 here"):
        calibrate(loaded(), images(5), tmp_path / "whole", wanted)

    larger = replace(wanted, grid=replace(GRID, strengths=(0.5, 1.0, 1.5)))
    grown = calibrate(loaded(), images(), tmp_path / "whole", larger)
    new = {key for key, sample in decoded if sample in choosing}
    assert len(new) == 2
    assert not new & {Variant.of(method).key for method in whole.tried}
    assert found(grown) == found(calibrate(loaded(), images(), tmp_path / "larger", larger))


@pytest.mark.slow
def test_several_processes_come_to_the_same_choice(tmp_path: Path) -> None:
    """Two ranks at the same time, each with a model of its own; they meet in the folder alone."""
    data, _ = planted_scenes(6, 4)
    wanted = options(layers=None, probe=4, shortlist=2, run=RunOptions(2))
    alone = calibrate(loaded(), data, tmp_path / "alone", wanted)

    def rank(number: int) -> Any:
        mine = replace(loaded(), model=copy.deepcopy(loaded().model))
        return lambda: calibrate(mine, data, tmp_path / "shared", wanted, Process(number, 2))

    for outcome in in_threads([rank(0), rank(1)]):
        assert outcome.record["layers"] == alone.record["layers"]
        assert outcome.best == alone.best
        assert outcome.choice == alone.choice
    files = sorted((tmp_path / "shared" / "choosing" / "answers").glob("*.jsonl"))
    assert [path.name for path in files] == ["0.jsonl", "1.jsonl"]
    assert all(path.stat().st_size for path in files)


def test_a_folder_of_images_is_never_called_calibrated(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    source = images(6, 0)
    for sample in source.choosing.samples:
        source.choosing.image(sample).save(folder / f"{sample.id}.png")
    data = find_data(DataOptions(folder), 4, 2)
    assert not data.labelled
    with pytest.raises(InputError, match="needs annotations"):
        calibrate(loaded(), data, tmp_path / "out", options())
    # A wide search, so that some setting is more grounded than vanilla.
    wide = Grid((0.1, 0.3, 0.6, 1.0, 1.5), (2.0, 8.0))
    changes = options(rule=replace(LOOSE, objective="grounding"), grid=wide, layers=(0, 1, 2, 3))
    outcome = calibrate(loaded(), data, tmp_path / "grounding", changes)
    assert outcome.best is not None
    assert outcome.choice.score > outcome.choice.vanilla
    assert "no measurement" in outcome.record["refusal"]
    config = config_of(outcome, "org/base", None)
    assert not Provenance(config).calibrated
    assert "they are **not calibrated**: the criterion without labels" in render_card(config)
    assert "no measurement" in report_markdown(outcome)


# Images and layers


def ids_of(data: CalibrationData) -> list[list[str]]:
    assert data.checking is not None
    return [[sample.id for sample in task.samples] for task in (data.choosing, data.checking)]


def test_images_to_choose_and_to_check_are_apart() -> None:
    data = find_data(DataOptions(), 20, 30)
    ids = ids_of(data)
    assert (len(ids[0]), len(ids[1])) == (20, 30)
    assert not set(ids[0]) & set(ids[1])
    assert ids_of(find_data(DataOptions(), 20, 30)) == ids
    files = {sample.image for sample in data.choosing.samples}
    assert not {name for part in ids_of(find_data(DataOptions(), 20, 30, exclude=files)) for name in part} & set(
        ids[0]
    )
    assert find_data(DataOptions(), 20, 0).checking is None
    with pytest.raises(InputError, match="lower --limit"):
        find_data(DataOptions(), 400, 10)
    with pytest.raises(InputError, match="is for evaluation"):
        find_data(DataOptions(split="evaluation"), 5, 5)


def test_layer_statistics_equal_a_slow_reference() -> None:
    """One image, all layers, by hand: a plain forward over prompt and answer with bare hooks."""
    data = find_data(DataOptions(), 2, 0)
    model: Any = loaded().model
    inputs = encode_samples(loaded(), data.choosing, data.choosing.samples[:1])
    found = layer_statistics(model, [inputs])
    prompt = inputs["input_ids"].shape[1]
    with torch.no_grad():
        written = model.generate(**inputs, max_new_tokens=16, do_sample=False)
        seen: list[tuple[Any, Any]] = []
        hooks = []
        for layer in model.model.language_model.layers:
            hooks.append(layer.register_forward_pre_hook(lambda m, a, k: seen.append((a[0], None)), with_kwargs=True))
            hooks.append(
                layer.self_attn.register_forward_hook(lambda m, a, o: seen.__setitem__(-1, (seen[-1][0], o[0])))
            )
        rest = {name: value for name, value in inputs.items() if name not in ("input_ids", "attention_mask")}
        model(input_ids=written[:, :-1], **rest, use_cache=False)
        for hook in hooks:
            hook.remove()
    for statistics, (h, update) in zip(found, seen, strict=True):
        lengths = update[0, :prompt].norm(dim=-1)
        assert statistics.update_norm == pytest.approx(float(lengths.mean()), rel=1e-4)
        relative = lengths / h[0, :prompt].norm(dim=-1)
        assert statistics.leverage == pytest.approx(float(relative.mean()), rel=1e-4)
        assert statistics.hidden_norm == pytest.approx(float(h[0, prompt:].norm(dim=-1).median()), rel=1e-4)


def test_layer_statistics_are_of_what_is_added_to_the_residual_stream() -> None:
    """Granite halves the attention output when it adds it."""
    family = FAMILIES["granite4_vision"]
    model = family.build()
    inputs = family.inputs(model, [Row(1, 4)])
    found = layer_statistics(model, [inputs])
    layer = find_backbone(model).layers[found[0].layer]
    assert layer.residual_multiplier == 0.5
    layer.residual_multiplier = 1.0
    # The first layer's update depends on no layer before it.
    assert found[0].update_norm == pytest.approx(layer_statistics(model, [inputs])[0].update_norm / 2, rel=1e-4)
