"""The picture of a comparison: hallucination against cost, one point for each method. Needs the extra `plots`.

Groups are told apart by shape and filling, so that a print in grey says as much as the screen. Names stand in a column
at the right, in the order of the points, because most methods cost nearly the same and their names would overlap.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..methods import GROUPS
from .record import Comparison, Row
from .table import DECODINGS

_ORDER = ("tuned", "calibrated", "published", "control", "")
# Marker, filling, legend.
_STYLES = {
    "vanilla": ("*", "black", "vanilla"),
    "rudder": ("o", "black", "RUDDER"),
    "peers": ("s", "white", "peers"),
    "controls": ("X", "0.75", "controls"),
}
_GAP = 0.045  # least distance of two names, in heights of the picture


@dataclass(frozen=True)
class Point:
    """One method in the picture.

    Attributes:
        name: What is written beside it.
        group: "vanilla", "rudder", "peers" or "controls".
        cost: Time per token relative to vanilla's.
        value: The metric, with the ends of its interval.
        low: See `value`.
        high: See `value`.
    """

    name: str
    group: str
    cost: float
    value: float
    low: float
    high: float


def points(comparison: Comparison, decoding: str, metric: str = "chair_s") -> list[Point]:
    """One point for each method that has a score and a cost: with tuned settings if there are any."""
    best: dict[str, Row] = {}
    for row in comparison.rows:
        if row.decoding != decoding or metric not in row.metrics:
            continue
        known = best.get(row.method)
        if known is None or _rank(row) < _rank(known):
            best[row.method] = row
    found = []
    for row in best.values():
        cost = comparison.cost(row.method, decoding)
        if cost is None or cost.refusal:
            continue
        value = row.metrics[metric]
        relative = 1.0 if cost.ratio is None else 1.0 / cost.ratio.median
        name = row.method if row.variant in ("", "control") else f"{row.method}, {row.variant}"
        found.append(Point(name, _group(row.method), relative, value.value, value.low, value.high))
    return found


def _rank(row: Row) -> int:
    return _ORDER.index(row.variant) if row.variant in _ORDER else len(_ORDER)


def _group(method: str) -> str:
    return next((name for name in ("rudder", "controls", "peers") if method in GROUPS[name]), "vanilla")


def spread(heights: list[float], gap: float) -> list[float]:
    """The same heights, in the same order, moved apart to at least `gap`, within [0, 1] if they fit."""
    order = sorted(range(len(heights)), key=lambda place: heights[place])
    gap = min(gap, 1.0 / max(len(heights) - 1, 1))
    moved = [0.0] * len(heights)
    floor = 0.0
    for number, place in enumerate(order):
        ceiling = 1.0 - gap * (len(order) - 1 - number)
        moved[place] = min(max(heights[place], floor), ceiling)
        floor = moved[place] + gap
    return moved


def save_pictures(comparison: Comparison, folder: Path, metric: str = "chair_s") -> list[Path]:
    """Draw each decoding that has costs, as PNG and SVG; files that exist are left as they are.

    Raises:
        ImportError: matplotlib is not installed.
    """
    paths = []
    for decoding in comparison.decodings():
        shown = points(comparison, decoding, metric)
        if len(shown) < 2:
            continue
        for suffix in ("png", "svg"):
            path = folder / f"{decoding}.{suffix}"
            paths.append(path)
            if not path.exists():
                _draw(comparison, decoding, shown, metric, path)
    return paths


def _draw(comparison: Comparison, decoding: str, shown: list[Point], metric: str, path: Path) -> None:
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    values = next(row.metrics[metric] for row in comparison.rows if metric in row.metrics)
    figure = Figure(figsize=(8.0, 5.5))
    FigureCanvasAgg(figure)  # without pyplot: no window system, no global state
    axes = figure.add_axes((0.09, 0.11, 0.6, 0.75))
    for group, (marker, filling, label) in _STYLES.items():
        own = [point for point in shown if point.group == group]
        if not own:
            continue
        x, y = [point.cost for point in own], [point.value for point in own]
        errors = [[p.value - p.low for p in own], [p.high - p.value for p in own]]
        axes.errorbar(x, y, yerr=errors, fmt="none", ecolor="0.7", elinewidth=0.8, zorder=1)
        axes.scatter(x, y, s=70, marker=marker, c=filling, edgecolors="black", label=label, zorder=3)
    axes.set_xscale("log")
    ticks = [t for t in (0.8, 1, 1.25, 1.5, 2, 3, 5, 8, 12) if t <= 1.3 * max(p.cost for p in shown)]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.margins(x=0.08, y=0.1)
    unit = " (%)" if values.unit == "percent" else ""
    axes.set_xlabel("time per token, relative to vanilla: further left is cheaper")
    axes.set_ylabel(f"{values.label}{unit}: {'lower' if values.direction == 'lower' else values.direction} is better")
    axes.set_title(DECODINGS.get(decoding, decoding), size=11)
    axes.grid(color="0.92", zorder=0)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.06), ncols=len(_STYLES), fontsize=8, frameon=False)
    _names(axes, shown)
    # The same picture from the same numbers: no date, no random ids.
    with matplotlib.rc_context({"svg.hashsalt": "rudder"}):
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)


def _names(axes: Any, shown: list[Point]) -> None:
    """Names in a column at the right, joined to their points by thin lines."""
    low, high = axes.get_ylim()
    heights = spread([(point.value - low) / (high - low) for point in shown], _GAP)
    for point, height in zip(shown, heights, strict=True):
        axes.annotate(
            f"{point.name}  {point.value:.1f}",
            xy=(point.cost, point.value),
            xytext=(1.04, height),
            textcoords="axes fraction",
            fontsize=8,
            va="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": "0.6", "linewidth": 0.5, "shrinkA": 0, "shrinkB": 5},
        )
