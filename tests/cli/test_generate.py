"""`rudder generate`: the embedded model, real images, marks on absent objects, exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor
from typer.testing import Result

from rudder_hf import RudderConfig, RudderForConditionalGeneration
from rudder_hf.hub.processing import encode
from rudder_hf.metrics import highlight as marks
from rudder_hf.scenes import captions, coco, embedded
from rudder_hf.scenes.images import draw, split_scenes
from tests.support.command import refused, rudder


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
    coco.write_split(folder, "examples", embedded.examples()[:3], scale=2)
    return sorted(folder.rglob("*.png"))


def line_of(output: str, name: str) -> str:
    return next(line.removeprefix(name).strip() for line in output.splitlines() if line.startswith(name))


def lines_of(output: str, name: str) -> list[str]:
    return [line.removeprefix(name).strip() for line in output.splitlines() if line.startswith(name)]


def test_without_arguments_three_examples_are_shown_and_all_are_counted() -> None:
    result = generate()
    assert result.exit_code == 0, result.output
    assert embedded.NOTE in result.stdout
    scenes = embedded.examples()
    texts = {name: lines_of(result.stdout, f"{name}:") for name in ("vanilla", "steered")}
    told = lines_of(result.stdout, "not in the image:")
    assert [len(shown) for shown in (*texts.values(), told)] == [3, 3, 3]
    for number, title in enumerate(lines_of(result.stdout, "image:")):
        assert title.startswith(f"example {number + 1}, ")
        assert all(name in title for name in scenes[number].names)
        for name, shown in texts.items():
            text = shown[number].replace(marks.MARK, "")
            # True but for the objects that are marked.
            assert captions.broken_sentences(text) == 0
            assert captions.place(text) == scenes[number].place
            absent = [n for n in captions.mentions(text) if n not in scenes[number].names]
            assert shown[number].count(marks.MARK) == len(absent)
            assert f"{name} {', '.join(absent) or 'nothing'}" in told[number]
    counts = []
    for name in ("vanilla", "steered"):
        found = [answer_json("--example", n)["answers"][0][name] for n in range(1, 13)]
        named = [set(captions.mentions(text)) for text in found]
        wrong = sum(len(names - set(scene.names)) for names, scene in zip(named, scenes, strict=True))
        counts.append(f"{name} {wrong} of {sum(map(len, named))}")
    assert line_of(result.stdout, "absent objects named in all 12 examples:") == ", ".join(counts)
    streamed = generate("--stream")
    assert result.stdout.splitlines()[-1] == streamed.stdout.splitlines()[-1]


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
    inputs = encode(processor, [embedded.example_image(2)], [captions.DETAIL_PROMPT])
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
    assert result.stdout.count(" % │") == 3


@pytest.mark.slow
def test_images_in_one_batch_answer_as_one_by_one(examples: list[Path]) -> None:
    together = answer_json(*examples)["answers"]
    alone = answer_json(*examples, "--batch-size", 1)["answers"]
    assert [answer["image"] for answer in together] == [str(path) for path in examples]
    for batched, single in zip(together, alone, strict=True):
        assert batched["tokens"] == single["tokens"]
        assert batched["vanilla"] == single["vanilla"]
        assert batched["gate"] == pytest.approx(single["gate"], abs=1e-4)
    assert len({answer["steered"] for answer in together}) == len(examples)


def test_streaming_prints_the_same_words(examples: list[Path]) -> None:
    plain = generate(*examples[:2])
    streamed = generate(*examples[:2], "--stream")
    assert streamed.exit_code == 0, streamed.output
    for answer in answer_json(*examples[:2])["answers"]:
        for name in ("vanilla", "steered"):
            assert f"{name}: {answer[name]}" in streamed.stdout.replace(f"{name}:  ", f"{name}: ")
    assert line_of(streamed.stdout, "not in the image:") == line_of(plain.stdout, "not in the image:")
    refused(generate("--stream", "--json"), "choose one of them")


def test_annotations_beside_or_given(examples: list[Path], tmp_path: Path) -> None:
    scenes = {coco.file_name(scene, "examples"): scene for scene in embedded.examples()}
    for path, answer in zip(examples, answer_json(*examples, "--no-compare")["answers"], strict=True):
        assert answer["present"] == sorted(scenes[path.name].names)
        assert answer["vanilla"] is None
        wrong = [n for n in captions.mentions(answer["steered"]) if n not in scenes[path.name].names]
        assert answer["absent"] == {"steered": wrong}
    copy = tmp_path / "image.png"
    copy.write_bytes(examples[0].read_bytes())
    assert "present" not in answer_json(copy, "--no-compare", "--max-new-tokens", 2)["answers"][0]
    annotations = next(examples[0].parent.parent.rglob("instances_examples.json"))
    refused(generate(copy, "--annotations", annotations), "says nothing about image.png")
    refused(generate(copy, "--annotations", tmp_path / "none.json"), "none.json")
    broken = tmp_path / "broken.json"
    broken.write_text("{}")
    refused(generate(copy, "--annotations", broken), "broken.json")


def test_settings_are_followed(examples: list[Path]) -> None:
    none = answer_json(examples[0], "--alpha-max", 0)["answers"][0]
    assert none["steered"] == none["vanilla"]
    assert set(none["gate"]) == {0.0}
    record = answer_json(examples[0], "--alpha-max", 500, "--k", 2, "--layer", 1, "--set", "steer_first_token=True")
    assert record["answers"][0]["steered"] != record["answers"][0]["vanilla"]
    assert record["answers"][0]["gate"][0] > 0
    assert [record["settings"][name] for name in ("alpha_max", "k", "layer")] == [500.0, 2.0, 1]
    assert record["note"] == embedded.NOTE


def test_a_model_on_disk(folder: Path, examples: list[Path], tmp_path: Path) -> None:
    short = ("--max-new-tokens", 6)
    record = answer_json(examples[0], *short, "--model", folder, "--layer", 2, "--alpha-max", 5)
    assert record["note"] is None
    RudderConfig(base_model_name_or_path=str(folder), layer=2, alpha_max=5.0).save_pretrained(tmp_path)
    assert answer_json(examples[0], *short, "--model", tmp_path)["answers"] == record["answers"]
    stronger = answer_json(examples[0], *short, "--model", tmp_path, "--alpha-max", 50)
    assert stronger["settings"]["alpha_max"] == 50.0


def test_every_embedded_model_answers() -> None:
    for name in embedded.names():
        for answer in answer_json("--model", f"embedded:{name}")["answers"]:
            assert captions.broken_sentences(answer["steered"]) == 0
    refused(generate("--model", "embedded:gpt"), ", ".join(embedded.names()))


def test_what_is_no_image_is_refused(tmp_path: Path) -> None:
    broken, cut = tmp_path / "broken.png", tmp_path / "cut.png"
    broken.write_bytes(b"not an image")
    Image.new("RGB", (64, 64), "red").save(cut)
    cut.write_bytes(cut.read_bytes()[:60])
    refused(generate(tmp_path / "missing.png"), "missing.png")
    refused(generate(broken), "is not an image")
    refused(generate(cut), "cut.png")
    refused(generate(tmp_path), "broken.png is not an image")
    (tmp_path / "empty").mkdir()
    refused(generate(tmp_path / "empty"), "There are no images in")
    refused(generate("http://127.0.0.1:9/photos//a.png?b=c"), "http://127.0.0.1:9/photos//a.png?b=c cannot be fetched")
    refused(generate("--example", 99), "1 to 12")


def test_unknown_models_are_refused(monkeypatch: pytest.MonkeyPatch, folder: Path, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    refused(generate("--model", "no-such-org/no-such-model"), "no-such-org/no-such-model")
    refused(generate("--model", tmp_path / "no-such-folder"), "no-such-folder")
    refused(generate("--model", tmp_path), "Cannot load")
    refused(generate("--model", folder), "pass --layer and --alpha-max")


@pytest.mark.parametrize(
    ("option", "value", "word"),
    [
        ("--alpha-max", -1, "alpha_max"),
        ("--alpha-max", "nan", "alpha_max"),
        ("--set", "g_min=2", "g_min"),
        ("--set", "alpha=3", "Settings: layer, alpha_max, k"),
        ("--set", "span=left", "'prompt', 'text', 'image'"),
        ("--set", "span", "--set span is no setting: here settings are NAME=VALUE, such as span=text."),
        ("--set", "vcd.alpha=1", "here settings are NAME=VALUE"),
        ("--set", "force=true", "force has no effect here"),
        ("--layer", 99, "12 decoder layers"),
        ("--device", "cuda:77", "--device cuda:77"),
        ("--device", "nonsense", "--device nonsense"),
    ],
)
def test_bad_settings_are_refused(option: str, value: object, word: str) -> None:
    refused(generate(option, value), word)


@pytest.mark.parametrize(
    ("option", "value"), [("--alpha-max", "nan"), ("--alpha-max", -3), ("--k", "inf"), ("--contrast", -1)]
)
def test_settings_are_checked_before_anything_is_loaded(option: str, value: object, tmp_path: Path) -> None:
    name = option[2:].replace("-", "_")
    refused(generate("--model", tmp_path / "none", option, value), f"RUDDER setting `{name}` is {value}")


def test_options_that_would_do_nothing_are_refused(examples: list[Path], tmp_path: Path) -> None:
    refused(generate(examples[0], "--example", 2), "--example is for the examples")
    annotations = ("--annotations", tmp_path / "instances.json")
    refused(generate("--example", 1, *annotations), "--annotations is for images that are given")
    refused(generate("--limit", 2), "--limit is for images that are given")


def test_a_failure_while_generating_is_told_apart_from_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("out of\nmemory")

    monkeypatch.setattr("rudder_hf.cli.ask.ask", fail)
    refused(generate(), "RuntimeError: out of memory", code=1)


def test_an_image_of_any_size_and_kind_is_taken(tmp_path: Path) -> None:
    scene = split_scenes("examples")[1]
    image = draw(scene, 4)
    whole, grey = tmp_path / "whole.jpg", tmp_path / "grey.png"
    image.save(whole, quality=95)
    image.convert("LA").resize((300, 200)).save(grey)
    for path in (whole, grey):
        assert captions.broken_sentences(answer_json(path, "--no-compare")["answers"][0]["steered"]) == 0


def test_stored_settings_say_what_held_out_images_showed_of_them() -> None:
    record = embedded.config().calibration
    assert record is not None
    change = record["held_out"]["chair_i"]
    told = f"absent among named {100 * change['left']:.1f} -> {100 * change['right']:.1f} %"
    lines = generate().stdout.splitlines()
    assert lines[-1].startswith(f"calibration, {len(record['held_out_images'])} held-out images: {told}")
    # With another strength it was not measured.
    assert not [line for line in generate("--alpha-max", 10).stdout.splitlines() if line.startswith("calibration")]


def test_a_contrast_is_shown_as_beyond_the_paper() -> None:
    contrast = ("--contrast", 0.6, "--set", "contrast_after=2")
    result = generate("--alpha-max", 0, *contrast)
    assert result.exit_code == 0, result.output
    line = line_of(result.stdout, "rudder:")
    assert "contrast=0.6, contrast_after=2" in line
    assert "beyond the paper" in line
    assert lines_of(result.stdout, "vanilla:") != lines_of(result.stdout, "steered:")
    record = answer_json(*contrast)
    assert [record["settings"][name] for name in ("contrast", "contrast_after")] == [0.6, 2]


def test_a_setting_is_given_once() -> None:
    refused(generate("--k", 2, "--set", "k=3"), "k is given twice")


def test_a_folder_of_images_and_a_part_of_it(examples: list[Path]) -> None:
    folder = examples[0].parent
    short = ("--max-new-tokens", 2, "--no-compare")
    assert [answer["image"] for answer in answer_json(folder, *short)["answers"]] == [str(path) for path in examples]
    some = answer_json(folder, *short, "--limit", 2)["answers"]
    assert [answer["image"] for answer in some] == [str(path) for path in examples[:2]]


def test_an_image_is_seen_upright(examples: list[Path], tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise by 90 degrees
    with Image.open(examples[0]) as image:
        image.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "turned.png", exif=exif)
    answers = [answer_json(path)["answers"][0] for path in (examples[0], tmp_path / "turned.png")]
    assert answers[0]["steered"] == answers[1]["steered"]
    assert answers[0]["similarity"] == answers[1]["similarity"]


def test_a_yes_that_could_not_change_is_said_to() -> None:
    question = ("--prompt", "Is there a dog in the image?")
    result = generate(*question)
    assert result.exit_code == 0, result.output
    warnings = [line for line in result.stderr.splitlines() if line.startswith("Warning: ")]
    assert len(warnings) == 1
    assert "RUDDER could not change it. The setting steer_first_token" in warnings[0]
    assert "absent objects named in all" not in result.stdout
    assert "Warning: " not in generate(*question, "--set", "steer_first_token=true").stderr
