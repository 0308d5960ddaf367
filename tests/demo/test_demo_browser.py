"""The demo as a person uses it: a real browser, an image of one's own, a slider, the captions and their colours."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from PIL import Image

from rudder_hf import RudderConfig
from rudder_hf.cli.ask import ask
from rudder_hf.demo import serve
from rudder_hf.metrics.highlight import absent
from rudder_hf.scenes import embedded
from rudder_hf.scenes.embedded import example_image
from tests.support.analyzing import luminance
from tests.support.browser import CSS, THEMES, WIDTHS, as_seen, check_readable, chromium, until, webdriver

pytestmark = pytest.mark.slow

pytest.importorskip("gradio", reason="the page needs gradio: pip install 'rudder-hf[demo]'")

NEW = 64


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[str, Any, Any]]:
    """The page's address, and the model behind it."""
    model, processor = embedded.load()
    with serve.serving(model, processor, "embedded", port=0, max_new_tokens=NEW) as url:
        yield url, model, processor


@pytest.fixture(scope="module")
def downloads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("downloads")


@pytest.fixture(scope="module")
def browser(downloads: Path) -> Iterator[Any]:
    with chromium(downloads) as driver:
        yield driver


def text(browser: Any, selector: str) -> str:
    found = browser.find_elements(CSS, selector)
    return " ".join(str(found[0].get_attribute("textContent")).split()) if found else ""


def shown(browser: Any) -> tuple[str, str]:
    """Both captions as a person reads them."""
    return text(browser, "#vanilla .tokens"), text(browser, "#steered .tokens")


def wait_for(browser: Any, answers: tuple[str, str]) -> None:
    until(lambda: shown(browser) == answers, f"the page shows {answers}")


def expected(served: Any, image: Image.Image, **settings: Any) -> tuple[str, str]:
    """Both answers by two plain calls, which share no code with the page."""
    _, model, processor = served
    before = {name: getattr(model.config, name) for name in settings}
    try:
        for name, value in settings.items():
            setattr(model.config, name, value)
        (answer,) = ask(model, processor, [image], serve.PROMPT, NEW)
    finally:
        for name, value in before.items():
            setattr(model.config, name, value)
    return str(answer.vanilla), answer.steered


def colours(browser: Any, side: str) -> list[tuple[float, float]]:
    """(value that hovering shows as the gate, luminance of the shade on a white page) of every token."""
    script = """return [...document.querySelectorAll(arguments[0])].map(
        token => [token.dataset.tip, getComputedStyle(token).backgroundColor])"""
    found = []
    for tip, colour in browser.execute_script(script, f"#{side} .tok"):
        gate = re.search(r"gate (\d\.\d+)", tip)
        assert gate is not None, tip
        *shade, opaque = (float(value) for value in re.findall(r"[\d.]+", colour))  # color(srgb red green blue / part)
        found.append((float(gate.group(1)), luminance([1 - opaque * (1 - value) for value in shade])))
    return found


def requests(browser: Any) -> list[str]:
    messages = [json.loads(row["message"])["message"] for row in browser.get_log("performance")]
    return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]


def number_box(browser: Any, name: str) -> Any:
    return browser.find_element(CSS, f"#{name} input[type=number]")


def upload(browser: Any, path: Path) -> None:
    for remove in browser.find_elements(CSS, "#image button[aria-label='Remove Image']"):
        remove.click()
    (field,) = until(lambda: browser.find_elements(CSS, "#image input[type=file]"), "a place to upload an image")
    field.send_keys(str(path))


