"""Calibration from beginning to end on a tiny model: files, resuming, several processes, the command line."""

from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from rudder_hf import RudderConfig
from rudder_hf.calibrate import (
    CalibrationData,
    CalibrationOptions,
    Grid,
    Limits,
    Outcome,
    Setting,
    SettingsDecoder,
    calibrate,
    data_source,
    find_data,
    layer_statistics,
    pope_task,
    save_outcome,
)
from rudder_hf.calibrate.report import report
from rudder_hf.calibrate.search import Search
from rudder_hf.calibrate.selection import Candidate
from rudder_hf.calibrate.store import UNSTEERED
from rudder_hf.cli.main import app
from rudder_hf.core.steering import similarity
from rudder_hf.evaluate.tasks import DataOptions
from rudder_hf.metrics.errors import InputError
from rudder_hf.runtime.inputs import encode
from rudder_hf.runtime.processes import Process
from tests.support.evaluating import subject
from tests.support.helpers import in_threads
from tests.support.planting import GRID, NEW, answer, planted_folder, planted_scenes

# A model with random weights writes nothing worth a limit of fluency.
LOOSE = Limits(length_floor=0.0, nll_rise=1e3, distinct_drop=1.0)


def pictures(count: int = 6, check: int = 4) -> CalibrationData:
    return find_data(DataOptions(), count, check)


def options(**changes: Any) -> CalibrationOptions:
    given: dict[str, Any] = {
        "grid": GRID,
        "layers": (1, 2),
        "limits": LOOSE,
        "max_new_tokens": NEW,
        "draws": 50,
        "confidence": 0.0,
    }
    return CalibrationOptions(**(given | changes))


def numbers(outcome: Outcome) -> dict[str, Any]:
    """What two runs of one calibration have in common."""
    found = json.loads(json.dumps(outcome.to_dict()))
    for name in ("seconds", "environment"):
        del found[name]
    del found["record"]["date"]
    return found


def assert_same(one: Any, other: Any, where: str = "") -> None:
    """Equal, up to the last digits of likelihoods, which another batch may change."""
    assert type(one) is type(other), where
    if isinstance(one, dict | list):
        keys = one if isinstance(one, dict) else range(len(one))
        assert len(one) == len(other), where
        for key in keys:
            assert_same(one[key], other[key], f"{where}/{key}")
    else:
        assert one == (pytest.approx(other, abs=1e-3) if isinstance(one, float) else other), where


def test_answers_are_those_of_generate(tmp_path: Path) -> None:
    """Both modes, both spans, the first token steered or not: what is stored is what each setting alone writes."""
    grid = Grid((0.5, 1.5), (2.0,), ("beta", "add"), ("mean",), ("prompt", "text"), (False, True))
    data = pictures(3, 1)
    outcome = calibrate(subject(), data, tmp_path, options(layers=(2,), grid=grid))
    stored: dict[tuple[str, Setting], str] = {}
    for line in (tmp_path / "state" / "answers" / "answers-0000.jsonl").read_text().splitlines():
        batch = json.loads(line)
        for sample, rows in batch["answers"].items():
            for setting, row in zip(batch["settings"], rows, strict=True):
                stored[sample, Setting.of(setting)] = row["answer"]
    assert len(outcome.counts) == 1 + 2 * 2 * 2 * 2
    expected = {(s.id, setting): answer(data, s, 2, setting) for s in data.choosing for _, setting in outcome.counts}
    assert {key: stored[key] for key in expected} == expected
    assert len(set(expected.values())) > 6  # the settings do differ


