"""The demo as a person uses it: a real browser, an image of one's own, a slider, the captions and their colours."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
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

pytestmark = pytest.mark.slow

pytest.importorskip("gradio", reason="the page needs gradio: pip install 'rudder-hf[demo]'")
webdriver = pytest.importorskip("selenium.webdriver", reason="the browser is driven by: pip install selenium")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
if CHROMIUM is None or DRIVER is None:
    pytest.skip("no browser here: apt-get install chromium chromium-driver", allow_module_level=True)

CSS = "css selector"
PATIENCE = 240  # seconds; only a machine that does much else needs them
NEW = 64


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[str, Any, Any]]:
    """The page's address, and the model behind it."""
    model, processor = embedded.load()
    with serve.serving(model, processor, "embedded", port=0, max_new_tokens=NEW) as url:
        yield url, model, processor


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    # Continuous integration runs as root in small containers: no sandbox, no shared memory. What a browser asks its
    # maker about is turned off, so that every request that is left comes from the page.
    for argument in (
        *("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--window-size=1300,1100"),
        *("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
    ):
        options.add_argument(argument)
    downloads = tmp_path_factory.mktemp("downloads")
    options.add_experimental_option("prefs", {"download.default_directory": str(downloads)})
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(DRIVER)))
    driver.downloads = downloads
    try:
        yield driver
    finally:
        driver.quit()


def until(condition: Callable[[], Any], what: str) -> Any:
    """Wait for something to become true and return it."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            if found := condition():
                return found
        except Exception as error:  # elements are replaced while an answer is written
            if "stale" not in str(error).lower():
                raise
        time.sleep(0.2)
    raise AssertionError(f"{what}: not within {PATIENCE} s")


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
    """(value that hovering shows as the gate, luminance on the screen) of every token."""
    script = """return [...document.querySelectorAll(arguments[0])].map(
        token => [token.dataset.tip, getComputedStyle(token).backgroundColor])"""
    found = []
    for tip, colour in browser.execute_script(script, f"#{side} .tok"):
        gate = re.search(r"gate (\d\.\d+)", tip)
        assert gate is not None, tip
        found.append((float(gate.group(1)), luminance([int(value) / 255 for value in re.findall(r"\d+", colour)[:3]])))
    return found


def requests(browser: Any) -> list[str]:
    messages = [json.loads(row["message"])["message"] for row in browser.get_log("performance")]
    return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]


def number_box(browser: Any, name: str) -> Any:
    return browser.find_element(CSS, f"#{name} input[type=number]")


def test_a_person_tries_the_page(served: Any, browser: Any, tmp_path: Path) -> None:
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
    browser.find_element(CSS, "#image button[aria-label='Remove Image']").click()
    upload = until(lambda: browser.find_elements(CSS, "#image input[type=file]"), "a place to upload an image")
    upload[0].send_keys(str(tmp_path / "own.png"))
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
    until(lambda: (browser.downloads / "config.json").is_file(), "the saved settings")
    saved = RudderConfig.from_pretrained(browser.downloads)
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
    # Narrow, as on a telephone: nothing is wider than the window.
    browser.set_window_size(500, 900)
    assert browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth + 1")
