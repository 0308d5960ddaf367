"""Pipelines on steered models: everything that `image-to-text` took before transformers 5, and chats."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import transformers
from PIL import Image
from transformers import AutoModel, AutoProcessor, Pipeline

import rudder_hf
from rudder_hf import RudderConfig, RudderForConditionalGeneration, attach
from rudder_hf.evaluate.tasks import DataOptions
from rudder_hf.evaluate.tasks.captions import images_task
from rudder_hf.hub.images import read_image
from rudder_hf.hub.pipeline import DEFAULT_PROMPT, encode_prompts
from tests.support.helpers import settings
from tests.support.hub import LocalHub
from tests.support.processors import PROCESSORS
from tests.support.repos import chat, inputs_for, picture
from tests.support.toy import toy_processor
from tests.support.zoo import FAMILIES

NEW = 5


@pytest.fixture(scope="module")
def model(repo: Path) -> RudderForConditionalGeneration:
    return AutoModel.from_pretrained(repo)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def pipe(model: RudderForConditionalGeneration) -> Pipeline:
    return rudder_hf.pipeline("image-to-text", model, max_new_tokens=NEW)


@pytest.fixture(scope="module")
def processor(repo: Path) -> Any:
    return AutoProcessor.from_pretrained(repo)


@pytest.fixture
def picture_file(tmp_path: Path) -> Path:
    picture().save(tmp_path / "picture.png")
    return tmp_path / "picture.png"


def answer(model: Any, processor: Any, image: Any, text: str = DEFAULT_PROMPT, **options: Any) -> str:
    """What the model says, by its own `generate` and its processor's own chat template."""
    return said(model, processor, inputs_for(processor, [image], text), **options)


def said(model: Any, processor: Any, inputs: Any, whole: bool = False, **options: Any) -> str:
    """What the model says to encoded inputs, alone or with its prompt."""
    ids = model.generate(**inputs, max_new_tokens=NEW, **options)
    new = ids[0] if whole else ids[0, inputs["input_ids"].shape[1] :]
    return str(processor.decode(new, skip_special_tokens=True)).strip()


# What goes in


def test_the_answer_is_the_models(pipe: Pipeline, model: Any, processor: Any) -> None:
    wanted = answer(model, processor, picture())
    assert pipe(picture()) == [{"generated_text": wanted}]
    assert answer(model, processor, picture(), rudder=False) != wanted
    assert answer(model, processor, picture(1)) != wanted


@pytest.mark.parametrize("source", [str, Path, lambda path: picture().convert("RGBA")], ids=["str", "path", "rgba"])
def test_kinds_of_pictures(source: Callable[[Path], Any], pipe: Pipeline, picture_file: Path) -> None:
    assert pipe(source(picture_file)) == pipe(picture())


def test_lists(pipe: Pipeline, picture_file: Path) -> None:
    one, other = pipe(picture()), pipe(picture(1))
    assert one != other
    assert pipe([picture(), str(picture_file), picture(1)]) == [one, one, other]
    assert pipe((picture(), picture(1))) == [one, other]
    assert pipe([picture()]) == [one]
    assert pipe([]) == []
    assert list(pipe(image for image in [picture(), picture(1)])) == [one, other]


def test_prompt(pipe: Pipeline, model: Any, processor: Any) -> None:
    asked = pipe(picture(), prompt="how many")
    assert asked == [{"generated_text": answer(model, processor, picture(), "how many")}]
    assert asked != pipe(picture())
    with pytest.raises(ValueError, match="one string for all images"):
        pipe([picture(), picture(1)], prompt=["a", "b"])


def test_prompt_with_placeholder(pipe: Pipeline, model: Any, processor: Any) -> None:
    """As it was usual: the prompt as the model wants it, with the picture's place in it."""
    prompt = "user : <image> the old car assistant :"
    inputs = processor(images=picture(), text=prompt, return_tensors="pt")
    for options in ({}, {"return_full_text": True}):
        wanted = said(model, processor, inputs, whole=bool(options))
        assert pipe(picture(), prompt=prompt, **options) == [{"generated_text": wanted}]


def test_generation_options(pipe: Pipeline, model: Any, processor: Any) -> None:
    for options in ({"max_new_tokens": 2}, {"generate_kwargs": {"max_new_tokens": 2}}):
        assert len(pipe(picture(), **options)[0]["generated_text"].split()) == 2
    assert len(pipe(picture())[0]["generated_text"].split()) == NEW
    with pytest.raises(ValueError, match="'max_new_tokens' is given twice"):
        pipe(picture(), max_new_tokens=2, generate_kwargs={"max_new_tokens": 3})
    beams = {"num_beams": 2, "num_return_sequences": 2}
    several = pipe([picture(), picture(1)], batch_size=2, generate_kwargs=beams)
    assert [len(each) for each in several] == [2, 2]
    assert several == [pipe(image, generate_kwargs=beams) for image in (picture(), picture(1))]


