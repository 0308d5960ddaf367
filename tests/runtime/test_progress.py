"""The progress bar: what is being done, counts, and silence where nobody watches."""

from __future__ import annotations

import io
import time
from contextlib import redirect_stderr
from typing import Any

import pytest

from rudder_hf.runtime.progress import Progress, ProgressBar, consecutive, followed, stages


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


def reported(work: Any) -> list[tuple[str, int, int]]:
    """What `work` reports to the progress that it is called with."""
    calls: list[tuple[str, int, int]] = []
    work(lambda *call: calls.append(call))
    return calls


def test_stages_are_counted_unless_there_is_one() -> None:
    def work(progress: Progress, names: tuple[str, ...]) -> None:
        for stage in stages(progress, names):
            stage("vcd", 1, 2)

    assert reported(lambda progress: work(progress, ("", "tuning", ""))) == [
        ("1 of 3: vcd", 1, 2),
        ("2 of 3: tuning, vcd", 1, 2),
        ("3 of 3: vcd", 1, 2),
    ]
    assert reported(lambda progress: work(progress, ("",))) == [("vcd", 1, 2)]


def test_pieces_share_a_bar_that_reaches_its_end() -> None:
    def work(progress: Progress) -> None:
        for number, piece in enumerate(consecutive(progress, [2, 0, 3])):
            size = [2, 0, 3][number]
            assert list(followed(range(size), f"piece {number}", piece)) == list(range(size))

    assert [call[1:] for call in reported(work)] == [(0, 5), (1, 5), (2, 5), (2, 5), (2, 5), (3, 5), (4, 5), (5, 5)]
    text = shown(reported(work))
    assert "100%" in text
    assert text.count("  0%") == 1  # one bar


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
