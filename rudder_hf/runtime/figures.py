"""Style of all figures: readable in greyscale and without colour vision, no window system, reproducible files.

Groups differ in lightness and in a hatch, marker or line style, never in hue alone. The hues are those of Okabe and
Ito. Needs the extra `plots`; matplotlib is imported when a figure is drawn.

```python
with styled():
    figure, (axes,) = new_figure(6.0, 4.0)
    axes.plot(layers, scores, color=BLUE, marker="o")
    save_figure(figure, out / "figures" / "layers")  # layers.png and layers.svg
```
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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