def test_the_setting_that_is_right_is_chosen(tmp_path: Path) -> None:
    """The truth is what one setting says: it has to win, with labels, with certainty, and on held-out pictures."""
    data, winner = planted_scenes(8, 6)
    modes = replace(GRID, modes=("beta", "add"))
    pope = pope_task(data)
    pope.max_new_tokens = 1  # type: ignore[misc]
    outcome = calibrate(subject(), data, tmp_path, options(grid=modes, contrast=True), pope=pope)
    assert outcome.choice.best == winner
    assert outcome.choice.score == 0 < outcome.choice.vanilla
    assert max(outcome.choice.wins, key=lambda c: outcome.choice.wins[c]) == winner
    assert outcome.choice.out_of_bag[0] < 0
    assert outcome.by_mode["beta"].best == winner
    assert outcome.by_mode["add"].best != winner
    assert outcome.calibrated, outcome.refusal

    # Held-out pictures: the winner and its rivals, each also with another picture's CARD.
    change = outcome.differences["chair_s"]
    assert (change.right, change.value) == (0, -change.left)
    assert change.low <= change.value <= change.high < 0
    assert {UNSTEERED, winner} < set(outcome.held_out.own)
    assert set(outcome.held_out.other) == set(outcome.held_out.own) - {UNSTEERED}
    specific = outcome.specific[winner]["chair_s"]
    assert specific.right == 0
    assert specific.left > 0  # another picture's CARD says other things

    # Without labels something is chosen too, and how far that carries is told.
    found = outcome.label_free
    assert found is not None
    assert found["share_of_gain"] <= 1
    assert found["same_choice"] == (outcome.without_labels is not None and outcome.without_labels.best == winner)
    assert found["good_enough"] or found["share_of_gain"] < 0.8 or found["recall"] < outcome.limits.recall_floor

    # POPE: steering after the first token cannot change a one-word answer; the report says so.
    vanilla = next(e for e in outcome.pope if e["alpha_max"] == 0)
    unmoved = [e for e in outcome.pope if not e["steer_first_token"] and e["alpha_max"] > 0]
    assert any(e["setting"].startswith("chosen: ") for e in unmoved)
    assert len(unmoved) == 3  # the choice, and its neighbours in strength and in k
    assert all((e["scores"], e["change"]) == (vanilla["scores"], "+0.0 [+0.0, +0.0]") for e in unmoved)
    answers = _answers(tmp_path, [s.id for s in pope.samples])
    late, first = ({a for s, a in answers.items() if s.steer_first_token is steered} for steered in (False, True))
    assert len(late) == 1
    assert first - late

    text = report(outcome)
    for part in (
        "Best with mode add",
        "another picture's CARD",
        "without labels",
        "cannot change an answer of one word",
    ):
        assert part in text
    config = outcome.config("org/base", None)
    assert (config.layer, config.alpha_max, config.k) == (winner[0], winner[1].alpha_max, winner[1].k)
    record = config.calibration
    assert record is not None
    assert record["held_out"]["chair_s"]["high"] < 0
    assert record["held_out_own_minus_other_card"]["chair_s"]["right"] == 0
    assert record["settings"] == {"layer": winner[0], **winner[1].record()}
    assert outcome.config("org/base", None, "add").mode == "add"


def _answers(out: Path, questions: list[str]) -> dict[Setting, tuple[str, ...]]:
    """What was stored for some questions, by setting."""
    found: dict[Setting, dict[str, str]] = {}
    for line in (out / "state" / "answers" / "answers-0000.jsonl").read_text().splitlines():
        batch = json.loads(line)
        for sample in set(questions) & set(batch["answers"]):
            for setting, row in zip(batch["settings"], batch["answers"][sample], strict=True):
                found.setdefault(Setting.of(setting), {})[sample] = row["answer"]
    return {setting: tuple(words[question] for question in questions) for setting, words in found.items()}


class Killed(BaseException):
    """Stands for a kill: nothing catches it."""


def killed_after(calls: int) -> Any:
    left = [calls]

    def progress(text: str, done: int, total: int) -> None:
        left[0] -= text.startswith("layer ") and "settings" in text
        if left[0] == 0:
            raise Killed

    return progress


