"""`rudder generate`: the embedded model, real images, marks on absent objects, exit codes."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor
from typer.testing import Result

from rudder_hf import RudderConfig, RudderForConditionalGeneration
from rudder_hf.analyze.examples import Examples
from rudder_hf.demo.serve import Engine
from rudder_hf.demo.view import View
from rudder_hf.evaluate.run import RunOptions, answer_batch
from rudder_hf.evaluate.tasks import DataOptions, make_task
from rudder_hf.hub.pipeline import encode_prompts
from rudder_hf.methods import get
from rudder_hf.metrics import chair as marks
from rudder_hf.runtime.answers import Decoding
from rudder_hf.runtime.models import load_model
from rudder_hf.scenes import captions, embedded, images
from rudder_hf.scenes.images import SIDE
from tests.support.command import refused, rudder
from tools.train_scenes.coco import write_split

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def generate(*arguments: object) -> Result:
    return rudder("generate", *arguments)


def answer_json(*arguments: object) -> dict[str, Any]:
    result = generate("--json", *arguments)
    assert result.exit_code == 0, result.output
    record: dict[str, Any] = json.loads(result.stdout)
    return record


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Example images on disk, with COCO annotations beside them."""
    folder = tmp_path_factory.mktemp("examples")
    write_split(folder, "examples", embedded.examples()[:3])
    return sorted(folder.rglob("*.png"))


def line_of(output: str, name: str) -> str:
    return next(line.removeprefix(name).strip() for line in output.splitlines() if line.startswith(name))


def lines_of(output: str, name: str) -> list[str]:
    return [line.removeprefix(name).strip() for line in output.splitlines() if line.startswith(name)]


def test_without_arguments_all_scenes_are_counted_and_a_rule_shows_some() -> None:
    result = generate()
    assert result.exit_code == 0, result.output
    assert embedded.NOTE in result.stdout
    scenes, answers = embedded.examples(), answer_json()["answers"]
    assert len(answers) == len(scenes) == 48
    found = Examples(
        [scene.names for scene in scenes], *([a[name] for a in answers] for name in ("vanilla", "steered"))
    )
    assert found.summary() in result.stdout
    # The first scene that each rule holds for, whatever it shows.
    shown = [int(title.removeprefix("scene ").split(",")[0]) - 1 for title in lines_of(result.stdout, "image:")]
    assert shown == list(found.chosen())
    assert [f"First scene {rule}" for rule in lines_of(result.stdout, "First scene ")] == [
        f"{rule}:" for rule in found.chosen().values()
    ]
    told = lines_of(result.stdout, "not in the image:")
    for name in ("vanilla", "steered"):
        texts = lines_of(result.stdout, f"{name}:")
        assert [text.replace(marks.MARK, "") for text in texts] == [answers[place][name] for place in shown]
        for place, text, line in zip(shown, texts, told, strict=True):
            absent = [n for n in captions.named_categories(answers[place][name]) if n not in scenes[place].names]
            assert text.count(marks.MARK) == len(absent)
            assert f"{name} {', '.join(absent) or 'nothing'}" in line
    # One line on what a handful of scenes cannot show, and the next step.
    record = embedded.config().calibration
    assert record is not None
    *_, held_out, following = result.stdout.splitlines()
    assert held_out.startswith(f"Change on {len(record['held_out_images'])} held-out scenes")
    assert f"CHAIR_I {100 * record['held_out']['chair_i']['value']:+.1f} [" in held_out
    assert following.startswith("Next: rudder generate photo.jpg")


