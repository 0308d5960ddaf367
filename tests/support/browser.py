"""A real browser: what a person sees in it, at a width and in a theme, and what is hard to read there."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

webdriver = pytest.importorskip("selenium.webdriver", reason="the browser is driven by: pip install selenium")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
if CHROMIUM is None or DRIVER is None:
    pytest.skip("no browser here: apt-get install chromium chromium-driver", allow_module_level=True)

CSS = "css selector"
PATIENCE = 240  # seconds; only a machine that does much else needs them
WIDTHS = (390, 820, 1400)
THEMES = ("light", "dark")
READABLE = 4.5  # contrast ratio of text, WCAG AA

# Every piece of text with a lower contrast ratio to what lies behind it. Colours are read through a canvas, which
# knows every notation; layers are mixed from the first opaque one up.
_UNREADABLE = """
const pen = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true});
const rgba = colour => {
  pen.clearRect(0, 0, 1, 1); pen.fillStyle = colour; pen.fillRect(0, 0, 1, 1);
  const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data; return [r / 255, g / 255, b / 255, a / 255];
};
const over = (top, below) => [0, 1, 2].map(i => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
const behind = element => {
  if (!element) return [1, 1, 1, 1];
  const fill = rgba(getComputedStyle(element).backgroundColor);
  return fill[3] === 1 ? fill : over(fill, behind(element.parentElement));
};
const luminance = colour => [0.2126, 0.7152, 0.0722].reduce((sum, share, i) =>
  sum + share * (colour[i] <= 0.04045 ? colour[i] / 12.92 : ((colour[i] + 0.055) / 1.055) ** 2.4), 0);
const found = new Map(), walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let node; node = walk.nextNode();) if (node.data.trim()) found.set(node.parentElement, node.data);
for (const field of document.querySelectorAll('input[type=number], textarea')) found.set(field, field.value);
const bad = [];
for (const [element, text] of found) {
  const box = element.getBoundingClientRect();
  if (['SCRIPT', 'STYLE'].includes(element.tagName) || !element.checkVisibility({visibilityProperty: true})) continue;
  if (box.width < 2 || box.height < 2 || element.closest(':disabled')) continue;
  const below = behind(element), ink = over(rgba(getComputedStyle(element).color), below);
  const [low, high] = [luminance(below), luminance(ink)].sort((a, b) => a - b);
  const ratio = (high + 0.05) / (low + 0.05);
  if (ratio < arguments[0]) bad.push(`${text.trim()}: ${ratio.toFixed(2)}`);
}
return bad;
"""


@contextmanager
def chromium(downloads: Path) -> Iterator[Any]:
    """A headless browser that saves files to a folder."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    # Continuous integration runs as root in small containers: no sandbox, no shared memory. What a browser asks its
    # maker about is turned off, so that every request that is left comes from the page.
    for argument in (
        *("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--window-size=1300,1100"),
        *("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
    ):
        options.add_argument(argument)
    options.add_experimental_option("prefs", {"download.default_directory": str(downloads)})
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(DRIVER)))
    try:
        yield driver
    finally:
        driver.quit()


@contextmanager
def as_seen(browser: Any, width: int, theme: str) -> Iterator[None]:
    """The browser as on a screen of this width whose owner prefers this theme."""
    screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    preferred = [{"name": "prefers-color-scheme", "value": theme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": preferred})
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def check_readable(browser: Any) -> None:
    """All text stands out from what is behind it, and nothing is wider than the window."""
    assert browser.execute_script(_UNREADABLE, READABLE) == []
    assert browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")


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