def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = calibrate(subject(), pictures(), tmp_path / "whole", options(rows=10))
    with pytest.raises(Killed):
        calibrate(subject(), pictures(), tmp_path / "killed", options(rows=10), progress=killed_after(2))
    journal = tmp_path / "killed" / "state" / "answers" / "answers-0000.jsonl"
    kept = journal.read_text().splitlines()
    assert len(kept) == 2
    with journal.open("a") as file:
        file.write('{"layer": 1, "settings": [')  # a line torn by the kill
    decoded: list[str] = []
    original = Search._batch

    def counting(self: Search, decoder: Any, settings: Any, samples: Any, following: Any) -> None:
        decoded.extend(f"{decoder.layer} {sample.id}" for sample in samples)
        original(self, decoder, settings, samples, following)

    monkeypatch.setattr(Search, "_batch", counting)
    resumed = calibrate(subject(), pictures(), tmp_path / "killed", options(rows=10))
    assert numbers(resumed) == numbers(whole)
    done = {f"{json.loads(line)['layer']} {sample}" for line in kept for sample in json.loads(line)["answers"]}
    assert not done & set(decoded)
    decoded.clear()
    again = calibrate(subject(), pictures(), tmp_path / "killed", options(rows=10))
    assert decoded == []
    assert numbers(again) == numbers(whole)


def test_a_larger_grid_decodes_only_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calibrate(subject(), pictures(), tmp_path / "grown", options())
    new: list[int] = []
    original = Search._batch

    def counting(self: Search, decoder: Any, settings: Sequence[Any], samples: Any, following: Any) -> None:
        new.append(len(settings))
        original(self, decoder, settings, samples, following)

    monkeypatch.setattr(Search, "_batch", counting)
    larger = options(grid=Grid(strengths=(0.5, 1.0, 1.5), k=(2.0, 8.0)))
    grown = calibrate(subject(), pictures(), tmp_path / "grown", larger)
    assert max(new) == 2
    assert numbers(grown) == numbers(calibrate(subject(), pictures(), tmp_path / "whole", larger))


