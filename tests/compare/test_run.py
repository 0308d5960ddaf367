"""A whole comparison: killed and continued, one search for every method, images kept apart, options checked."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from filelock import FileLock

from rudder_hf.benchmark.costs import CostSettings
from rudder_hf.calibrate import Rule
from rudder_hf.compare import CompareOptions, ComparisonData, compare, find_comparison_data
from rudder_hf.compare.run import check_comparison_folder
from rudder_hf.evaluate.result import Result
from rudder_hf.evaluate.run import Run, RunOptions
from rudder_hf.evaluate.tables import THROUGHPUT, markdown
from rudder_hf.evaluate.tasks import DataOptions, make_task
from rudder_hf.methods import BUDGET
from rudder_hf.methods.rudder import RudderBeta
from rudder_hf.runtime.answers import synthetic_image
from rudder_hf.runtime.errors import InputError
from tests.support.evaluating import loaded

OPTIONS = CompareOptions(
    methods=("rudder-beta", "vcd", "vti", "rudder-random"),
    decodings=("greedy", "beam"),
    limit=3,
    pope_limit=5,
    tune_limit=4,
    # A model with random weights writes nothing worth a limit.
    rule=Rule("f1", recall_floor=0.0, distinct_drop=1.0, repeated_rise=1.0, confidence=0.0, bootstrap=20),
    max_new_tokens=6,
    costs=CostSettings(new_tokens=3, rounds=1, warmup=0),
    run=RunOptions(40),
    bootstrap=50,
)


class Interrupted(Exception):
    """Stands for a kill."""


def few_images(options: CompareOptions) -> ComparisonData:
    """The images of a comparison, with a few short answers to questions of each kind."""
    data = find_comparison_data(DataOptions(), options)
    if questions := data.tasks.get("pope"):
        asked = [sample for number, sample in enumerate(questions.samples) if number % 30 < 4]
        data.tasks["pope"] = replace(questions, samples=asked, max_new_tokens=3)
    return data


def test_a_comparison_from_beginning_to_end_with_kills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, out = few_images(OPTIONS), tmp_path / "c"
    left = ["scenes, greedy, vcd", "scenes, beam, vanilla", "scenes-pope, greedy, vcd"]

    def killing(text: str, done: int, total: int) -> None:
        if left and text == left[0]:
            left.pop(0)
            raise Interrupted

    results = None
    while results is None:
        try:
            results = compare(loaded(), data, out, OPTIONS, killing)
        except Interrupted:
            assert not (out / "table.md").exists()
    assert left == []
    assert list(results) == ["greedy", "beam", "pope"]
    for name, result in results.items():
        assert Result.load(out / name) == result
        rows = {row.name: row for row in result.methods}
        assert next(iter(rows)) == "vanilla"
        assert {"vcd", "rudder-beta", "rudder-random"} <= set(rows)
        assert not rows["vanilla"].differences
        assert all(row.differences for row in result.methods[1:])
        # Captions have the truncated control, costs are the same everywhere.
        assert bool(rows["vcd"].control) == (name != "pope")
        assert rows["vcd"].cost[THROUGHPUT] < rows["vanilla"].cost[THROUGHPUT] == 1.0
        # A control has the settings of what it is a control of.
        assert rows["rudder-random"].settings["alpha_max"] == rows["rudder-beta"].settings["alpha_max"]
        assert any(note.startswith("vti is left out: ") for note in result.notes)
        assert any(f"best of {BUDGET} for each method on 4 other images" in note for note in result.notes)
    # Every method had as many settings to choose from, beside vanilla and two at each of four layers for the sweep.
    assert len(Run(out / "tuning").variants()) == 1 + 2 * BUDGET + 2 * 4
    assert (out / "table.md").read_text() == markdown(list(results.values()))

    other = replace(OPTIONS, limit=2)
    with pytest.raises(InputError, match=r"holds other work \(.*samples is 3 there and 2 here"):
        compare(loaded(), few_images(other), out, other)
    # What is complete is read, not done again, and another method adds its own.
    assert {k: r.methods for k, r in compare(loaded(), data, out, OPTIONS).items()} == {
        k: r.methods for k, r in results.items()
    }
    # Also from a folder that cannot be written.
    with monkeypatch.context() as patch:
        patch.setattr("os.access", lambda *of: False)
        check_comparison_folder(out)
        assert compare(loaded(), data, out, OPTIONS).keys() == results.keys()
        with pytest.raises(InputError, match="cannot be written, and has no result of dola"):
            compare(loaded(), data, out, replace(OPTIONS, methods=("dola",)))
    # Two at once would time each other.
    with FileLock(out / ".lock"), pytest.raises(BlockingIOError, match="Another comparison works in"):
        check_comparison_folder(out)


def test_few_files_and_no_method_without_a_gain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By settings that change no answer, vanilla is left alone, and each method that is left out is named."""
    monkeypatch.setattr(RudderBeta, "searched_strengths", (1e-7, 2e-7))
    few = replace(OPTIONS, methods=("rudder-beta", "rudder-random"), decodings=("greedy",))
    result = compare(loaded(), few_images(few), tmp_path / "c", few)["greedy"]
    assert [row.name for row in result.methods] == ["vanilla"]
    left_out = [note for note in result.notes if "left out" in note]
    assert left_out == [
        "rudder-beta is left out: no setting within the limits is better than vanilla",
        "rudder-random is left out: rudder-beta, which it is a control of, is",
    ]
    files = [path for path in (tmp_path / "c").rglob("*") if path.is_file() and not path.name.endswith(".lock")]
    assert len(files) <= 12, files


