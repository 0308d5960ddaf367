"""Results: what they say, scoring again, comparing, and their tables."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path

import pytest

from rudder_hf import RudderConfig
from rudder_hf.evaluate import tables
from rudder_hf.evaluate.result import FORMAT, Result, Scoring, score_answers
from rudder_hf.evaluate.run import Run
from rudder_hf.evaluate.tables import save_result, score_runs
from rudder_hf.evaluate.tasks import DataOptions, Sample, make_task
from rudder_hf.methods import NAMES, get
from rudder_hf.runtime.answers import synthetic_image
from rudder_hf.runtime.errors import InputError
from tests.support.evaluating import SCORING, SETTINGS, damage, loaded, run_task


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results") / "run"
    run_task(folder, batch_size=5)
    return folder


def test_a_result_says_how_it_came_about(run: Path) -> None:
    record = json.loads((run / "result.json").read_text())
    assert (record["task"], record["kind"], record["format"]) == ("scenes", "chair", FORMAT)
    assert record["decoding"] == {"name": "greedy", "max_new_tokens": 6}
    assert record["scoring"] == {"lineage": "pattern", "bootstrap": 200}
    assert len(record["image_ids"]) == record["samples"] == 5
    launch = record["run"]["launches"][0]
    assert launch["command"] == "test"
    assert {"torch", "transformers", "rudder_hf"} <= set(launch["versions"])
    vanilla, steered = record["methods"]
    assert (vanilla["name"], steered["name"]) == ("vanilla", "rudder-add")
    assert steered["settings"]["alpha_max"] == 12.0
    # Fluency is always there.
    assert {"repeated_sentences", "broken_sentences", "log_likelihood"} <= set(vanilla["metrics"])
    assert vanilla["differences"] == {}
    assert set(steered["differences"]) == set(vanilla["metrics"])
    assert all(metric["low"] <= metric["value"] <= metric["high"] for metric in vanilla["metrics"].values())


def test_a_result_is_read_back_as_it_was(run: Path, tmp_path: Path) -> None:
    result = Result.load(run)
    assert result.to_json() == (run / "result.json").read_text()
    earlier, empty = ({"format": name} for name in ("rudder-evaluation-2", FORMAT))
    for content, word in (
        ("{}", FORMAT),
        (json.dumps(earlier), FORMAT),
        ("[", "damaged"),
        (json.dumps(empty), "lacks"),
    ):
        (tmp_path / "other.json").write_text(content)
        with pytest.raises(ValueError, match=word):
            Result.load(tmp_path / "other.json")
    with pytest.raises(ValueError, match="no method 'vcd'"):
        result.method("vcd")


def test_scoring_again_needs_neither_model_nor_data(run: Path) -> None:
    result = Result.load(run)
    again = Run(run).result(SCORING)
    assert (again.methods, again.image_ids) == (result.methods, result.image_ids)
    # The same numbers again leave the file as it was.
    before = (run / "result.json").stat().st_mtime_ns
    assert save_result(again, run) == result
    assert (run / "result.json").stat().st_mtime_ns == before


def test_answers_that_are_missing_are_counted(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    file = tmp_path / "run" / "answers" / "0.jsonl"
    damage(file, ["rows", 0], ...)
    asked = Run(run).variants()
    with pytest.raises(InputError, match="1 of 5 answers of 'rudder-add' are missing"):
        Run(tmp_path / "run").result(SCORING, asked)
    assert [variant.label for variant in Run(tmp_path / "run").variants()] == ["vanilla"]


@pytest.mark.parametrize(
    ("file", "place", "value", "words"),
    [
        ("result.json", ["methods", 0, "metrics", "chair_s"], {}, r"metrics\.chair_s lacks label, value"),
        ("samples.jsonl", ["image_id"], ..., "lacks image_id"),
        ("answers/0.jsonl", ["key"], 3, "key is 3, but has to be a text"),
    ],
)
def test_damaged_files_are_named(
    run: Path, tmp_path: Path, file: str, place: list[str | int], value: object, words: str
) -> None:
    """Whatever reads the folder: its result, scoring it again, or comparing it."""
    shutil.copytree(run, tmp_path / "run")
    damage(tmp_path / "run" / file, place, value)
    with pytest.raises(InputError, match=rf"{re.escape(file)}.*damaged.*{words}"):
        Result.load(tmp_path / "run") if file == "result.json" else Run(tmp_path / "run").result(SCORING)


def test_methods_side_by_side_are_what_their_runs_say(run: Path, tmp_path: Path) -> None:
    """Of one folder or of two: the values, the differences and the control are those of the result."""
    result = Result.load(run)
    shutil.copytree(run, tmp_path / "again")
    for other in (run, tmp_path / "again"):
        vanilla, steered = score_runs([f"{run}:vanilla", f"{other}:rudder-add"], SCORING).methods
        assert (vanilla.name, steered.name) == (f"{run}:vanilla", f"{other}:rudder-add")
        assert dataclasses.replace(vanilla, name="vanilla") == result.method("vanilla")
        assert dataclasses.replace(steered, name="rudder-add") == result.method("rudder-add")
    # All methods of both folders; equal ones do not differ.
    both = score_runs([str(run), str(tmp_path / "again")], SCORING)
    assert len(both.methods) == 4
    assert all((d.value, d.low, d.high, d.p_value) == (0, 0, 0, 1) for d in both.methods[2].differences.values())
    assert score_runs([f"{run}:vanilla"], SCORING).methods == [result.method("vanilla")]


def test_runs_of_different_things_are_refused(run: Path, tmp_path: Path) -> None:
    other = make_task("scenes", DataOptions(limit=4, seed=3))
    run_task(tmp_path / "other", other, methods=[get("vanilla")], batch_size=4)
    with pytest.raises(ValueError, match="same images"):
        score_runs([str(run), str(tmp_path / "other")], SCORING)
    pope = make_task("scenes-pope", DataOptions(limit=4))
    run_task(tmp_path / "pope", pope, methods=[get("vanilla")], batch_size=12)
    with pytest.raises(ValueError, match="one kind"):
        score_runs([str(run), str(tmp_path / "pope")], SCORING)
    for text, word in (
        (f"{run}:vcd", "no method 'vcd'"),
        ("nowhere", "no results folder"),
        (str(tmp_path), "has no plan.json"),
    ):
        with pytest.raises(ValueError, match=word):
            score_runs([text], SCORING)
    # POPE on scenes: each split by itself and their plain mean.
    scored = Result.load(tmp_path / "pope").methods[0].metrics
    mean = sum(scored[f"{split}/accuracy"].value for split in ("random", "popular", "adversarial")) / 3
    assert scored["accuracy"].value == pytest.approx(mean)


def test_mme_runs_with_images_from_its_folder(tmp_path: Path) -> None:
    for subtask in ("existence", "code_reasoning"):
        (tmp_path / "mme" / subtask).mkdir(parents=True)
        for number in range(2):
            synthetic_image(number, size=40).save(tmp_path / "mme" / subtask / f"{number}.png")
            (tmp_path / "mme" / subtask / f"{number}.txt").write_text("Is it a dog?\tYes\nIs it a cat?\tNo\n")
    task = make_task("mme", DataOptions(data=tmp_path / "mme"))
    assert len(task.samples) == 8
    assert "12 subtasks are missing" in task.notes[0]
    result = run_task(tmp_path / "run", task, methods=[get("vanilla")], batch_size=8)
    assert result is not None
    metrics = result.methods[0].metrics
    assert {"total", "perception", "cognition", "existence", "code_reasoning"} <= set(metrics)
    assert len(result.image_ids) == 4
    rows = [{"answer": answer} for answer in ["Yes", "No", *["What?"] * 6]]
    scored = score_answers("mme", "mme", task.samples, rows, SCORING)
    assert "6 of 8 answers are neither yes nor no: they count as wrong" in scored.notes
    assert scored.counts.total()["existence/right"] == 2


def test_answers_and_reference_captions_are_read_in_the_same_lineage() -> None:
    sample = Sample("1", 1, "1.jpg", "describe", {"objects": ["person"], "captions": ["Two men wear ties."]})
    row = {"answer": "A person wears ties."}
    for lineage, found in (("pattern", 1), ("strict", 2)):
        totals = score_answers("chair", "chair", [sample], [row], Scoring(lineage)).counts.total()
        assert [int(totals[name]) for name in ("truth", "found", "hallucinated_mentions")] == [found, found, 0]


# Tables


def many(run: Path, count: int) -> Result:
    """The result as if it had more methods, with the longest numbers that there can be."""
    result = Result.load(run)
    vanilla, steered = result.methods
    longest = {
        name: dataclasses.replace(change, value=-100.0, low=-100.0, high=-90.0, p_value=0.001)
        for name, change in steered.differences.items()
    }
    full = {name: dataclasses.replace(metric, value=100.0) for name, metric in steered.metrics.items()}
    others = [dataclasses.replace(steered, name=name, differences=longest, metrics=full) for name in NAMES[1:count]]
    return dataclasses.replace(result, methods=[vanilla, *others])


@pytest.mark.parametrize("count", [3, 8, 20])
def test_a_terminal_of_80_columns_shows_every_cell(run: Path, count: int) -> None:
    result = many(run, count)
    table = tables.short_table(result)
    assert [name.split(" ")[0] for name in table.headings] == ["", "CHAIR_S", "CHAIR_I", "Recall", "F1", "Len"]
    lines = table.text(80).splitlines()
    assert max(map(len, lines)) <= 80
    words = " ".join(lines).split()
    assert words.count("-100.0*") == 5 * (count - 1)
    assert {method.name for method in result.methods} <= set(words)
    assert len(lines) < 2 * (count + 4)


def test_a_terminal_shows_five_columns_with_throughput_where_it_was_measured(run: Path) -> None:
    result = Result.load(run)
    costs = [dataclasses.replace(method, cost={"throughput": 0.5}) for method in result.methods]
    table = tables.short_table(dataclasses.replace(result, methods=costs))
    assert [heading.split(" ")[0] for heading in table.headings[1:]] == [
        "CHAIR_S", "CHAIR_I", "Recall", "F1", "Throughput",
    ]  # fmt: skip
    assert [row[-1] for row in table.rows] == ["0.50", "0.50"]


def test_pope_has_the_share_of_yes_and_says_why_nothing_can_change(tmp_path: Path) -> None:
    pope, config = make_task("scenes-pope", DataOptions(limit=2)), loaded().settings[""]
    methods = [get(name, config=config) for name in ("rudder-beta", "rudder-add")]
    first = get("rudder-add", config=RudderConfig(**{**SETTINGS, "steer_first_token": True, "alpha_max": 900.0}))
    result = run_task(tmp_path, pope, [get("vanilla"), *methods, first], batch_size=12)
    assert result is not None
    assert "Yes" in tables.short_table(result).headings
    (said,) = [line for line in tables.summary(result) if "nothing can change" in line]
    assert said.startswith("rudder-beta, rudder-add: nothing can change, because a yes or no is the first token")