def test_a_person_tries_the_page(served: Any, browser: Any, downloads: Path, tmp_path: Path) -> None:
    """In one visit, because starting over costs more than all the steps."""
    from rudder_hf.demo.page import EXAMPLE

    url, model, _ = served
    asked: list[str] = []

    # An example is answered when the page opens; what is not in it is struck out.
    browser.get(url)
    vanilla, steered = expected(served, example_image(EXAMPLE))
    wait_for(browser, (vanilla, steered))
    until(lambda: text(browser, "#vanilla .verdict") and text(browser, "#steered .verdict"), "verdicts")
    for side, answer in (("vanilla", vanilla), ("steered", steered)):
        struck = [item.text for item in browser.find_elements(CSS, f"#{side} .verdict del")]
        assert struck == list(
            dict.fromkeys(span.category for span in absent(answer, frozenset(embedded.examples()[EXAMPLE - 1].names)))
        )
    asked += requests(browser)

    # Colours darken with the gate, and only the steered answer has any.
    steered_colours = sorted(colours(browser, "steered"))
    assert all(luminance == pytest.approx(1) for _, luminance in colours(browser, "vanilla"))
    assert steered_colours[-1][1] < 0.9
    assert all(one[1] >= other[1] - 0.02 for one, other in pairwise(steered_colours))

    # By similarity both answers have colours, without generating again.
    browser.find_element(CSS, "#colour input[value=similarity]").click()
    until(lambda: min(light for _, light in colours(browser, "vanilla")) < 0.9, "colours by similarity")
    assert shown(browser) == (vanilla, steered)

    # An image of one's own, for which nobody knows what is in it.
    own = Image.linear_gradient("L").convert("RGB")
    own.save(tmp_path / "own.png")
    upload(browser, tmp_path / "own.png")
    wait_for(browser, expected(served, own))
    assert not browser.find_elements(CSS, ".absent, .verdict del")

    # A slider: without strength both answers are the same.
    slider = browser.find_element(CSS, "#alpha_max input[type=range]")
    webdriver.ActionChains(browser).drag_and_drop_by_offset(slider, -slider.size["width"] // 2, 0).perform()
    box = number_box(browser, "alpha_max")
    until(lambda: float(box.get_attribute("value")) == 0, "the slider at its end")
    wait_for(browser, (expected(served, own)[0],) * 2)

    # The settings as a file.
    browser.find_element(CSS, "#keep a.save").click()
    until(lambda: (downloads / "config.json").is_file(), "the saved settings")
    saved = RudderConfig.from_pretrained(downloads)
    assert (saved.alpha_max, saved.layer, saved.k) == (0.0, model.config.layer, model.config.k)
    asked += requests(browser)

    # Nothing left the machine, and nothing was blocked from leaving it.
    hosts = {urlsplit(address).hostname for address in asked if not address.startswith(("data:", "blob:"))}
    assert hosts == {urlsplit(url).hostname} == {"127.0.0.1"}
    complaints = [row["message"] for row in browser.get_log("browser") if "Content Security Policy" in row["message"]]
    assert complaints == []


def test_a_link_reproduces_the_view(served: Any, browser: Any) -> None:
    """Another layer, whose strengths have another range, and a wrong value, which is told."""
    url, model, _ = served
    layers = model.config.get_text_config().num_hidden_layers
    layer = layers - 1 if model.config.layer != layers - 1 else 0
    browser.get(f"{url}?example=3&layer={layer}&alpha_max=0.5&mode=add&colour=similarity&k=1e9")
    wait_for(browser, expected(served, example_image(3), layer=layer, alpha_max=0.5, mode="add"))
    assert "k=1e9 was left out" in text(browser, "#notes")
    assert number_box(browser, "layer").get_attribute("value") == str(layer)
    assert browser.find_element(CSS, "#colour input[value=similarity]").is_selected()
    address = browser.find_element(CSS, "#keep a.link").get_attribute("href")
    for part in ("example=3", f"layer={layer}", "alpha_max=0.5", "mode=add", "colour=similarity"):
        assert part in address


def test_every_setting_is_that_of_the_config(served: Any, browser: Any) -> None:
    """What a link sets, contrast included, is what `generate` does with the same settings."""
    settings = {
        "span": "image", "steer_first_token": True, "contrast": 1.5, "contrast_after": 2, "contrast_first_layer": 1,
    }  # fmt: skip
    # One where they change the answer: else the page could leave them out.
    number, wanted = next(
        (number, changed)
        for number in range(1, len(embedded.examples()) + 1)
        if (changed := expected(served, example_image(number), **settings)) != expected(served, example_image(number))
    )
    browser.get(f"{served[0]}?example={number}&" + "&".join(f"{name}={value}" for name, value in settings.items()))
    wait_for(browser, wanted)
    assert browser.find_element(CSS, "#span input[value=image]").is_selected()
    assert browser.find_element(CSS, "#steer_first_token input").is_selected()
    assert float(number_box(browser, "contrast").get_attribute("value")) == 1.5


def test_a_damaged_file_is_told_and_takes_the_old_answer_away(served: Any, browser: Any, tmp_path: Path) -> None:
    browser.get(f"{served[0]}?example=1")
    wait_for(browser, expected(served, example_image(1)))
    example_image(2).save(tmp_path / "whole.png")
    whole = (tmp_path / "whole.png").read_bytes()
    for name, content in (("text.png", b"no image"), ("cut.png", whole[: len(whole) // 2])):
        (tmp_path / name).write_bytes(content)
        upload(browser, tmp_path / name)
        until(lambda: "damaged or not an image" in text(browser, "#status .status"), f"a sentence about {name}")
        until(lambda: browser.find_elements(CSS, "#image input[type=file]"), "a place to upload another")
        time.sleep(1)  # whatever follows by itself
        assert text(browser, "#status .status").count(".") == 1
        assert shown(browser) == ("", "")
        assert not browser.find_elements(CSS, ".toast-body")
    upload(browser, tmp_path / "whole.png")
    wait_for(browser, expected(served, example_image(2)))
    assert text(browser, "#status .status") == ""


def test_a_stopped_answer_says_so(served: Any, browser: Any) -> None:
    url, model, _ = served
    whole = expected(served, example_image(1))
    slow = model.handle.backbone.model.register_forward_hook(lambda *_: time.sleep(0.5))
    try:
        browser.get(f"{url}?example=1")
        until(lambda: len(shown(browser)[1].split()) > 3 and "Waiting" not in shown(browser)[1], "some words")
        browser.find_element(CSS, "#stop").click()
        until(lambda: "Stopped early." in text(browser, "#vanilla .verdict"), "the word that it was stopped")
        stopped = shown(browser)
        time.sleep(3)
        assert shown(browser) == stopped
        assert all(full.startswith(part) and full != part for full, part in zip(whole, stopped, strict=True))
        assert "Stopped early." in text(browser, "#steered .verdict")
    finally:
        slow.remove()
    browser.find_element(CSS, "#describe").click()
    wait_for(browser, whole)
    until(lambda: "Stopped" not in text(browser, "#vanilla .verdict"), "a whole answer")


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_is_readable_in_every_window(served: Any, browser: Any, width: int, theme: str) -> None:
    with as_seen(browser, width, theme):
        browser.get(f"{served[0]}?example=1&colour=similarity&k=1e9")
        until(lambda: text(browser, "#vanilla .verdict") and text(browser, "#steered .verdict"), "verdicts")
        check_readable(browser)
        tops = "return arguments[0].map(name => document.querySelector(name).getBoundingClientRect().top)"
        image, vanilla, steered, examples, settings = browser.execute_script(
            tops, ["#image", "#vanilla", "#steered", "#examples", ".settings"]
        )
        if width < 900:
            assert image < vanilla <= steered < examples < settings
        assert (vanilla == steered) == (width > 600)
        # Without an answer too.
        browser.find_element(CSS, "#image button[aria-label='Remove Image']").click()
        until(lambda: text(browser, "#status .status"), "a hint")
        check_readable(browser)