def test_batches_shrink_when_memory_runs_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that fits five rows, and one that fits none."""
    expected = numbers(calibrate(subject(), pictures(3, 2), tmp_path / "large", options(layers=(1,))))
    original = SettingsDecoder.__call__
    tried: list[int] = []

    def small(self: SettingsDecoder, inputs: Any, settings: Any, *, rows: int, **kwargs: Any) -> Any:
        tried.append(rows)
        if min(rows, len(settings) * len(inputs["input_ids"])) > fits[0]:
            raise torch.OutOfMemoryError("no memory")
        return original(self, inputs, settings, rows=rows, **kwargs)

    fits = [5]
    monkeypatch.setattr(SettingsDecoder, "__call__", small)
    found = numbers(calibrate(subject(), pictures(3, 2), tmp_path / "small", options(layers=(1,))))
    assert tried[0] == 256
    assert max(tried[1:]) < 10
    assert_same(found, expected)
    fits = [0]
    with pytest.raises(torch.OutOfMemoryError):
        calibrate(subject(), pictures(3, 2), tmp_path / "none", options(layers=(1,)))


def test_another_calibration_is_not_mixed_in(tmp_path: Path) -> None:
    calibrate(subject(), pictures(), tmp_path, options(layers=(1,)))
    with pytest.raises(InputError, match="another max_new_tokens"):
        calibrate(subject(), pictures(), tmp_path, options(max_new_tokens=NEW + 1))
    with pytest.raises(InputError, match="another checking, choosing"):
        calibrate(subject(), pictures(5), tmp_path, options())


def test_several_processes_come_to_the_same_choice(tmp_path: Path) -> None:
    """Two ranks at the same time, each with a model of its own; they meet in the folder alone."""
    wanted = options(contrast=True, layers=None, probe=4, shortlist=2)
    expected = numbers(calibrate(subject(), pictures(), tmp_path / "alone", wanted))

    def rank(number: int) -> Any:
        mine = replace(subject(), model=copy.deepcopy(subject().model))
        return lambda: numbers(calibrate(mine, pictures(), tmp_path / "shared", wanted, Process(number, 2)))

    for found in in_threads([rank(0), rank(1)]):
        assert found["shortlist"] == expected["shortlist"]
        assert [s["chosen"] for s in found["settings"]] == [s["chosen"] for s in expected["settings"]]
        for one, other in zip(found["settings"], expected["settings"], strict=True):
            # Another batch may differ in the last bit of a likelihood.
            assert one["scores"] == pytest.approx(other["scores"], abs=1e-4)
    files = sorted((tmp_path / "shared" / "state" / "answers").glob("*.jsonl"))
    assert [path.name for path in files] == ["answers-0000.jsonl", "answers-0001.jsonl"]
    assert all(path.stat().st_size for path in files)


def test_contrasts_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    def contrasts(out: Path, **changes: Any) -> dict[str, float]:
        calibrate(subject(), pictures(), out, options(layers=(1,), contrast=True, **changes))
        lines = (out / "state" / "answers" / "answers-0000.jsonl").read_text().splitlines()
        batches = [json.loads(line) for line in lines]
        return {sample: rows[0]["contrast"] for batch in batches for sample, rows in batch["answers"].items()}

    assert contrasts(tmp_path / "large") == pytest.approx(contrasts(tmp_path / "small", rows=5), abs=1e-3)


def test_results_hold_what_was_found(tmp_path: Path) -> None:
    data, winner = planted_scenes(6, 4)
    changes = options(layers=None, probe=3, shortlist=4, contrast=True, grid=replace(GRID, modes=("beta", "add")))
    outcome = calibrate(subject(), data, tmp_path, changes)
    assert sorted(outcome.layers) == [0, 1, 2, 3]
    assert len(outcome.probes) == 1 + 2 * 4  # vanilla, and two settings at each of four layers
    folder = save_outcome(outcome, tmp_path, "org/base", None)
    assert folder.name == "result-001"
    assert save_outcome(outcome, tmp_path, "org/base", None) == folder  # the same again
    written = json.loads((folder / "calibration.json").read_text())
    assert written["record"]["pictures"] == [s.image_id for s in data.choosing]
    assert not set(written["record"]["pictures"]) & set(written["record"]["held_out_pictures"])
    assert [row["settings"] is None for row in written["held_out"]].count(True) == 1
    assert {"minus_vanilla", "own_minus_other_card"} < set(written["held_out"][1])
    text = (folder / "report.md").read_text()
    assert text == report(outcome)
    layers = [f"## Layer {layer}" for layer in outcome.layers]
    for heading in ("How sure the choice is", "The sweep", *layers, "Limits", "without labels", "broken sentences"):
        assert heading in text
    config = RudderConfig.from_pretrained(folder)
    assert (config.layer, Setting.of(config)) == outcome.choice.best == winner
    assert config.base_model_name_or_path == "org/base"
    assert config.calibration == json.loads(json.dumps(outcome.calibration_record()))
    for mode in ("beta", "add"):
        assert Setting.of(RudderConfig.from_pretrained(folder / mode)) == outcome.by_mode[mode].best[1]  # type: ignore[index]


def test_figures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from rudder_hf.calibrate.plots import save_figures

    outcome = calibrate(subject(), pictures(4, 2), tmp_path / "run", options(layers=None, probe=2, shortlist=1))
    for path in save_figures(outcome, tmp_path):
        with Image.open(path) as figure:
            assert figure.size[0] > 200


def test_layer_statistics_equal_a_slow_reference() -> None:
    """One picture, two layers, by hand: a plain forward over prompt and answer with bare hooks."""
    model, data = subject(), pictures(1 + 1, 0)
    sample = data.choosing[0]
    inputs = encode(model.model, model.processor, [data.task.image(sample)], [sample.prompt])
    found = layer_statistics(model.model, [inputs])
    prompt = inputs["input_ids"].shape[1]
    with torch.no_grad():
        written = model.model.generate(**inputs, max_new_tokens=16, do_sample=False)
        seen: list[tuple[Any, Any]] = []
        layers = model.model.model.language_model.layers
        hooks = []
        for layer in layers:
            hooks.append(layer.register_forward_pre_hook(lambda m, a, k: seen.append((a[0], None)), with_kwargs=True))
            hooks.append(
                layer.self_attn.register_forward_hook(lambda m, a, o: seen.__setitem__(-1, (seen[-1][0], o[0])))
            )
        rest = {name: value for name, value in inputs.items() if name not in ("input_ids", "attention_mask")}
        model.model(input_ids=written[:, :-1], **rest, use_cache=False)
        for hook in hooks:
            hook.remove()
    for statistics, (h, update) in zip(found, seen, strict=True):
        mean = update[:, :prompt].mean(1)
        v = mean / mean.norm()
        lengths = update[0, :prompt].norm(dim=-1)
        assert statistics.update_norm == pytest.approx(float(lengths.mean()), rel=1e-4)
        assert statistics.concentration == pytest.approx(float(mean.norm() / lengths.mean()), rel=1e-4)
        assert statistics.alignment == pytest.approx(float(similarity(h[:, prompt:], v).mean()), abs=1e-4)
        assert statistics.hidden_norm == pytest.approx(float(h[0, prompt:].norm(dim=-1).median()), rel=1e-4)


def test_a_folder_of_pictures_is_never_called_calibrated(tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    source = pictures(6, 0)
    for sample in source.choosing:
        source.task.image(sample).save(folder / f"{sample.id}.png")
    data = find_data(DataOptions(folder), 4, 2)
    assert not data.labelled
    with pytest.raises(InputError, match="needs annotations"):
        calibrate(subject(), data, tmp_path / "out", options())
    # A wide search, so that some setting is more grounded than vanilla.
    wide = Grid((0.1, 0.3, 0.6, 1.0, 1.5), (2.0, 8.0), ("beta", "add"))
    changes = options(objective="grounding", grid=wide, layers=(0, 1, 2, 3), runners_up=1)
    outcome = calibrate(subject(), data, tmp_path / "out", changes)
    assert not outcome.calibrated
    assert outcome.choice.best is not None
    assert outcome.choice.score < outcome.choice.vanilla
    assert outcome.config("org/base", None).calibration is None
    assert "no measurement" in report(outcome)


def test_pictures_to_choose_and_to_check_are_apart() -> None:
    data = pictures(20, 30)
    ids = [sample.id for sample in data.choosing], [sample.id for sample in data.checking]
    assert not set(ids[0]) & set(ids[1])
    assert [s.id for s in pictures(20, 30).choosing] == ids[0]
    without = find_data(DataOptions(), 20, 30, exclude=ids[0])
    assert not {sample.id for sample in without.choosing + without.checking} & set(ids[0])
    with pytest.raises(InputError, match="lower --pictures"):
        pictures(400, 10)
    with pytest.raises(InputError, match="is for evaluation"):
        find_data(DataOptions(split="evaluation"), 5, 5)


@pytest.fixture(scope="module")
def saved_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    subject().model.save_pretrained(path)
    subject().processor.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def annotated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Candidate]:
    """Pictures in COCO's layout, and the setting that has to win on them."""
    folder = tmp_path_factory.mktemp("coco") / "data"
    return folder, planted_folder(folder, 6, 4)