def test_layers_are_swept_only_for_methods_that_have_one(tmp_path: Path) -> None:
    few = replace(OPTIONS, methods=("vcd",), decodings=("greedy",), pope_limit=0)
    result = compare(loaded(), few_images(few), tmp_path / "c", few)["greedy"]
    assert len(Run(tmp_path / "c" / "tuning").variants()) == 1 + BUDGET
    assert not any("layers" in note for note in result.notes)


@pytest.fixture(scope="module")
def coco(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """More images than twice an evaluation, whose files are never opened."""
    folder = tmp_path_factory.mktemp("coco")
    images = [{"id": number, "file_name": f"{number}.jpg"} for number in range(1100)]
    things = [
        {"image_id": image["id"], "category_id": category}
        for image in images
        for category in (1, 2, 3 + image["id"] % 4)
    ]
    names = ["dog", "cat", "bench", "car", "person", "bus"]
    categories = [{"id": number + 1, "name": name} for number, name in enumerate(names)]
    (folder / "annotations").mkdir()
    (folder / "val2014").mkdir()
    content = {"images": images, "annotations": things, "categories": categories}
    (folder / "annotations" / "instances_val2014.json").write_text(json.dumps(content))
    picture = synthetic_image(0, size=8)
    picture.save(folder / "val2014" / "0.jpg")
    for image in images[1:]:
        (folder / "val2014" / str(image["file_name"])).hardlink_to(folder / "val2014" / "0.jpg")
    return folder


@pytest.mark.parametrize(("seed", "limit", "pope_limit"), [(1, 500, 40), (3, 20, 400)])
def test_no_image_is_evaluated_that_settings_are_chosen_on(coco: Path, seed: int, limit: int, pope_limit: int) -> None:
    options = replace(OPTIONS, limit=limit, pope_limit=pope_limit, tune_limit=20, run=RunOptions(seed=seed))
    data = find_comparison_data(DataOptions(coco, seed=seed), options)
    evaluated = {s.image for task in data.tasks.values() for s in task.samples}
    chosen = {sample.image for sample in data.calibration.choosing.samples}
    assert len(chosen) == options.tune_limit
    assert not chosen & evaluated
    # The images to evaluate on are those that `rudder evaluate` draws.
    own = make_task("chair", DataOptions(coco, seed=seed, limit=limit))
    assert [s.id for s in data.tasks["greedy"].samples] == [s.id for s in own.samples]


def test_too_few_images_for_both_are_refused(coco: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"0 images to calibrate on .* lower --limit"):
        find_comparison_data(DataOptions(coco), replace(OPTIONS, limit=1100))
    with pytest.raises(InputError, match=r"no instances_\*\.json"):
        find_comparison_data(DataOptions(tmp_path), OPTIONS)


def test_scenes_are_evaluated_on_the_split_that_is_named() -> None:
    data = find_comparison_data(DataOptions(split="evaluation2"), OPTIONS)
    assert {task.data["split"] for task in data.tasks.values()} == {"evaluation2"}
    assert data.calibration.choosing.data["split"] == "calibration"
    with pytest.raises(InputError, match="chosen on the split calibration"):
        find_comparison_data(DataOptions(split="calibration"), OPTIONS)


def test_options_are_checked() -> None:
    with pytest.raises(InputError, match="at least 1"):
        CompareOptions(limit=0)
    assert CompareOptions(methods=("vcd",)).methods == ("vanilla", "vcd")
    assert CompareOptions().rule == Rule()  # what `rudder calibrate` chooses by
