"""The demo as a person uses it, and report.html: a real browser, every window, both themes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from PIL import Image

from rudder_hf.analyze.examples import ask
from rudder_hf.demo import serve
from rudder_hf.metrics.chair import absent
from rudder_hf.scenes import embedded
from rudder_hf.scenes.embedded import example_image
from tests.support.browser import CSS, THEMES, WIDTHS, as_seen, check_readable, chromium, until, webdriver
from tests.support.command import rudder

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
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("downloads")) as driver:
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
    return answer.vanilla, answer.steered


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


def first_corrected(served: Any) -> tuple[int, tuple[str, str]]:
    """The first example where vanilla names an absent object and RUDDER does not, found by plain calls."""
    for number, scene in enumerate(embedded.examples(), start=1):
        answers = expected(served, example_image(number))
        wrong = [len(absent(answer, frozenset(scene.names))) for answer in answers]
        if wrong[0] > wrong[1] == 0:
            return number, answers
    raise AssertionError("there is no such example")


def open_advanced(browser: Any) -> None:
    until(lambda: browser.find_elements(CSS, "#advanced button"), "the page")
    browser.find_element(CSS, "#advanced button").click()
    until(lambda: [each for each in browser.find_elements(CSS, "#alpha_max") if each.is_displayed()], "the controls")


def set_number(browser: Any, name: str, value: object) -> None:
    box = number_box(browser, name)
    box.send_keys(webdriver.Keys.CONTROL, "a")
    box.send_keys(str(value), webdriver.Keys.TAB)


def test_a_person_tries_the_page(served: Any, browser: Any, tmp_path: Path) -> None:
    """In one visit, because starting over costs more than all the steps."""
    url, _, _ = served
    asked: list[str] = []

    # The page opens with the first example that RUDDER corrects; what is not in it is struck out.
    number, (vanilla, steered) = first_corrected(served)
    browser.get(url)
    wait_for(browser, (vanilla, steered))
    until(lambda: text(browser, "#vanilla .verdict") and text(browser, "#steered .verdict"), "verdicts")
    present = frozenset(embedded.examples()[number - 1].names)
    for side, answer in (("vanilla", vanilla), ("steered", steered)):
        struck = [item.text for item in browser.find_elements(CSS, f"#{side} .verdict del")]
        assert struck == list(dict.fromkeys(span.category for span in absent(answer, present)))
    assert "Absent objects named in all 48 scenes" in text(browser, ".rudder-head")
    assert text(browser, "#status") == "The answers differ in the framed words."
    unframed = "return [...document.querySelectorAll(arguments[0])].map(token => token.textContent.toLowerCase())"
    same = [browser.execute_script(unframed, f"#{side} .tok:not(.differs)") for side in ("vanilla", "steered")]
    assert same[0] == same[1] != []
    assert browser.find_elements(CSS, "#vanilla .differs")
    assert text(browser, "#steered h3") == "With RUDDER"
    asked += requests(browser)

    # The examples have names for those who do not see them; the numbers of the tokens need no mouse.
    names = [button.accessible_name for button in browser.find_elements(CSS, "#examples button")]
    assert names == [f"{n} {scene.place}" for n, scene in enumerate(embedded.examples()[:12], start=1)]
    summary = browser.find_element(CSS, "#steered summary")
    summary.send_keys(webdriver.Keys.ENTER)
    until(lambda: browser.find_element(CSS, "#steered table").is_displayed(), "the numbers")
    assert len(browser.find_elements(CSS, "#steered tbody tr")) == len(browser.find_elements(CSS, "#steered .tok"))

    # Only the steered answer has shades, which are its gate.
    script = """return [...document.querySelectorAll(arguments[0])].map(
        token => [parseFloat(token.dataset.tip.split(' ')[1]), parseFloat(token.style.getPropertyValue('--part'))])"""
    assert {part for _, part in browser.execute_script(script, "#vanilla .tok")} == {0}
    gates = browser.execute_script(script, "#steered .tok")
    assert all(100 * gate == pytest.approx(part, abs=0.6) for gate, part in gates)
    assert max(part for _, part in gates) > 20

    # An image of one's own: nobody knows what is in it, and the model knows scenes only.
    own = Image.linear_gradient("L").convert("RGB")
    own.save(tmp_path / "own.png")
    upload(browser, tmp_path / "own.png")
    wait_for(browser, expected(served, own))
    assert not browser.find_elements(CSS, ".absent, .verdict del")
    assert "trained on synthetic scenes only" in text(browser, "#note")
    # A preset: with RUDDER off both answers are the same, and the page says so.
    browser.find_element(CSS, "#preset input[value=off]").click()
    wait_for(browser, (expected(served, own)[0],) * 2)
    until(lambda: text(browser, "#status") == "Same answer.", "that the answers are the same")
    assert text(browser, "#steered h3") == "RUDDER is off"
    open_advanced(browser)
    assert float(number_box(browser, "alpha_max").get_attribute("value")) == 0
    # Another example takes the note away.
    browser.find_elements(CSS, "#examples button")[2].click()
    wait_for(browser, (expected(served, example_image(3))[0],) * 2)
    assert text(browser, "#note") == ""
    asked += requests(browser)

    # Nothing left the machine, and nothing was blocked from leaving it.
    hosts = {urlsplit(address).hostname for address in asked if not address.startswith(("data:", "blob:"))}
    assert hosts == {urlsplit(url).hostname} == {"127.0.0.1"}
    complaints = [row["message"] for row in browser.get_log("browser") if "Content Security Policy" in row["message"]]
    assert complaints == []


def test_every_setting_is_that_of_the_config(served: Any, browser: Any) -> None:
    """What the controls set, contrast included, is what `generate` does with the same settings."""
    settings = {"contrast": 1.5, "k": 2}
    browser.get(served[0])
    wait_for(browser, first_corrected(served)[1])
    open_advanced(browser)
    for name, value in settings.items():
        set_number(browser, name, value)
    number = next(
        n for n in range(1, 13) if expected(served, example_image(n), **settings) != expected(served, example_image(n))
    )
    browser.find_elements(CSS, "#examples button")[number - 1].click()
    wait_for(browser, expected(served, example_image(number), **settings))
    assert text(browser, "#steered h3") == "With RUDDER and contrast"
    assert not [each for each in browser.find_elements(CSS, "#preset input") if each.is_selected()]


def test_a_damaged_file_is_told_and_takes_the_old_answer_away(served: Any, browser: Any, tmp_path: Path) -> None:
    browser.get(served[0])
    wait_for(browser, first_corrected(served)[1])
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
        assert not browser.find_elements(CSS, "#image img")  # no broken picture
        assert not browser.find_elements(CSS, ".toast-body")
    upload(browser, tmp_path / "whole.png")
    wait_for(browser, expected(served, example_image(2)))
    until(lambda: "answer" in text(browser, "#status .status"), "whether the answers differ")


def test_a_stopped_answer_says_so(served: Any, browser: Any) -> None:
    url, model, _ = served
    _, whole = first_corrected(served)
    slow = model.handle.backbone.model.register_forward_hook(lambda *_: time.sleep(0.5))
    try:
        browser.get(url)
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
        browser.get(served[0])
        until(lambda: text(browser, "#vanilla .verdict") and text(browser, "#steered .verdict"), "verdicts")
        open_advanced(browser)
        check_readable(browser)
        tops = "return arguments[0].map(name => document.querySelector(name).getBoundingClientRect().top)"
        image, vanilla, steered, examples, advanced = browser.execute_script(
            tops, ["#image", "#vanilla", "#steered", "#examples", "#advanced"]
        )
        if width < 900:
            assert image < vanilla <= steered < examples < advanced
        assert (vanilla == steered) == (width > 600)
        # Without an answer too.
        browser.find_element(CSS, "#image button[aria-label='Remove Image']").click()
        until(lambda: text(browser, "#status .status"), "a hint")
        check_readable(browser)


# The report of `rudder analyze`


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a report with answers as text and with a figure."""
    out = tmp_path_factory.mktemp("analysis") / "out"
    result = rudder("analyze", "--limit", 3, "--max-new-tokens", 24, "--out", out)
    assert result.exit_code == 0, result.output
    return (out / "report.html").as_uri()


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_the_report_is_readable_in_every_window(report: str, browser: Any, width: int, theme: str) -> None:
    with as_seen(browser, width, theme):
        browser.get(report)
        check_readable(browser)
        background = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(255, 255, 255)") == (theme == "light")
        # The first figure is text, which fits; the others have the size at which their text can be read.
        assert len(browser.find_elements(CSS, ".answers")) == 3
        sizes = """return [...document.querySelectorAll(arguments[0])].map(
            part => [part.getBoundingClientRect().width, part.naturalWidth * 96 / 150])"""
        assert all(part <= width for part, _ in browser.execute_script(sizes, ".answers, .answers > div, .figure"))
        for shown, drawn in browser.execute_script(sizes, ".figure img"):
            assert shown == pytest.approx(drawn if width < 800 else min(drawn, shown), abs=1)
            assert shown > 300
