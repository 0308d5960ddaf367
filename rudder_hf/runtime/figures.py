"""Figures and self-contained pages of HTML. All figures have one style: readable in greyscale and without colour
vision, no window system, reproducible files.

Groups differ in lightness and in a hatch, marker or line style, never in hue alone. The hues are those of Okabe and
Ito. Needs the extra `plots`; matplotlib is imported when a figure is drawn.

```python
with styled():
    figure, (axes,) = new_figure(6.0, 4.0)
    axes.plot(layers, scores, color=BLUE, marker="o")
    png = save_figure(figure, out / "figures" / "layers")  # layers.png and layers.svg
write_new(out / "report.html", html_page("RUDDER analysis", [html_figure(png.read_bytes(), "CHAIR_S by layer")]))
```
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any

BLUE, SKY, DARK, LIGHT = "#0072B2", "#56B4E9", "#222222", "#D9D9D9"
DPI = 150
_STYLE = {
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "legend.fontsize": 8.0,
    "legend.frameon": False,
    "hatch.linewidth": 0.6,
    # Without it ids in an SVG are random: the same numbers give the same file.
    "svg.hashsalt": "rudder",
    "svg.fonttype": "path",
}


@contextmanager
def styled() -> Iterator[None]:
    """Draw and save figures within this context; matplotlib's settings are restored afterwards."""
    import matplotlib

    with matplotlib.rc_context(_STYLE):
        yield


def new_figure(width: float, height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Any, list[Any]]:
    """Create a figure, sized in inches, and its axes, row by row; options are those of `Figure.subplots`."""
    # Without pyplot: no window system, no global state.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(rows, columns, squeeze=False, **options).flat)


def save_figure(figure: Any, path: Path) -> Path:
    """Write a figure as PNG and SVG, within `styled`; the path has no suffix. Return the PNG's path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    png = path.with_name(f"{path.name}.png")
    figure.savefig(png, dpi=DPI, metadata={"Software": None})
    # Without date and address of the program.
    figure.savefig(path.with_name(f"{path.name}.svg"), metadata={"Date": None, "Creator": None})
    return png


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
