"""`rudder evaluate` and `score`: from images to a table, and clear words for bad input."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rudder_hf.evaluate.result import Result
from rudder_hf.evaluate.run import Run
from rudder_hf.methods import METHODS
from rudder_hf.scenes.images import split_scenes
from tests.support import command
from tests.support.command import refused
from tests.support.evaluating import texts
from tools.train_scenes.coco import write_split

QUICK = ("--max-new-tokens", "4", "--batch-size", "6")
SETTINGS = ("--set", "layer=2", "--set", "alpha_max=12")


def rudder(*arguments: object) -> Any:
    return command.rudder("evaluate", *arguments)


@pytest.fixture(scope="module")
def coco(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six images in COCO's layout."""
    folder = tmp_path_factory.mktemp("coco")
    write_split(folder, "examples", split_scenes("examples")[:6])
    return folder


@pytest.fixture(scope="module")
def chair(tiny_model: Path, coco: Path) -> tuple[object, ...]:
    """CHAIR on COCO files, two methods."""
    files = ("--model", tiny_model, "--task", "chair", "--data", coco)
    return *files, "--methods", "vanilla,rudder-beta", *SETTINGS, "--set", "rudder-beta.k=2", *QUICK


@pytest.fixture(scope="module")
def done(chair: tuple[object, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out") / "chair"
    result = rudder(*chair, "--out", out)
    assert result.exit_code == 0, result.output
    assert "CHAIR_S" in result.stdout
    assert f"{out / 'table.md'}" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("Next: rudder score")
    return out


def test_chair_on_coco_files(done: Path, coco: Path) -> None:
    result = Result.load(done)
    instances = json.loads((coco / "annotations" / "instances_examples.json").read_text())
    assert result.image_ids == sorted(image["id"] for image in instances["images"])
    assert result.data["captions"] == "captions_examples.json"
    assert result.method("rudder-beta").settings["k"] == 2
    assert result.run["launches"][0]["command"].startswith("rudder")
    assert (done / "table.md").read_text().startswith("**chair (lineage pattern)")


def test_limit_and_seed_choose_images(tiny_model: Path, coco: Path, tmp_path: Path) -> None:
    base = ("--model", tiny_model, "--task", "chair", "--data", coco, "--methods", "vanilla", *QUICK)
    for name in ("a", "b"):
        assert rudder(*base, "--limit", 3, "--seed", 7, "--out", tmp_path / name).exit_code == 0
    assert Result.load(tmp_path / "a").image_ids == Result.load(tmp_path / "b").image_ids


def test_controls_from_other_images_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    """Their directions come from a bank of the run's images; the last batch may hold a single one."""
    found, controls = [], ("rudder-shuffled", "rudder-mean", "contrast-shuffled")
    far = ("--set", "contrast-shuffled.contrast=4")
    for size in (2, 3):
        options = ("--max-new-tokens", 24, "--batch-size", size, "--limit", 5)
        strong = ("--methods", ",".join(["vanilla", *controls]), "--set", "alpha_max=300", *far)
        run = rudder("--model", "embedded", *options, *strong, "--out", tmp_path / str(size))
        assert run.exit_code == 0, run.output
        found.append({(method, sample): answer for method, sample, answer in texts(tmp_path / str(size))})
    assert found[0] == found[1]
    for control in controls:
        assert any(found[0][control, name] != text for (method, name), text in found[0].items() if method == "vanilla")


def test_pope_from_annotations_and_from_files(tiny_model: Path, coco: Path, tmp_path: Path) -> None:
    base = ("--model", tiny_model, "--task", "pope", "--methods", "vanilla", "--prompt", "{question} yes?", *QUICK)
    built = rudder(*base, "--data", coco, "--out", tmp_path / "built", "--parser", "official")
    assert built.exit_code == 0, built.output
    result = Result.load(tmp_path / "built")
    assert result.scoring == {"parser": "official", "bootstrap": 10_000}
    assert {"accuracy", "f1", "random/accuracy", "adversarial/f1"} <= set(result.methods[0].metrics)
    questions = [json.loads(line) for line in (tmp_path / "built" / "samples.jsonl").read_text().splitlines()]
    assert questions[0]["prompt"] == f"{questions[0]['reference']['question']} yes?"
    # The same questions from files in the published form give the same answers.
    (tmp_path / "files").mkdir()
    for split in ("random", "popular", "adversarial"):
        asked = [(q["image"], q["reference"]) for q in questions if q["reference"]["split"] == split]
        rows = [
            {"question_id": n, "image": image, "text": reference["question"], "label": reference["label"]}
            for n, (image, reference) in enumerate(asked)
        ]
        (tmp_path / "files" / f"coco_pope_{split}.json").write_text("\n".join(map(json.dumps, rows)))
    refused(rudder(*base, "--data", tmp_path / "files", "--out", tmp_path / "c"), "--images")
    read = rudder(*base, "--data", tmp_path / "files", "--images", coco / "examples", "--out", tmp_path / "read")
    assert read.exit_code == 0, read.output
    answers = [[answer for *_, answer in texts(tmp_path / name)] for name in ("built", "read")]
    assert answers[0] == answers[1]
    file = tmp_path / "files" / "coco_pope_random.json"
    file.write_text("\n".join(file.read_text().splitlines()[:-2]))
    refused(
        rudder(*base, "--data", tmp_path / "files", "--images", coco / "examples", "--out", tmp_path / "d"), "2910"
    )


def test_unreadable_images_are_refused_before_the_model_is_loaded(tmp_path: Path) -> None:
    write_split(tmp_path, "examples", split_scenes("examples")[:4])
    first, second, third, _ = sorted((tmp_path / "examples").iterdir())
    first.write_bytes(first.read_bytes()[:200])
    second.unlink()
    third.write_text("no image")
    base = ("--model", tmp_path / "none", "--task", "chair", "--data", tmp_path)
    refused(rudder(*base, "--out", tmp_path / "a"), "3 of 4 images cannot be read")


def test_scores_comparison_and_tables(done: Path, tmp_path: Path) -> None:
    before = Result.load(done)
    again = command.rudder("score", done, "--lineage", "strict", "--out", tmp_path / "strict")
    assert again.exit_code == 0, again.output
    assert "lineage strict" in again.stdout
    assert Result.load(tmp_path / "strict").scoring["lineage"] == "strict"
    assert Result.load(done) == before
    both = (f"{done}:vanilla", f"{done}:rudder-beta")
    compared = command.rudder("score", *both)
    assert compared.exit_code == 0, compared.output
    assert "Next: all metrics, intervals and p-values: the same command with --table" in compared.stdout
    everything = command.rudder("score", *both, "--table").stdout
    assert f"{done}:rudder-beta - {done}:vanilla" in everything
    assert ", p " in everything
    assert f"{done}:rudder-beta - vanilla " in everything
    assert "whose recall is not higher: " in everything or "cut to the same recall: " in everything
    latex = (tmp_path / "strict" / "table.tex").read_text()
    assert latex.startswith("% chair (lineage strict): ")
    assert latex.count(r"\begin{tabular}{lccccc}") == 1


def test_settings_are_needed_and_checked(tiny_model: Path, tmp_path: Path) -> None:
    base = ("--model", tiny_model, "--limit", 2, *QUICK, "--out", tmp_path / "x")
    refused(rudder(*base), "no RUDDER settings")
    refused(rudder(*base, *SETTINGS, "--set", "k=-1"), "`k` is -1")
    refused(rudder(*base, *SETTINGS, "--set", "vanish=1"), "vanish")
    refused(rudder(*base, "--methods", "vanilla", "--set", "rudder-add.k=1"), "not one of the methods")


def test_a_method_is_added_to_a_finished_run(chair: tuple[object, ...], done: Path, tmp_path: Path) -> None:
    shutil.copytree(done, tmp_path / "run")
    methods = chair.index("vanilla,rudder-beta")
    added = rudder(*chair[:methods], "rudder-beta,peers", *chair[methods + 1 :], "--out", tmp_path / "run")
    assert added.exit_code == 0, added.output
    assert "vti is left out: " in added.stdout
    names = [method.name for method in Result.load(tmp_path / "run").methods]
    assert names[:2] == ["vanilla", "rudder-beta"]
    assert "dola" in names
    assert "vti" not in names
    before, after = (Run(folder).answers() for folder in (done, tmp_path / "run"))
    assert before.items() <= after.items()


CODE = """
import json, sys
from rudder_hf.cli.main import app
try:
    app()
except SystemExit as left:
    assert not left.code, left.code
print(json.dumps(sorted(sys.modules)))
"""


@pytest.mark.slow
def test_only_what_was_asked_for_is_imported(tmp_path: Path) -> None:
    """No trainers, no method that was not asked for, no other command."""
    typed = ("evaluate", "--methods", "vanilla,rudder-beta", "--limit", "2", "--device", "cpu", *QUICK)
    process = command.started("-c", CODE, *typed, "--out", tmp_path / "out", module=False)
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 0, printed[-2000:]
    assert (tmp_path / "out" / "result.json").exists()
    loaded = set(json.loads(printed.splitlines()[-1]))
    folders = {name.split(".")[1] for name in loaded if name.startswith("rudder_hf.")}
    assert not folders & {"benchmark", "calibrate", "compare", "analyze", "demo", "integrations"}
    methods = {place.split(":")[0] for place in METHODS.values()}
    assert methods & {name.removeprefix("rudder_hf.methods.") for name in loaded} == {"rudder"}
    assert not loaded & {"tools", "vllm", "matplotlib", "nltk", "gradio"}
