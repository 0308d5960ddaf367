"""Results: what they say, scoring again, comparing, and tables in the paper's form."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path

import pytest

from rudder_hf import RudderConfig
from rudder_hf.evaluate import tables
from rudder_hf.evaluate.evaluate import save_result
from rudder_hf.evaluate.result import FORMAT, Result
from rudder_hf.evaluate.run import Run
from rudder_hf.evaluate.score import compare_runs, score_captions
from rudder_hf.evaluate.scoring import Scoring, score_answers
from rudder_hf.evaluate.tables import paper_rows, paper_value
from rudder_hf.evaluate.tasks import DataOptions, Sample, make_task
from rudder_hf.methods import NAMES, get
from rudder_hf.metrics.chair import CAPTION_COLUMNS
from rudder_hf.metrics.errors import InputError
from rudder_hf.scenes.coco import write_split
from rudder_hf.scenes.images import split_scenes
from tests.support.evaluating import SCORING, SETTINGS, damage, loaded, run_task

LLAVA = "llava-hf/llava-1.5-7b-hf"
CHAIR_CAPTIONS = ["A dog and a cat.", "There is a bus.", "Nothing is here.", "A person with a dog. A dog."]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results") / "run"
    run_task(folder, batch_size=5)
    return folder


def test_a_result_says_how_it_came_about(run: Path) -> None:
    record = json.loads((run / "result.json").read_text())
    assert record["format"] == FORMAT
    assert record["task"], record["kind"] == ("scenes", "chair")
    assert record["model"]["revision"] == "test"
    assert record["decoding"] == {"name": "greedy", "max_new_tokens": 6}
    assert record["scoring"] == {"lineage": "pattern", "bootstrap": 200}
    assert record["prompt"] == "Please help me describe the image in detail"
    assert len(record["image_ids"]) == record["samples"] == 5
    assert record["image_ids"] == sorted(record["image_ids"])
    launch = record["run"]["launches"][0]
    assert launch["command"] == "test"
    assert {"torch", "transformers", "rudder_hf"} <= set(launch["versions"])
    assert "cpu" in launch["hardware"]
    assert record["run"]["seconds"] > 0
    vanilla, steered = record["methods"]
    assert (vanilla["name"], steered["name"]) == ("vanilla", "rudder-add")
    assert steered["settings"]["alpha_max"] == 12.0
    assert vanilla["metrics"]["chair_s"]["direction"] == "lower"
    assert vanilla["metrics"]["recall"]["direction"] == "higher"
    # Fluency is always there.
    assert {"repeated_sentences", "broken_sentences", "log_likelihood"} <= set(vanilla["metrics"])
    assert vanilla["differences"] == {}
    assert set(steered["differences"]) == set(vanilla["metrics"])
    for metric in vanilla["metrics"].values():
        assert metric["low"] <= metric["value"] <= metric["high"]


def test_a_result_is_read_back_as_it_was(run: Path, tmp_path: Path) -> None:
    result = Result.load(run)
    assert result.to_json() == (run / "result.json").read_text()
    for content, word in (("{}", FORMAT), ("[", "is damaged"), (json.dumps({"format": FORMAT}), "lacks")):
        (tmp_path / "other.json").write_text(content)
        with pytest.raises(ValueError, match=word):
            Result.load(tmp_path / "other.json")
    with pytest.raises(ValueError, match="no method 'vcd'"):
        result.method("vcd")


def test_scoring_again_needs_neither_model_nor_data(run: Path, tmp_path: Path) -> None:
    result = Result.load(run)
    again = Run(run).result(SCORING)
    assert (again.methods, again.image_ids) == (result.methods, result.image_ids)
    strict = Run(run).result(Scoring(lineage="strict", bootstrap=200))
    assert strict.scoring["lineage"] == "strict"
    assert save_result(strict, tmp_path) == strict
    assert Result.load(tmp_path) == strict
    assert Result.load(run) == result
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
        ("result.json", ["methods"], {}, "methods is {}, but has to be a list"),
        ("result.json", ["methods", 0], None, r"methods\[0\] is null, but has to be an object"),
        ("result.json", ["methods", 0, "metrics", "chair_s"], {}, r"metrics\.chair_s lacks label, value"),
        ("result.json", ["methods", 1, "metrics", "recall", "value"], "high", 'value is "high", but has to be a num'),
        ("result.json", ["colour"], 3, "has colour, which is not known"),
        ("plan.json", ["plan"], [], "plan"),
        ("samples.jsonl", [], None, "it is null, but has to be an object"),
        ("samples.jsonl", ["image_id"], ..., "lacks image_id"),
        ("answers/0.jsonl", [], 3, "it is 3, but has to be an object"),
        ("answers/0.jsonl", ["rows"], ..., "lacks rows"),
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


@pytest.mark.parametrize("name", ["rudder-evaluation-2", "rudder-comparison-1", None])
def test_results_of_earlier_versions_are_refused_in_one_sentence(tmp_path: Path, name: str | None) -> None:
    (tmp_path / "result.json").write_text(json.dumps({"format": name, "methods": []}))
    with pytest.raises(InputError, match=rf"result\.json is not a result of this version of rudder \({FORMAT}\)\.$"):
        Result.load(tmp_path)


def test_comparing_within_a_run_is_what_the_run_says(run: Path) -> None:
    result = Result.load(run)
    (pair,) = compare_runs(f"{run}:vanilla", f"{run}:rudder-add", SCORING)
    assert (pair.left, pair.right) == (f"{run}:vanilla", f"{run}:rudder-add")
    assert pair.differences == result.method("rudder-add").differences
    assert pair.control == result.method("rudder-add").control
    # Two runs: methods that both have are compared each with itself, and equal ones do not differ.
    for same in compare_runs(str(run), str(run), SCORING):
        assert same.control is not None
        for differences in (same.differences, same.control.differences):
            assert all((d.value, d.low, d.high, d.p_value) == (0, 0, 0, 1) for d in differences.values())


def test_comparing_different_things_is_refused(run: Path, tmp_path: Path) -> None:
    other = make_task("scenes", DataOptions(limit=4, seed=3))
    run_task(tmp_path / "other", other, methods=[get("vanilla")], batch_size=4)
    with pytest.raises(ValueError, match="same images"):
        compare_runs(str(run), str(tmp_path / "other"), SCORING)
    pope = make_task("scenes-pope", DataOptions(limit=4))
    run_task(tmp_path / "pope", pope, methods=[get("vanilla")], batch_size=12)
    with pytest.raises(ValueError, match="one kind"):
        compare_runs(str(run), str(tmp_path / "pope"), SCORING)
    for text, word in (
        (f"{run}:vcd", "no method 'vcd'"),
        ("nowhere", "no results folder"),
        (str(tmp_path), "has no plan.json"),
    ):
        with pytest.raises(ValueError, match=word):
            compare_runs(text, str(run), SCORING)
    # POPE on scenes: each split by itself and their plain mean.
    scored = Result.load(tmp_path / "pope").methods[0].metrics
    mean = sum(scored[f"{split}/accuracy"].value for split in ("random", "popular", "adversarial")) / 3
    assert scored["accuracy"].value == pytest.approx(mean)


def test_mme_runs_with_images_from_its_folder(tmp_path: Path) -> None:
    for subtask in ("existence", "code_reasoning"):
        (tmp_path / "mme" / subtask).mkdir(parents=True)
        for number in range(2):
            from rudder_hf.runtime.answers import synthetic_image

            synthetic_image(number, size=40).save(tmp_path / "mme" / subtask / f"{number}.png")
            lines = [
                f"Is it a {name}? Please answer yes or no.\t{label}" for name, label in (("dog", "Yes"), ("cat", "No"))
            ]
            (tmp_path / "mme" / subtask / f"{number}.txt").write_text("\n".join(lines) + "\n")
    task = make_task("mme", DataOptions(data=tmp_path / "mme"))
    assert len(task.samples) == 8
    assert "12 subtasks are missing" in task.notes[0]
    result = run_task(tmp_path / "run", task, methods=[get("vanilla")], batch_size=8)
    assert result is not None
    metrics = result.methods[0].metrics
    assert {"total", "perception", "cognition", "existence", "code_reasoning"} <= set(metrics)
    assert len(result.image_ids) == 4


def test_answers_and_reference_captions_are_read_in_the_same_lineage() -> None:
    sample = Sample("1", 1, "1.jpg", "describe", {"objects": ["person"], "captions": ["Two men wear ties."]})
    row = {"answer": "A person wears ties."}
    for lineage, found in (("pattern", 1), ("strict", 2)):
        totals = score_answers("chair", "chair", [sample], [row], Scoring(lineage)).counts.total()
        assert [int(totals[name]) for name in ("truth", "found", "hallucinated_mentions")] == [found, found, 0]


def test_captions_of_other_programs_are_scored(tmp_path: Path) -> None:
    scenes = split_scenes("examples")[:4]
    write_split(tmp_path, "examples", scenes)
    file = tmp_path / "captions.jsonl"
    rows = [{"image_id": str(s.seed), "caption": text} for s, text in zip(scenes, CHAIR_CAPTIONS, strict=True)]
    file.write_text("\n".join(json.dumps(row) for row in rows))
    instances = tmp_path / "annotations" / "instances_examples.json"
    result = score_captions(file, instances, None, SCORING)
    assert result.methods[0].counts["captions"] == 4
    assert result.methods[0].counts["mentions"] == 5
    assert "log_likelihood" not in result.methods[0].metrics
    file.write_text("\n".join(json.dumps(row) for row in [*rows, rows[0]]))
    with pytest.raises(ValueError, match="several captions"):
        score_captions(file, instances, None, SCORING)
    file.write_text(json.dumps([{"image_id": 1, "caption": "A dog."}]))
    with pytest.raises(ValueError, match="no annotation: 1"):
        score_captions(file, instances, None, SCORING)


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
    assert "Yes (change)" in tables.paper_table([result]).markdown()
    (said,) = [line for line in tables.summary(result) if "nothing can change" in line]
    assert said.startswith("rudder-beta, rudder-add: nothing can change, because a yes or no is the first token")


def as_llava(run: Path, decoding: str = "greedy") -> Result:
    """The tiny model's result under the name of a model of the paper."""
    result = Result.load(run)
    return dataclasses.replace(
        result, model={**result.model, "name": LLAVA}, decoding={"name": decoding, "max_new_tokens": 512}
    )


