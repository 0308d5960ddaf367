"""What people read: numbers, tables, and progress, a bar on a terminal and plain lines in a log."""

from __future__ import annotations

import io
import time
from contextlib import redirect_stderr

import pytest

from rudder_hf.runtime.report import (
    LINE_SECONDS,
    ProgressBar,
    Table,
    followed,
    heading,
    number,
    p_value,
    with_interval,
)

TABLE = Table(
    ["Decoding", "Method", "CHAIR_S ↓"],
    [["Greedy", "a|b", "1.0 %"], ["Greedy", "RUDDER", "2.0"], ["Beam", "<x>", "3.0"]],
)


def test_numbers() -> None:
    assert number(12.345, "percent") == "12.3"
    assert number(1.2345, "nats", sign=True) == "+1.234"
    assert with_interval(48.2, 44.0, 52.1, "percent") == "48.2 [44.0, 52.1]"
    assert (p_value(0.04), p_value(0.0001)) == ("0.040", "< 0.001")
    assert (heading("CHAIR_S", "lower"), heading("Length")) == ("CHAIR_S ↓", "Length")


def test_markdown_and_latex() -> None:
    assert TABLE.markdown().splitlines() == [
        "| Decoding | Method | CHAIR_S ↓ |", "| --- | --- | --- |", "| Greedy | a/b | 1.0 % |",
        "| Greedy | RUDDER | 2.0 |", "| Beam | <x> | 3.0 |",
    ]  # fmt: skip
    assert TABLE.latex().splitlines() == [
        r"\begin{tabular}{lcc}", r"\toprule", r"Decoding & Method & CHAIR$_S$ $\downarrow$ \\", r"\midrule",
        r"Greedy & a|b & 1.0 \% \\", r"Greedy & RUDDER & 2.0 \\", r"Beam & <x> & 3.0 \\", r"\bottomrule",
        r"\end{tabular}",
    ]  # fmt: skip


# Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_shows_text_and_count_of_every_stage_which_may_begin_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
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
        for done in range(50, 151):  # what an earlier run has done does not count for the time left
            bar("scenes, vcd", done, 150)
            now += 7.0
    lines = stream.getvalue().splitlines()
    # 700 seconds, with a line at most every 60, on a step of 7.
    assert len(lines) == int(700 / (9 * 7.0)) == 11
    assert LINE_SECONDS == 60
    assert lines[0] == "scenes, vcd: 59 of 150, 11 min left"
    assert lines[-1] == "scenes, vcd: 149 of 150, 0 min left"


def test_items_are_reported_before_each_and_at_the_end() -> None:
    calls: list[tuple[str, int, int]] = []
    assert list(followed("ab", "letters", lambda *call: calls.append(call))) == ["a", "b"]
    assert calls == [("letters", 0, 2), ("letters", 1, 2), ("letters", 2, 2)]