def command(saved_model: Path, data: Path, out: Path, *more: str) -> list[str]:
    limits = ["--recall-floor", "0.95", "--nll-rise", "99", "--distinct-drop", "1", "--confidence", "0"]
    sizes = ["--pictures", "6", "--check-pictures", "4", "--max-new-tokens", str(NEW), "--bootstrap", "50"]
    grid = ["--layers", "1,2", "--strengths", "0.5,1.5", "--k", "2,8", "--rows", "6", "--device", "cpu"]
    source = ["--model", str(saved_model), "--data", str(data), "--out", str(out)]
    return ["calibrate", *source, *limits, *sizes, *grid, *more]


def stored(folder: Path) -> dict[str, Any]:
    """A result without what differs between runs."""
    found: dict[str, Any] = json.loads((folder / "calibration.json").read_text())
    for name in ("seconds", "environment"):
        del found[name]
    del found["record"]["date"], found["record"]["versions"]
    return found


def test_command_line(saved_model: Path, annotated: tuple[Path, Candidate], tmp_path: Path) -> None:
    """Killed with -9, continued by two processes, and in one go: the planted setting each time, in the same files."""
    data, (layer, setting) = annotated
    whole = CliRunner().invoke(app, command(saved_model, data, tmp_path / "whole"))
    assert whole.exit_code == 0, whole.output
    assert f"Chosen: layer {layer}, {setting.describe()}" in whole.stdout
    config = RudderConfig.from_pretrained(tmp_path / "whole" / "result-001")
    assert (config.layer, Setting.of(config)) == (layer, setting)
    assert config.calibration is not None

    out = tmp_path / "killed"
    python = [sys.executable, "-m", "rudder_hf"]
    running = subprocess.Popen(
        [*python, *command(saved_model, data, out)],
        env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    journal = out / "state" / "answers" / "answers-0000.jsonl"
    deadline = time.monotonic() + 300
    while not (journal.exists() and journal.read_bytes().count(b"\n") >= 3):
        assert time.monotonic() < deadline
        assert running.poll() is None
        time.sleep(0.02)
    running.send_signal(signal.SIGKILL)
    running.wait()
    kept = journal.read_bytes()
    assert not (out / "result-001").exists()

    pytest.importorskip("accelerate", reason="several processes need the extra `distributed`")
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    launch += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "-m", "rudder_hf"]
    done = subprocess.run(
        [*launch, *command(saved_model, data, out)], env=environment(), capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert journal.read_bytes().startswith(kept[: kept.rfind(b"\n") + 1])  # nothing was done again
    assert (out / "state" / "answers" / "answers-0001.jsonl").stat().st_size
    one, other = (sorted(p.name for p in (f / "result-001").rglob("*")) for f in (tmp_path / "whole", out))
    assert one == other
    assert_same(stored(out / "result-001"), stored(tmp_path / "whole" / "result-001"))


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(Path(__file__).parent.parent.parent), os.environ.get("PYTHONPATH", "")])
    return os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}


