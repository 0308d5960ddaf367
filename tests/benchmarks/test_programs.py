"""The programs of `benchmarks/` and their results; those that draw figures of an analysis are in test_gallery.py."""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from benchmarks import speed
from benchmarks.embedded import run as embedded
from benchmarks.embedded import tables
from benchmarks.paper import run as paper
from rudder_hf.benchmark import BenchmarkReport
from rudder_hf.calibrate import Rule
from rudder_hf.evaluate.result import Result
from rudder_hf.methods import NAMES
from rudder_hf.runtime.environment import CODE, versions
from rudder_hf.scenes.images import split_scenes
from tests.support.evaluating import loaded
from tools.stale import stale_results
from tools.train_scenes.coco import write_split

# The paper's tables: every row is there, and every row that cannot run says why


LLAVA = "llava-hf/llava-1.5-7b-hf"


def test_every_row_of_the_paper_is_there_once() -> None:
    rows = paper.rows()
    assert len({row.name for row in rows}) == len(rows) == len(paper.paper_rows())
    assert {row.table for row in rows} == {1, 2, 3, 4, 5}
    with_settings = ("rudder-beta", "rudder-add", "vista")
    assert all(bool(row.settings) <= (row.method in with_settings) for row in rows)


def test_only_methods_that_need_another_model_are_missing() -> None:
    rows = paper.rows()
    assert {row.method for row in rows} - set(NAMES) == {"halc", "agla", "degf"}
    # The paper does not say which layers its DoLa contrasts.
    assert [(row.table, row.decoding, row.settings) for row in rows if row.method == "dola"] == [
        (1, "greedy", {}), (1, "nucleus", {}), (2, "greedy", {}), (2, "nucleus", {}),
    ]  # fmt: skip


def test_both_forms_of_rudder_run_on_the_images_of_the_released_draw(tmp_path: Path) -> None:
    """500 of the annotated images, as `random.seed(42); random.sample(...)` draws them in the order of the file."""
    both = paper.rows(released=True)
    released = [each for each in both if each.method == "rudder-released"]
    beta = [each for each in both if each.method == "rudder-beta"]
    assert [replace(each, method="rudder-beta") for each in released] == beta
    images = [{"id": number, "file_name": f"{number}.jpg"} for number in range(2000, 0, -1)]
    annotations = [{"image_id": number} for number in range(1, 2001) if number % 3]
    (tmp_path / "instances_val2014.json").write_text(json.dumps({"images": images, "annotations": annotations}))
    random.seed(42)
    expected = random.sample([number for number in range(2000, 0, -1) if number % 3], 500)
    assert paper.drawn_images(tmp_path / "instances_val2014.json", 500) == expected


def row(**changes: Any) -> paper.Row:
    values: dict[str, Any] = {
        "table": 1, "model": LLAVA, "task": "chair", "decoding": "greedy", "method": "rudder-add",
        "settings": {"layer": 2, "alpha_max": 12.0}, "images": 500, "paper": {"chair_s": 42.1, "chair_i": 11.8},
    }  # fmt: skip
    return paper.Row(**{**values, **changes})


def test_skipped_rows_say_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "empty"))
    here = paper.Machine(data={"chair": tmp_path, "pope": tmp_path})
    assert "not in rudder_hf" in str(paper.obstacle(row(method="degf"), here))
    assert paper.obstacle(row(), paper.Machine()) == "no data: pass --coco"
    assert "there is no" in str(paper.obstacle(row(), paper.Machine(data={"chair": tmp_path / "no"})))
    assert paper.obstacle(row(task="pope"), here) == "no images: pass --images"
    assert paper.obstacle(row(task="mme"), here) == "no data: pass --mme"
    monkeypatch.setattr(paper, "weights_obstacle", lambda model, machine: "no weights")
    assert paper.obstacle(row(task="speed"), paper.Machine()) == "no weights"
    outcomes = paper.run_rows([row(), row(method="degf")], here, tmp_path / "out", say=lambda text: None)
    assert [outcome.ours for outcome in outcomes] == [{}, {}]
    text = paper.summary(outcomes)
    assert text.startswith("0 of 2 rows were run.")
    assert "| no weights | 1 | table1-chair-greedy-llava-1.5-7b-rudder-add |" in text


def test_weights_in_the_cache_are_found_and_weighed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repo = tmp_path / f"models--{LLAVA.replace('/', '--')}"
    snapshot = repo / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("0" * 40)
    (snapshot / "config.json").write_text("{}")
    import huggingface_hub

    real = huggingface_hub.snapshot_download
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda name, **options: real(name, cache_dir=tmp_path, **options)
    )
    machine = paper.Machine()
    assert "not in the Hub cache" in str(paper.weights_obstacle("org/other", machine))
    assert "but not its weights" in str(paper.weights_obstacle(LLAVA, machine))
    (snapshot / "model.safetensors").write_bytes(b"0" * 2048)
    assert paper.weights_obstacle(LLAVA, machine) is None
    monkeypatch.setattr(paper, "memory", lambda device: 1024)
    assert "too large" in str(paper.weights_obstacle(LLAVA, machine))
    assert paper.weights_obstacle("org/other", paper.Machine(download=True)) is None


@pytest.mark.slow
def test_rows_that_can_run_do_and_one_that_fails_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_split(tmp_path / "coco", "examples", split_scenes("examples")[:6])
    loads: list[str] = []

    def load(model: str, machine: paper.Machine) -> Any:
        loads.append(model)
        return loaded()

    monkeypatch.setattr(paper, "weights_obstacle", lambda model, machine: None)
    monkeypatch.setattr(paper, "load", load)
    data = dict.fromkeys(("chair", "mme", "pope"), tmp_path / "coco")
    machine = paper.Machine(data=data, split="examples", limit=6)
    # VISTA is published with another strength for yes/no questions than for captions.
    vista = row(method="vista", task="pope", settings={"strength": 0.01}, images=None, paper={"accuracy": 1.0})
    rows = [row(method="vanilla", settings={}), row(task="mme", table=3, paper={"total": 1.0}), row(), vista]
    outcomes = paper.run_rows(rows, machine, tmp_path / "out", say=lambda text: None)
    assert [outcome.skipped is None for outcome in outcomes] == [True, False, True, True]
    assert str(outcomes[1].skipped).startswith("failed: InputError")
    assert loads == [LLAVA]
    assert set(outcomes[2].ours) == {"chair_s", "chair_i"}
    text = paper.summary(outcomes)
    assert "3 of 4 rows were run." in text
    assert outcomes[3].how == "6 images only, parser robust"
    assert Result.load(tmp_path / "out" / vista.name).method("vista").settings["strength"] == 0.01
    how = "6 of 500 images, lineage pattern"
    assert f"| chair_s | {outcomes[2].ours['chair_s']:.2f} | {how} | 42.10 |" in text


# The test bed: everything about one model, from tuning to its page, and the pictures of the README


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


# The costs on random shapes: their file is a report of `rudder benchmark`


def test_costs_on_random_shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


# Recorded results that were measured with other code are named


def test_results_of_other_code_are_named(tmp_path: Path) -> None:
    now = versions()
    assert len(str(now[CODE])) == 16
    results = {"new": {"a": [{"versions": now}]}, "other": {"versions": {**now, CODE: "0" * 16}}}
    results["old"] = {"runs": [{"versions": {"rudder_hf": "0.1.0"}}]}
    for name, result in results.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(result))
    stale = stale_results(tmp_path)
    assert set(stale) == {"other.json", "old.json"}
    assert stale["old.json"] == "0.1.0 (code unknown)"
