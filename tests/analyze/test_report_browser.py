"""report.html in a real browser: every window, both themes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rudder_hf.cli.main import app
from tests.support.browser import CSS, THEMES, WIDTHS, as_seen, check_readable, chromium

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a report with answers as text and with a figure."""
    out = tmp_path_factory.mktemp("analysis") / "out"
    command = ["analyze", "--limit", "3", "--max-new-tokens", "24"]
    result = CliRunner().invoke(app, [*command, "--out", str(out)])
    assert result.exit_code == 0, result.output
    return (out / "report.html").as_uri()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(Path(tmp_path_factory.mktemp("downloads"))) as driver:
        yield driver


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