def test_one_size_of_an_image_everywhere(tmp_path: Path) -> None:
    """The command, the stored files, the page and the evaluation show the model the same pixels."""
    files = embedded.write_examples(tmp_path)
    task = make_task("scenes", DataOptions(split="examples"))
    for number, path in enumerate(files, start=1):
        pixels = embedded.example_image(number).tobytes()
        with Image.open(path) as image:
            assert image.size == (SIDE, SIDE)
            assert image.tobytes() == pixels
        assert task.image(task.samples[number - 1]).tobytes() == pixels
    for stored in (EXAMPLES / "images").iterdir():
        with Image.open(stored) as image, Image.open(tmp_path / stored.name) as written:
            assert image.tobytes() == written.tobytes()
    loaded = load_model(None)
    rows = answer_batch(
        task, loaded, get("vanilla"), task.samples[:4], Decoding("greedy", 128), RunOptions(likelihood="none")
    )
    for found in (answer_json(*files[:4]), answer_json("--limit", 4)):
        assert [answer["vanilla"] for answer in found["answers"]] == [row["answer"] for row in rows]
    model, processor = embedded.load()
    engine = Engine(model, processor)
    view = View(2, captions.DETAIL_PROMPT, engine.own)
    *_, frame = engine.stream(embedded.example_image(2), view, threading.Event())
    assert frame.vanilla.text.strip() == rows[1]["answer"]


@pytest.mark.parametrize("options", [("--contrast", 50), ("--alpha-max", 3000)])
def test_answers_that_repeat_themselves_are_warned_of(options: tuple[object, ...]) -> None:
    result = generate("--limit", 4, *options)
    assert result.exit_code == 0, result.output
    assert "Warning: steered answers repeat themselves" in result.stderr
    assert "in all 4 scenes" in result.stdout
    assert "held-out" not in result.stdout  # another strength was not measured
    assert "repeat themselves" not in generate("--limit", 4).stderr


