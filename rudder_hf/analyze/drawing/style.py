"""What all figures share: readable in greyscale and without colour vision, no window system, the same bytes again.

Groups differ in lightness and in a hatch, marker or line style, never in hue alone. The hues are those of Okabe and
Ito, in an order in which neighbours differ in lightness.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BLUE, ORANGE, SKY, VERMILION, GREEN, PURPLE, YELLOW = (
    *("#0072B2", "#E69F00", "#56B4E9", "#D55E00", "#009E73", "#CC79A7", "#F0E442"),
)
DARK, GREY, LIGHT = "#222222", "#8A8A8A", "#D9D9D9"
SERIES = (BLUE, ORANGE, DARK, SKY, VERMILION, YELLOW, GREEN, PURPLE, GREY, "#FFFFFF")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
LINES: tuple[Any, ...] = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)))
DPI = 150
_RC = {
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "legend.fontsize": 8.0,
    "legend.frameon": False,
    "hatch.linewidth": 0.6,
    "svg.hashsalt": "rudder",
    "svg.fonttype": "path",
}


@contextmanager
def styled() -> Iterator[None]:
    """Draw and save within this; matplotlib's own settings are as they were afterwards."""
    import matplotlib

    with matplotlib.rc_context(_RC):
        yield


def figure(width: float, height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Any, list[Any]]:
    """A figure of so many inches and its axes, row by row."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    made = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(made)
    return made, list(made.subplots(rows, columns, squeeze=False, **options).flat)


def save(made: Any, folder: Path, name: str) -> Path:
    """Write a figure as PNG and SVG; returns the PNG."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.png"
    made.savefig(path, dpi=DPI, metadata={"Software": None})
    # Without date and address of the program: the same numbers give the same file.
    made.savefig(path.with_suffix(".svg"), metadata={"Date": None, "Creator": None})
    return path


def plain_map(axes: Any, title: str) -> None:
    """Coordinates of t-SNE mean nothing: no ticks."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title(title)
    axes.set_xlabel("t-SNE 1 (no unit)")
    axes.set_ylabel("t-SNE 2 (no unit)")