def test_chats(pipe: Pipeline, model: Any, processor: Any, picture_file: Path) -> None:
    wanted = [{"generated_text": answer(model, processor, picture(), "the old car")}]
    assert pipe(chat(picture(), "the old car")) == wanted
    by_path = [{"type": "image", "path": str(picture_file)}, {"type": "text", "text": "the old car"}]
    assert pipe([{"role": "user", "content": by_path}]) == wanted
    chats = [chat(picture(), "the old car"), chat(picture(1), "what is this small one")]
    assert pipe(chats, batch_size=2) == [pipe(each) for each in chats]


# No picture is lost


def test_what_is_no_picture(pipe: Pipeline, tmp_path: Path) -> None:
    for wrong in ("there is no such file.png", str(tmp_path), 3, {"image": picture()}):
        with pytest.raises((ValueError, TypeError, OSError)):
            pipe(wrong)
    with pytest.raises(ValueError, match="needs an image"):
        pipe()
    with pytest.raises(ValueError, match="has no image"):
        pipe([{"role": "user", "content": [{"type": "text", "text": "hello"}]}])
    with pytest.raises(ValueError, match="write the prompt into the chat"):
        pipe(chat(picture()), prompt="the car")


def test_chat_templates(model: Any, repo: Path) -> None:
    """Without one the placeholder is set here; with one that drops the image the prompt is refused."""
    processor = AutoProcessor.from_pretrained(repo)
    pipe = rudder_hf.pipeline("image-to-text", model, processor=processor, max_new_tokens=NEW)
    processor.chat_template = None
    inputs = processor(images=picture(), text="<image>\nthe car", return_tensors="pt")
    assert pipe(picture(), prompt="the car") == [{"generated_text": said(model, processor, inputs)}]
    processor.chat_template = "{{ messages[0]['content'][1]['text'] }}"
    with pytest.raises(ValueError, match="no place for the image"):
        pipe(picture())


@pytest.mark.parametrize("name", PROCESSORS)
def test_families(name: str) -> None:
    """Batches of prompts of one family equal each prompt alone, and every picture counts."""
    model = RudderForConditionalGeneration.from_base(FAMILIES[name].build(), settings(alpha_max=40.0))
    processor = PROCESSORS[name]()
    pipe = rudder_hf.pipeline("image-to-text", model, processor=processor, max_new_tokens=NEW)
    images = [picture(hue) for hue in range(3)]
    alone = [pipe(image) for image in images]
    assert pipe(images, batch_size=3) == alone
    assert len({each[0]["generated_text"] for each in alone}) > 1
    assert [pipe(image, rudder=False) for image in images] != alone
    assert all(len(each[0]["generated_text"].split()) == NEW for each in alone)
    if not getattr(processor, "chat_template", None):
        # As the cards of such models show it.
        answer = transformers.pipeline("image-text-to-text", model=model, processor=processor)
        said = answer(images=picture(), text=DEFAULT_PROMPT, max_new_tokens=NEW, return_full_text=False)
        assert said[0]["generated_text"].strip() == alone[0][0]["generated_text"]


# By task and model


def test_image_text_to_text(model: Any, processor: Any, repo: Path) -> None:
    wanted = answer(model, processor, picture(), "the car")
    ways = (
        transformers.pipeline("image-text-to-text", model=str(repo)),
        transformers.pipeline("image-text-to-text", model=model, processor=processor),
        rudder_hf.pipeline("image-text-to-text", model),
    )
    for pipe in ways:
        output = pipe(text=chat(picture(), "the car"), max_new_tokens=NEW, return_full_text=False)
        assert output[0]["generated_text"].strip() == wanted
        whole = pipe(text=chat(picture(), "the car"), max_new_tokens=NEW)
        assert whole[0]["generated_text"][-1]["role"] == "assistant"
        options = {"generate_kwargs": {"rudder": False}, "return_full_text": False}
        output = pipe(text=chat(picture(), "the car"), max_new_tokens=NEW, **options)
        assert output[0]["generated_text"].strip() == answer(model, processor, picture(), "the car", rudder=False)
    with pytest.raises(ValueError, match="without text"):
        ways[-1]("picture.png")


@pytest.mark.parametrize("task", ["image-to-text", "image-text-to-text"])
def test_rudder_options(task: str, model: Any, processor: Any) -> None:
    """In a call, and for every call of a pipeline, also one with options of its own, until a call has others."""
    question = {"inputs" if task == "image-to-text" else "text": chat(picture(), "the car")}
    steered, vanilla = (answer(model, processor, picture(), "the car", rudder=rudder) for rudder in (None, False))
    options: dict[str, Any] = {"max_new_tokens": NEW, "return_full_text": False}
    pipe, off = rudder_hf.pipeline(task, model), rudder_hf.pipeline(task, model, rudder=False)
    for use, more, wanted in (
        (pipe, {}, steered),
        (pipe, {"rudder": False}, vanilla),
        (pipe, {"rudder": {"alpha_max": 0.0}}, vanilla),
        (pipe, {"generate_kwargs": {"rudder": False}}, vanilla),
        (off, {}, vanilla),
        (off, {"generate_kwargs": {}}, vanilla),
        (off, {"rudder": True}, steered),
    ):
        assert use(**question, **options, **more)[0]["generated_text"].strip() == wanted
    with pytest.raises(ValueError, match="alfa_max"):
        pipe(**question, rudder={"alfa_max": 1.0})
    with pytest.raises(ValueError, match="'rudder' is given twice"):
        pipe(**question, rudder=False, generate_kwargs={"rudder": False})


