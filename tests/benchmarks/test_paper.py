"""The paper's tables: every row is there, and every row that cannot run says why."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.paper import run as paper
from rudder_hf.evaluate.result import Result
from rudder_hf.methods import NAMES
from rudder_hf.scenes.images import split_scenes
from tests.support.evaluating import loaded
from tools.train_scenes.coco import write_split

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
    write_split(tmp_path / "coco", "examples", split_scenes("examples")[:3])
    loads: list[str] = []

    def load(model: str, machine: paper.Machine) -> Any:
        loads.append(model)
        return loaded()

    monkeypatch.setattr(paper, "weights_obstacle", lambda model, machine: None)
    monkeypatch.setattr(paper, "load", load)
    machine = paper.Machine(data={"chair": tmp_path / "coco", "mme": tmp_path / "coco"}, split="examples", limit=2)
    rows = [row(method="vanilla", settings={}), row(task="mme", table=3, paper={"total": 1.0}), row()]
    outcomes = paper.run_rows(rows, machine, tmp_path / "out", say=lambda text: None)
    assert [outcome.skipped is None for outcome in outcomes] == [True, False, True]
    assert str(outcomes[1].skipped).startswith("failed: InputError")
    assert loads == [LLAVA]
    assert set(outcomes[2].ours) == {"chair_s", "chair_i"}
    text = paper.summary(outcomes)
    assert "2 of 3 rows were run." in text
    how = "2 of 500 images, lineage pattern"
    assert f"| chair_s | {outcomes[2].ours['chair_s']:.2f} | {how} | 42.10 |" in text


@pytest.mark.slow
def test_rows_have_the_published_settings_of_their_task(tmp_path: Path) -> None:
    """VISTA is published with another strength for yes/no questions than for captions."""
    write_split(tmp_path / "coco", "examples", split_scenes("examples")[:6])
    for task, paper_metrics, strength in (("chair", {"chair_s": 1.0}, 0.17), ("pope", {"accuracy": 1.0}, 0.01)):
        machine = paper.Machine(data={task: tmp_path / "coco"}, split="examples", limit=6)
        images = 500 if task == "chair" else None
        published = {"strength": strength} if task == "pope" else {}
        tested = row(task=task, method="vista", settings=published, images=images, paper=paper_metrics)
        _, how = paper.run_row(tested, machine, loaded(), tmp_path / task)
        assert how == {"chair": "6 of 500 images, lineage pattern", "pope": "6 images only, parser robust"}[task]
        assert Result.load(tmp_path / task).method("vista").settings["strength"] == strength