def test_papers_numbers_stand_beside_ours_where_the_model_is_the_same(run: Path) -> None:
    results = [as_llava(run), as_llava(run, "beam")]
    table = tables.paper_table(results).markdown()
    value = results[0].method("rudder-add").metrics["chair_s"].value
    assert f"| Greedy | rudder-add | {value:.1f} (42.1) |" in table
    assert f"| Beam Search | rudder-add | {value:.1f} (35.2) |" in table
    assert "ours (paper)" in table.splitlines()[0]
    other = tables.paper_table([Result.load(run)]).markdown()
    assert "(42.1)" not in other
    assert "(-)" in other
    assert "paper" not in tables.markdown(Result.load(run))
    assert "(42.1)" in tables.markdown(as_llava(run))


def test_latex_has_as_many_cells_in_every_row(run: Path) -> None:
    results = [as_llava(run), as_llava(run, "nucleus"), Result.load(run)]
    text = tables.paper_latex(results)
    columns = len(re.search(r"begin\{tabular\}\{(\w+)\}", text).group(1))  # type: ignore[union-attr]
    assert columns == 2 + 2 * len(CAPTION_COLUMNS)
    body = [line for line in text.splitlines() if line.endswith(r"\\")]
    for line in body:
        spans = sum(int(n) - 1 for n in re.findall(r"multicolumn\{(\d)\}", line))
        assert line.count("&") + 1 + spans == columns
    assert text.count(r"\midrule") == 2
    assert r"CHAIR$_S$ $\downarrow$" in text
    assert " (42.1)" in text
    assert text.count("{") == text.count("}")


