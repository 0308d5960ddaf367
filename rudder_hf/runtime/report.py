"""What people read: progress on stderr, numbers with their intervals, tables for the terminal, Markdown and LaTeX.

```python
table = Table(["", "vanilla", "RUDDER"], [["CHAIR_S ↓", with_interval(48.2, 44.0, 52.1, "percent"), "..."]])
table.print()
write_new(out / "table.md", table.markdown())
```

Functions that take long have an argument `progress: Progress = no_progress` and call `progress(text, done, total)`.
The command line passes a [`ProgressBar`]: a bar on a terminal, a plain line a minute elsewhere, as in a cluster's log.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

from tqdm import tqdm

ARROWS = {"lower": "↓", "higher": "↑", "none": ""}
"""The sign behind a metric's name that says which direction is better."""

_DIGITS = {"percent": 1, "points": 2, "words": 1, "nats": 3}


# Numbers


def number(value: float, unit: str = "", sign: bool = False) -> str:
    """Format a number with the digits of its unit; percent are given as percent, not as fractions."""
    return f"{value:{'+' if sign else ''}.{_DIGITS.get(unit, 2)}f}"


def with_interval(value: float, low: float, high: float, unit: str = "", sign: bool = False) -> str:
    """Format a number and its interval: `48.2 [44.0, 52.1]`."""
    return f"{number(value, unit, sign)} [{number(low, unit, sign)}, {number(high, unit, sign)}]"


def change_in_points(change: Mapping[str, float]) -> str:
    """Format a recorded difference of fractions in percentage points with its interval: `-3.0 [-5.6, -0.4]`."""
    value, low, high = (100 * change[name] for name in ("value", "low", "high"))
    return with_interval(value, low, high, "percent", sign=True)


def p_value(p: float) -> str:
    """Format a p-value; below 0.001 only this bound is given."""
    return f"{p:.3f}" if p >= 0.001 else "< 0.001"


def heading(label: str, direction: str = "none") -> str:
    """Return a metric's name with an arrow in the direction that is better ("lower", "higher" or "none")."""
    return f"{label} {ARROWS[direction]}".strip()


# Tables


@dataclass(frozen=True)
class Table:
    """Headings and cells; the first column holds names, which are aligned left, the others right."""

    headings: Sequence[str]  # One for each column
    rows: Sequence[Sequence[str]]  # The cells, as text
    title: str = ""  # Stands above the table in the terminal

    def markdown(self) -> str:
        """Return the table in Markdown, without its title and without a line break at the end."""
        lines = [self.headings, ["---"] * len(self.headings), *self.rows]
        return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)

    def latex(self) -> str:
        """Return the table in LaTeX (booktabs)."""
        lines = [" & ".join(map(latex_text, cells)) + r" \\" for cells in (self.headings, *self.rows)]
        start = rf"\begin{{tabular}}{{l{'c' * (len(self.headings) - 1)}}}"
        return (
            "\n".join([start, r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule", r"\end{tabular}"]) + "\n"
        )

    def text(self, width: int = 80) -> str:
        """Return the table for a terminal, without borders.

        A table that is too wide is transposed if that fits, and otherwise split into several parts.
        """
        lines = [list(self.headings), *map(list, self.rows)]
        columns = [list(column) for column in zip(*lines, strict=True)]
        if _width(columns) > width >= _width(lines):
            columns = lines
        label, parts = columns[0], [columns[1:]]
        while _width([label, *parts[-1]]) > width and len(parts[-1]) > 1:
            last = parts.pop()
            fitting = [n for n in range(1, len(last)) if _width([label, *last[:n]]) <= width]
            cut = max(fitting, default=1)
            parts += [last[:cut], last[cut:]]
        title = [textwrap.fill(self.title, width)] if self.title else []
        return "\n".join([*title, *("\n".join(_aligned([label, *part])) for part in parts)])

    def print(self) -> None:
        """Print the table in the width of the terminal."""
        print(self.text(shutil.get_terminal_size((80, 24)).columns))


def _width(columns: Sequence[Sequence[str]]) -> int:
    return sum(max(map(len, column)) + 1 for column in columns) - 1


def _aligned(columns: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines for a terminal, with a rule below the first."""
    widths = [max(map(len, column)) for column in columns]
    lines = [
        " ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ).rstrip()
        for cells in zip(*columns, strict=True)
    ]
    return [lines[0], "-" * max(map(len, lines)), *lines[1:]]


def latex_text(text: str) -> str:
    """Escape LaTeX's special signs, and set arrows and CHAIR's indices as the paper does."""
    for sign in "&%$#_{}":
        text = text.replace(sign, f"\\{sign}")
    for plain, tex in (("CHAIR\\_S", "CHAIR$_S$"), ("CHAIR\\_I", "CHAIR$_I$")):
        text = text.replace(plain, tex)
    return text.replace("↓", r"$\downarrow$").replace("↑", r"$\uparrow$")


# Progress

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""
Item = TypeVar("Item")
LINE_SECONDS = 60.0
"""Seconds between two lines where stderr is no terminal."""


def no_progress(text: str, done: int, total: int) -> None:
    """Report nothing."""


def followed(items: Sequence[Item], text: str, progress: Progress) -> Iterator[Item]:
    """Yield the items, with a report before each and after the last."""
    for number, item in enumerate(items):
        progress(text, number, len(items))
        yield item
    progress(text, len(items), len(items))


class _Bar(tqdm):  # type: ignore[type-arg]
    # No thread that redraws bars: it would disturb timings.
    monitor_interval = 0


class ProgressBar:
    """Progress on stderr; the bar is removed when it ends.

    Args:
        shown: Whether this process shows anything.
    """

    def __init__(self, shown: bool = True) -> None:
        self._shown, self._terminal = shown, sys.stderr.isatty()
        self._bar: _Bar | None = None
        self._total, self._first, self._begun, self._said = -1, 0, 0.0, 0.0

    def __enter__(self) -> Self:
        return self

    def __call__(self, text: str, done: int, total: int) -> None:
        """Show what is being done, how much of it is done, and how much there is."""
        if not self._shown:
            return
        now = time.monotonic()
        if total != self._total or done < self._first:
            # The time left does not count what an earlier run has done.
            self._total, self._first, self._begun, self._said = total, done, now, now
            self.__exit__()
            if self._terminal:
                form = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}]"
                self._bar = _Bar(desc=text, total=total, initial=done, leave=False, miniters=1, bar_format=form)
        if self._bar is not None:
            self._bar.set_description(text, refresh=False)
            self._bar.update(done - self._bar.n)
            if done == total:
                self._bar.refresh()
        elif now - self._said >= LINE_SECONDS and done > self._first:
            self._said = now
            left = (now - self._begun) / (done - self._first) * (total - done)
            print(f"{text}: {done} of {total}, {left / 60:.0f} min left", file=sys.stderr, flush=True)

    def __exit__(self, *error: object) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