@pytest.mark.parametrize(
    "options", [(), ("--mode", "add", "--alpha-max", 90), ("--set", "span=text", "--set", "norm_cap=40.5", "--k", 3)]
)
def test_the_printed_settings_make_the_same_caption(options: tuple[object, ...]) -> None:
    result = generate("--example", 2, *options)
    assert result.exit_code == 0, result.output
    config = eval(line_of(result.stdout, "rudder:"), {"RudderConfig": RudderConfig})
    base = AutoModelForImageTextToText.from_pretrained(embedded.folder())
    model = RudderForConditionalGeneration.from_base(base, config)
    processor = AutoProcessor.from_pretrained(embedded.folder())
    inputs = encode_prompts(processor, [embedded.example_image(2)], [captions.DETAIL_PROMPT])
    ids = model.generate(**inputs, max_new_tokens=128, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    shown = line_of(result.stdout, "steered:").replace(marks.MARK, "")
    assert processor.decode(ids, skip_special_tokens=True).strip() == shown


def test_marks_stand_behind_absent_objects_only() -> None:
    text = "There is a teddy bear on the left. Two bears and a Couch."
    assert marks.marked(text, None) == text
    assert marks.marked(text, frozenset({"bear", "couch"})) == text.replace("teddy bear", "teddy bear(!)")
    assert marks.marked(text, frozenset()) == "There is a teddy bear(!) on the left. Two bears(!) and a Couch(!)."
    assert marks.marked('A "sofa" isn\'t a dog.', frozenset({"dog"})) == 'A "sofa(!)" isn\'t a dog.'


def test_trace_has_a_row_per_token() -> None:
    result = generate("--example", 4, "--max-new-tokens", 3, "--trace", "--mode", "add", "--alpha-max", 2)
    assert result.exit_code == 0, result.output
    assert "token by token" in result.stdout
    assert len(re.findall(r"\d %$", result.stdout, re.MULTILINE)) == 3


def test_objects_are_known_of_examples(examples: list[Path], tmp_path: Path) -> None:
    scenes = {images.file_name(scene, "examples"): scene for scene in embedded.examples()}
    for path, answer in zip(examples, answer_json(*examples)["answers"], strict=True):
        present = scenes[path.name].names
        assert answer["present"] == sorted(present)
        for name, absent in answer["absent"].items():
            assert absent == [n for n in captions.named_categories(answer[name]) if n not in present]
    copy = tmp_path / "image.png"
    with Image.open(examples[0]) as image:
        image.resize((200, 200)).save(copy)
    assert "present" not in answer_json(copy, "--max-new-tokens", 2)["answers"][0]


def test_settings_are_followed(examples: list[Path]) -> None:
    none = answer_json(examples[0], "--alpha-max", 0)["answers"][0]
    assert none["steered"] == none["vanilla"]
    assert set(none["gate"]) == {0.0}
    record = answer_json(examples[0], "--alpha-max", 500, "--k", 2, "--layer", 1, "--set", "steer_first_token=True")
    assert record["answers"][0]["steered"] != record["answers"][0]["vanilla"]
    assert record["answers"][0]["gate"][0] > 0
    assert [record["settings"][name] for name in ("alpha_max", "k", "layer")] == [500.0, 2.0, 1]
    assert record["note"] == embedded.NOTE


def test_a_model_on_disk(tiny_model: Path, examples: list[Path], tmp_path: Path) -> None:
    short = ("--max-new-tokens", 6)
    refused(generate("--model", tiny_model), "pass --layer and --alpha-max")
    record = answer_json(examples[0], *short, "--model", tiny_model, "--layer", 2, "--alpha-max", 5)
    assert record["note"] is None
    RudderConfig(base_model_name_or_path=str(tiny_model), layer=2, alpha_max=5.0).save_pretrained(tmp_path)
    assert answer_json(examples[0], *short, "--model", tmp_path)["answers"] == record["answers"]
    stronger = answer_json(examples[0], *short, "--model", tmp_path, "--alpha-max", 50)
    assert stronger["settings"]["alpha_max"] == 50.0


def test_every_embedded_model_answers() -> None:
    for name in embedded.names():
        for answer in answer_json("--model", f"embedded:{name}", "--limit", 3)["answers"]:
            assert captions.broken_sentences(answer["steered"]) == 0
    refused(generate("--model", "embedded:gpt"), ", ".join(embedded.names()))


def test_what_is_no_image_is_refused(tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"not an image")
    refused(generate(tmp_path), "broken.png cannot be read as an image")
    (tmp_path / "empty").mkdir()
    refused(generate(tmp_path / "empty"), "There are no images in")


def test_a_failure_while_generating_is_told_apart_from_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("out of\nmemory")

    monkeypatch.setattr("rudder_hf.analyze.examples.ask", fail)
    refused(generate("--json"), "RuntimeError: out of memory", code=1)


def test_a_contrast_is_said_to_be_none_of_the_paper() -> None:
    contrast = ("--contrast", 0.6, "--set", "contrast_after=2")
    result = generate("--alpha-max", 0, "--limit", 2, *contrast)
    assert result.exit_code == 0, result.output
    line = line_of(result.stdout, "rudder:")
    assert "contrast=0.6, contrast_after=2" in line
    assert "not in the paper" in line
    assert "Absent objects named in all 2 scenes" in result.stdout
    assert "held-out" not in result.stdout  # these settings were not measured
    record = answer_json(*contrast, "--limit", 2)
    assert [answer["vanilla"] != answer["steered"] for answer in record["answers"]] == [True, True]
    assert [record["settings"][name] for name in ("contrast", "contrast_after")] == [0.6, 2]


def test_a_folder_of_images_and_a_part_of_it(examples: list[Path]) -> None:
    folder = examples[0].parent
    together = answer_json(folder)["answers"]
    assert [answer["image"] for answer in together] == [str(path) for path in examples]
    alone = answer_json(folder, "--limit", 2, "--batch-size", 1)["answers"]
    assert [answer["image"] for answer in alone] == [str(path) for path in examples[:2]]
    for batched, single in zip(together, alone, strict=False):
        assert [batched[name] for name in ("tokens", "vanilla")] == [single[name] for name in ("tokens", "vanilla")]
        assert batched["gate"] == pytest.approx(single["gate"], abs=1e-4)


def test_a_yes_that_could_not_change_is_said_to() -> None:
    question = ("--limit", 2, "--prompt", "Is there a dog in the image?")
    result = generate(*question)
    assert result.exit_code == 0, result.output
    warnings = [line for line in result.stderr.splitlines() if line.startswith("Warning: ")]
    assert len(warnings) == 1
    assert "RUDDER could not change it. The setting steer_first_token" in warnings[0]
    assert "Absent objects named" not in result.stdout
    assert "Warning: " not in generate(*question, "--set", "steer_first_token=true").stderr


def test_a_scene_is_shown_though_no_rule_holds() -> None:
    result = generate("--model", "embedded:idefics2", "--limit", 1)
    assert "First scene: no rule holds for any of them:\nimage:   scene 1," in result.stdout