def test_tables_do_not_mix_what_cannot_be_compared(run: Path) -> None:
    with pytest.raises(ValueError, match="different kinds"):
        tables.paper_table([as_llava(run), dataclasses.replace(as_llava(run), scoring={"lineage": "wordnet"})])
    with pytest.raises(ValueError, match="same cell"):
        tables.paper_table([as_llava(run), as_llava(run)])


def test_paper_numbers() -> None:
    assert paper_value("chair", LLAVA, "greedy", "rudder-beta", "chair_s") == 39.5
    assert paper_value("chair", "llava-1.5-7b", "nucleus", "vanilla", "chair_i") == 16.0
    assert paper_value("pope", "Salesforce/instructblip-vicuna-7b", "beam", "rudder-add", "f1") == 84.75
    assert paper_value("mme", "HuggingFaceM4/idefics2-8b", "greedy", "vanilla", "total") == 1518.84
    assert paper_value("chair", "Qwen/Qwen2.5-VL-7B-Instruct", "greedy", "rudder-beta", "chair_i") == 7.0
    assert paper_value("chair", "someone/else", "greedy", "vanilla", "chair_s") is None
    assert paper_value("chair", "Salesforce/instructblip-vicuna-7b", "beam", "rudder-add", "f1") is None
    # Every cell once.
    cells = [(row.table, row.model, row.decoding, row.method, *row.metrics) for row in paper_rows()]
    assert len(set(cells)) == len(cells)


def test_paper_numbers_are_those_of_the_text() -> None:
    source = Path(__file__).parent.parent.parent.parent / "shared" / "paper" / "rudder_icml2026.tex"
    if not source.exists():
        pytest.skip("the paper's source is not here")
    printed = set(re.findall(r"\d+\.\d+", source.read_text()))
    for row in paper_rows():
        for value in row.metrics.values():
            assert {f"{value:.1f}", f"{value:.2f}"} & printed, row
