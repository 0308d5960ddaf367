"""Numbers with their intervals, tables for the terminal, Markdown and LaTeX, and self-contained HTML pages.

```python
table = Table(["", "vanilla", "RUDDER"], [["CHAIR_S ↓", with_interval(48.2, 44.0, 52.1, "percent"), "..."]])
table.print()
write_new(out / "table.md", table.markdown())
write_new(out / "report.html", html_page("RUDDER analysis", [html_figure(png, "CHAIR_S by layer")]))
```

Figures are drawn with [`rudder_hf.runtime.figures`].
"""

from __future__ import annotations

import base64
import io
import shutil
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from .figures import DPI

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


def size(count: float) -> str:
    """Format a number of bytes: `1.5 GB`."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count:.0f} B"


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


# Pages of HTML

# Light or dark, as the reader's system. Figures stay white and keep their size: narrow windows scroll them, so that
# their text can be read.
_PAGE_CSS = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; max-width: 68rem; margin: 2rem auto;
  padding: 0 1rem; color: light-dark(#1a1a1a, #ececec); background: light-dark(#fff, #161618); }
h1 { font-size: 1.7rem; } h2 { font-size: 1.25rem; margin-top: 2.6rem; border-top: 1px solid #888; padding-top: 1rem; }
h3 { font-size: 1rem; margin: 1.6rem 0 .4rem; }
.figure { overflow-x: auto; background: #fff; border-radius: 6px; padding: .5rem; width: fit-content; max-width: 100%;
  box-sizing: border-box; } .figure img { display: block; height: auto; }
@media (min-width: 50rem) { .figure img { max-width: 100%; } }
code { background: light-dark(#f2f2f2, #2b2b2f); padding: 0 .2rem; }
"""


def html_page(title: str, parts: Iterable[str], css: str = "") -> str:
    """Return a self-contained page: nothing is fetched when it is opened.

    Args:
        title: Title of the browser's tab.
        parts: Pieces of HTML, in order; empty ones are left out.
        css: Rules for this page only.
    """
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_PAGE_CSS}{css}</style>\n</head>\n<body>\n"
        + "\n".join(part for part in parts if part)
        + "\n</body>\n</html>\n"
    )


def html_figure(png: bytes, alt: str) -> str:
    """Return a figure of `save_figure` for a page, with its alternative text."""
    width = int.from_bytes(png[16:20], "big") * 96 // DPI  # of the PNG's pixels, in the browser's, 96 to an inch
    # The keyboard reaches it too, for scrolling.
    return f'<div class="figure" tabindex="0"><img src="{data_uri(png)}" alt="{escape(alt)}" width="{width}"></div>'


def data_uri(png: bytes) -> str:
    """Return a PNG as a data URI."""
    return "data:image/png;base64," + base64.b64encode(png).decode()


def thumbnail_uri(image: Any, side: int = 240) -> str:
    """Return a PIL image as a data URI, at most `side` pixels wide and high."""
    copy = image.copy()
    copy.thumbnail((side, side))
    buffer = io.BytesIO()
    copy.save(buffer, format="PNG")
    return data_uri(buffer.getvalue())
