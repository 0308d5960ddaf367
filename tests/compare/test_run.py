"""A whole comparison: killed and continued, every cell honest, options checked."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rudder_hf.benchmark.costs import CostSettings
from rudder_hf.calibrate import CalibrationOptions
from rudder_hf.compare import CompareOptions, Comparison, ComparisonData, compare, find_images, markdown
from rudder_hf.compare.variants import TUNED, untuned
from rudder_hf.evaluate.tasks import DataOptions, make_task
from rudder_hf.methods import BUDGET, Sources
from rudder_hf.metrics.errors import InputError
from rudder_hf.runtime.answers import synthetic_image
from tests.support.command import refused, rudder
from tests.support.evaluating import ended_stages, loaded

OPTIONS = CompareOptions(
    methods=("rudder-beta", "vcd", "opera", "vti", "rudder-random"),
    decodings=("greedy", "beam"),
    limit=3,
    beam_limit=2,
    pope_limit=5,
    tune_limit=2,
    tune_beam_limit=2,
    calibration=CalibrationOptions(bootstrap=20, max_new_tokens=3),
    costs=CostSettings(new_tokens=3, rounds=1, warmup=0, num_beams=2),
    batch_size=40,
    bootstrap=50,
)


class Interrupted(Exception):
    """Stands for a kill."""


def few_images(options: CompareOptions) -> ComparisonData:
    """The images of a comparison, with a few short answers to questions of each kind: OPERA takes long for each."""
    data = find_images(DataOptions(), options)
    asked = [sample for number, sample in enumerate(data.questions.samples) if number % 30 < 4]
    return replace(data, questions=replace(data.questions, samples=asked, max_new_tokens=3))


def test_a_comparison_from_beginning_to_end_with_kills(tmp_path: Path) -> None:
    data = few_images(OPTIONS)
    stages = [
        "2 of 5: tuning vcd, setting 3 of 8",
        "4 of 5: captions, beam, vanilla",
        "4 of 5: questions, beam, opera-published",
        "5 of 5: costs, beam, timed rounds",
    ]
    left = list(stages)
    reports: list[tuple[str, int, int]] = []

    def killing(text: str, done: int, total: int) -> None:
        reports.append((text, done, total))
        if left and text == left[0]:
            left.pop(0)
            raise Interrupted

    kills, comparison = 0, None
    while comparison is None:
        try:
            comparison = compare(loaded(), data, tmp_path / "c", OPTIONS, killing)
        except Interrupted:
            kills += 1
            assert not (tmp_path / "c" / "comparison.json").exists()
    assert kills == len(stages)
    assert ended_stages(reports) == [f"{number} of 5" for number in range(1, 6)]
    assert Comparison.load(tmp_path / "c" / "comparison.json") == comparison
    rows = {(row.decoding, row.method, row.variant): row for row in comparison.rows}
    assert "no greedy variant" in rows["greedy", "opera", "published"].note
    assert rows["beam", "opera", "published"].metrics
    assert "directions" in rows["greedy", "vti", "published"].note
    assert rows["greedy", "vcd", "published"].changes
    assert rows["greedy", "vcd", "published"].answers["accuracy"].unit == "percent"
    # Controls, and published settings beside tuned ones, are run under the first decoding that they allow.
    assert (("beam", "vcd", "published") in rows) == (comparison.tunings["vcd"]["chosen"] is None)
    assert ("beam", "rudder-random", "control") not in rows
    assert not rows["greedy", "vanilla", ""].changes
    assert rows["greedy", "vanilla", ""].control is None
    assert all(bool(row.control) == bool(row.changes) for row in comparison.rows)
    assert set(comparison.tunings) == {"rudder-beta", "vcd", "opera"}
    assert {len(tuning["tried"]) for tuning in comparison.tunings.values()} == {BUDGET}
    assert comparison.tunings["opera"]["decoding"]["name"] == "beam"
    text = (tmp_path / "c" / "table.md").read_text()
    assert text == markdown(comparison)
    other = replace(OPTIONS, limit=2)
    with pytest.raises(InputError, match=r"a comparison of toy with limit 3; this command has limit 2\."):
        compare(loaded(), few_images(other), tmp_path / "c", other)
    # What is complete is read, not done again.
    assert compare(loaded(), data, tmp_path / "c", OPTIONS) == comparison


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


@pytest.mark.parametrize(("seed", "limit", "pope_limit"), [(0, 500, 40), (1, 500, 40), (2, 900, 300), (3, 20, 400)])
def test_no_image_is_evaluated_that_settings_are_chosen_on(coco: Path, seed: int, limit: int, pope_limit: int) -> None:
    options = replace(OPTIONS, seed=seed, limit=limit, beam_limit=30, pope_limit=pope_limit, tune_limit=20)
    data = find_images(DataOptions(coco, seed=seed), options)
    evaluated = {s.image for task in (*data.captions.values(), data.questions) for s in task.samples}
    chosen = {sample.image for sample in data.calibration.choosing}
    assert len(chosen) == options.tune_limit
    assert not chosen & evaluated
    # The images to evaluate on are those that `rudder evaluate` draws.
    own = make_task("chair", DataOptions(coco, seed=seed, limit=limit))
    assert data.captions["greedy"].image_ids() == own.image_ids()


def test_too_few_images_for_both_are_refused(coco: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"0 images to calibrate on .* lower --limit"):
        find_images(DataOptions(coco), replace(OPTIONS, limit=1100))
    with pytest.raises(InputError, match="annotated images"):
        find_images(DataOptions(tmp_path), OPTIONS)


def test_scenes_are_evaluated_on_the_split_that_is_named() -> None:
    data = find_images(DataOptions(split="evaluation2"), OPTIONS)
    assert {task.data["split"] for task in (*data.captions.values(), data.questions)} == {"evaluation2"}
    assert data.calibration.task.data["split"] == "calibration"
    with pytest.raises(InputError, match="chosen on the split calibration"):
        find_images(DataOptions(split="calibration"), OPTIONS)


def test_questions_are_asked_with_the_published_settings_for_them() -> None:
    """VISTA is published with another strength for yes/no questions than for captions."""
    variant = untuned(["vista"], loaded(), Sources())["vista"]
    assert variant.asked("captions").settings()["strength"] == 0.17
    assert variant.asked("questions").settings()["strength"] == 0.01
    # Settings that were tuned are the same for both.
    assert replace(variant, settings=TUNED).asked("questions").settings()["strength"] == 0.17


def test_options_are_checked() -> None:
    with pytest.raises(InputError, match="no decoding"):
        CompareOptions(decodings=("greedy", "contrastive"))
    with pytest.raises(InputError, match="no method 'halc'"):
        CompareOptions(methods=("halc",))
    with pytest.raises(InputError, match="at least 1"):
        CompareOptions(limit=0)
    assert CompareOptions(methods=("vcd",)).methods == ("vanilla", "vcd")


def test_commands_refuse_what_cannot_be(tmp_path: Path) -> None:
    refused(rudder("compare", "--decodings", "contrastive", "--out", tmp_path / "a"), "greedy, beam, nucleus")
    groups = "Groups: all, rudder, contrast, peers, controls"
    refused(rudder("compare", "--methods", "halc", "--out", tmp_path / "a"), groups)
    refused(rudder("evaluate", "--methods", "opera", "--limit", 1, "--out", tmp_path / "c"), "no greedy variant")
    assert not list(tmp_path.iterdir())
