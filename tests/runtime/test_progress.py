"""Progress: a bar on a terminal with counts, plain lines in a log."""

from __future__ import annotations

import io
import time
from contextlib import redirect_stderr

import pytest

from rudder_hf.runtime.progress import LINE_SECONDS, ProgressBar, followed


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _terminal_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


def test_a_bar_shows_text_and_count_of_every_stage_which_may_begin_again() -> None:
    stream = Terminal()
    with redirect_stderr(stream), ProgressBar() as bar:
        for call in (("layer 3", 4, 4), ("layer 3", 1, 4), ("layer 4", 4, 4), ("statistics", 1, 1)):
            bar(*call)
    text = stream.getvalue()
    assert text.index("4/4") < text.index("1/4") < text.index("layer 4") < text.index("statistics")


def test_nothing_is_shown_by_another_process() -> None:
    stream = Terminal()
    with redirect_stderr(stream), ProgressBar(shown=False) as bar:
        bar("answers", 1, 2)
    assert stream.getvalue() == ""


def test_a_log_has_a_plain_line_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    stream = io.StringIO()
    with redirect_stderr(stream), ProgressBar() as bar:
        for done in range(101):
            bar("scenes, vcd", done, 100)
            now += 7.0
    lines = stream.getvalue().splitlines()
    # 700 seconds, with a line at most every 60, on a step of 7.
    assert len(lines) == int(700 / (9 * 7.0)) == 11
    assert LINE_SECONDS == 60
    assert lines[0] == "scenes, vcd: 9 of 100, about 11 minutes left"
    assert lines[-1] == "scenes, vcd: 99 of 100, about 0 minutes left"


def test_items_are_reported_before_each_and_at_the_end() -> None:
    calls: list[tuple[str, int, int]] = []
    assert list(followed("ab", "letters", lambda *call: calls.append(call))) == ["a", "b"]
    assert calls == [("letters", 0, 2), ("letters", 1, 2), ("letters", 2, 2)]


def test_what_an_earlier_run_has_done_does_not_count_for_the_time_left() -> None:
    with redirect_stderr(Terminal()), ProgressBar() as bar:
        bar("setting 1", 0, 400)
        assert bar._bar is not None
        time.sleep(0.2)
        bar("setting 1", 1, 400)
        rate = bar._bar.format_dict["rate"]
        bar("setting 2", 300, 400)  # was there
        assert bar._bar.format_dict["rate"] == rate
        time.sleep(0.2)
        bar("setting 2", 350, 400)  # was not
        assert bar._bar.format_dict["rate"] > 2 * rate