@pytest.mark.parametrize("named", ["its own base", None, "models/secret"])
def test_an_attached_model_has_its_own_processor(
    named: str | None, model: Any, repo: Path, processor: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the settings call their base: they may have come from the Hub, and lead to no folder here."""
    config = RudderConfig.from_pretrained(repo)
    base = transformers.AutoModelForImageTextToText.from_pretrained(config.base_model_name_or_path)
    with pytest.raises(ValueError, match="is not steered"):
        rudder_hf.pipeline("image-to-text", base)
    if named != "its own base":
        config.base_model_name_or_path = named
    (tmp_path / "models" / "secret").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with attach(base, config):
        pipe = rudder_hf.pipeline("image-to-text", base, max_new_tokens=NEW)
        assert pipe.processor.tokenizer.name_or_path == base.config.name_or_path
        assert pipe(picture()) == [{"generated_text": answer(model, processor, picture())}]


def test_by_name(repo: Path, pipe: Pipeline) -> None:
    named = rudder_hf.pipeline("image-to-text", str(repo), dtype=torch.float32, model_kwargs={"alpha_max": 2.0})
    assert named.model.config.alpha_max == 2.0
    assert named.task == "image-to-text"
    assert named.model.dtype == torch.float32
    with pytest.raises(ValueError, match="'image-to-text', 'image-text-to-text'"):
        rudder_hf.pipeline("text-generation", str(repo))


# Images as people have them: turned by EXIF, behind a URL, in base64, damaged

ORIENTATION = 0x0112
SIDEWAYS = 6  # the camera was held on its side: to be turned clockwise by 90 degrees


@pytest.fixture
def upright() -> Image.Image:
    """Red above, blue below, higher than wide."""
    pixels = numpy.zeros((48, 32, 3), dtype=numpy.uint8)
    pixels[:24, :, 0] = pixels[24:, :, 2] = 255
    return Image.fromarray(pixels)


@pytest.fixture
def turned(upright: Image.Image, tmp_path: Path) -> Path:
    """The same as a camera stores it: lying, with the orientation in EXIF."""
    exif = Image.Exif()
    exif[ORIENTATION] = SIDEWAYS
    upright.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "turned.png", exif=exif)
    return tmp_path / "turned.png"


def test_the_orientation_in_exif_is_followed_once(turned: Path, upright: Image.Image) -> None:
    image = read_image(turned)
    assert image.mode == "RGB"
    assert image.tobytes() == upright.tobytes()
    assert read_image(image).tobytes() == upright.tobytes()
    # As a user opens it, and as `convert` leaves it: the orientation stays with the image.
    for opened in (Image.open(turned), Image.open(turned).convert("RGB")):
        assert read_image(opened).tobytes() == upright.tobytes()


def test_every_command_and_pipeline_sees_it_upright(turned: Path, upright: Image.Image) -> None:
    """Commands read by tasks or by `read_image`; what is given as a PIL image is turned where it is encoded."""
    task = images_task(DataOptions(data=turned.parent))
    assert task.image(task.samples[0]).tobytes() == upright.tobytes()
    processor = toy_processor()

    def pixels(image: Any) -> Any:
        return encode_prompts(processor, [image], ["What is this?"])["pixel_values"]

    assert pixels(Image.open(turned)).equal(pixels(upright))
    assert not pixels(upright.transpose(Image.Transpose.ROTATE_90)).equal(pixels(upright))


def test_urls_and_base64(hub: LocalHub, turned: Path, upright: Image.Image) -> None:
    (turned.parent / "page.html").write_text("<p>no image</p>")
    hub.store.add("org/images", turned.parent)
    address = f"{hub.url}/org/images/resolve/main"
    assert read_image(f"{address}/turned.png?size=large").tobytes() == upright.tobytes()
    encoded = base64.b64encode(turned.read_bytes()).decode()
    for text in (encoded, f"data:image/png;base64,{encoded}"):
        assert read_image(text).tobytes() == upright.tobytes()
    for wrong in (f"{address}/none.png", f"{address}/page.html", "http://127.0.0.1:9/a//b.png"):
        with pytest.raises(ValueError, match=f"{wrong} cannot be read"):
            read_image(wrong, timeout=5)


def test_what_is_no_image_is_refused_by_name(turned: Path) -> None:
    cut = turned.with_name("cut.png")
    cut.write_bytes(turned.read_bytes()[:80])
    for source, words in (
        (turned.with_name("none.png"), r"there is no image .*none\.png"),
        (cut, r"cut\.png cannot be read"),
        (turned.parent, "cannot be read"),
        (3, "3 cannot be read"),
        ("x" * 5000, r"there is no image x{40}\.\.\."),
        ("cats", "there is no image cats"),
    ):
        with pytest.raises(ValueError, match=words):
            read_image(source)
