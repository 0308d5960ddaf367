"""The progress bar: what is being done, counts, and silence where nobody watches."""

from __future__ import annotations

import io
from contextlib import redirect_stderr
from typing import Any

import pytest

from rudder_hf.runtime.progress import ProgressBar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _terminal_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


def shown(calls: list[tuple[str, int, int]], stream: io.StringIO | None = None, **options: Any) -> str:
    """What appears on stderr."""
    stream = stream or Terminal()
    with redirect_stderr(stream), ProgressBar(**options) as bar:
        for call in calls:
            bar(*call)
    return stream.getvalue()


def test_every_stage_has_its_text_and_count() -> None:
    text = shown([*(("answers", done, 5) for done in (0, 3, 5)), ("statistics", 0, 1), ("statistics", 1, 1)])
    assert "answers" in text
    assert "5/5" in text
    assert "statistics" in text


def test_a_stage_may_begin_again() -> None:
    text = shown([("layer 3", 4, 4), ("layer 3", 1, 4), ("layer 4", 4, 4)])
    assert text.index("4/4") < text.index("1/4")
    assert "layer 4" in text


def test_nothing_is_shown_without_a_terminal_or_in_another_process() -> None:
    assert shown([("answers", 1, 2)], shown=False) == ""
    assert shown([("answers", 1, 2)], io.StringIO()) == ""