def test_embedded_scenes_by_name(saved_model: Path, tmp_path: Path) -> None:
    """Chosen on the calibration scenes, checked on the evaluation scenes; nothing better than vanilla is a failure."""
    found = find_data(
        data_source(Path("embedded:calibration")), 4, 3, check_options=data_source(Path("embedded:evaluation"))
    )
    assert {str(s.image_id)[0] for s in found.choosing} == {"1"}
    assert {str(s.image_id)[0] for s in found.checking} == {"2"}
    assert found.record["checked_on"]["split"] == "evaluation"
    assert {s.image_id for s in pope_task(found, pictures=2).samples} <= {s.image_id for s in found.checking[:2]}
    with pytest.raises(InputError, match="is for evaluation"):
        find_data(data_source(Path("embedded:evaluation")), 4, 3)
    # No setting keeps a recall above vanilla's own in every draw of the pictures.
    more = ["--recall-floor", "1", "--nll-rise", "0", "--confidence", "0.99", "--layers", "1"]
    result = CliRunner().invoke(app, command(saved_model, Path("embedded:calibration"), tmp_path, *more))
    assert result.exit_code == 1, result.output
    assert "Chosen: vanilla" in result.stdout
    assert not (tmp_path / "result-001" / "config.json").exists()
    assert (tmp_path / "result-001" / "report.md").is_file()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--strengths", "strong"], "--strengths is 'strong'"),
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
