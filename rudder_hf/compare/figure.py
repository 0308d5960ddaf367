"""The figure of a comparison: hallucination against cost, one point for each method. Needs the extra `plots`.

Groups differ in shape and filling, so that a print in grey says as much as the screen. Names stand in a column at the
right, in the order of the points, because most methods cost nearly the same and their names would overlap.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..methods import GROUPS
from ..runtime.figures import DARK, GREY, LIGHT, new_figure, save_figure, styled
from .table import CONTROL, DECODINGS, Comparison, Row
from .variants import CALIBRATED, PUBLISHED, TUNED

_ORDER = (TUNED, CALIBRATED, PUBLISHED, CONTROL, "")
# Marker, filling, legend.
_STYLES = {
    "vanilla": ("*", DARK, "vanilla"),
    "rudder": ("o", DARK, "RUDDER"),
    "contrast": ("D", DARK, "contrast (not in the paper)"),
    "peers": ("s", "white", "peers"),
    "controls": ("X", LIGHT, "controls"),
}
_TICKS = (0.8, 1, 1.25, 1.5, 2, 3, 5, 8, 12)
_METRIC = "chair_s"
_GAP = 0.045  # least distance of two names, in heights of the figure


def points(comparison: Comparison, decoding: str) -> dict[str, tuple[Row, float]]:
    """Rows and times per token relative to vanilla's, by what is written beside the point.

    One for each method that has a score and a cost: with tuned settings if there are any.
    """
    shown: dict[str, Row] = {}
    for row in comparison.rows:
        known = shown.get(row.method)
        better = known is None or _ORDER.index(row.variant) < _ORDER.index(known.variant)
        if row.decoding == decoding and _METRIC in row.metrics and better:
            shown[row.method] = row
    found = {}
    for row in shown.values():
        cost = comparison.cost(row.method, decoding)
        if cost is not None and not cost.refusal:
            name = row.method if row.variant in ("", CONTROL) else f"{row.method}, {row.variant}"
            found[name] = row, 1.0 if cost.ratio is None else 1.0 / cost.ratio.median
    return found


def group_of(method: str) -> str:
    """The group that a method is drawn as: "vanilla", "rudder", "contrast", "peers" or "controls"."""
    return next((name for name in _STYLES if method in GROUPS.get(name, ())), "vanilla")


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


def save_figures(comparison: Comparison, folder: Path) -> None:
    """Draw each decoding that has costs, as PNG and SVG; a figure that exists is left as it is.

    Raises:
        ImportError: matplotlib is not installed.
    """
    for decoding in comparison.decodings():
        shown = points(comparison, decoding)
        if len(shown) > 1 and not (folder / f"{decoding}.png").exists():
            with styled():
                save_figure(_draw(DECODINGS.get(decoding, decoding), shown), folder / decoding)


def _draw(title: str, shown: dict[str, tuple[Row, float]]) -> Any:
    figure, (axes,) = new_figure(8.0, 5.5)
    for group, (marker, filling, label) in _STYLES.items():
        own = [(row.metrics[_METRIC], cost) for row, cost in shown.values() if group_of(row.method) == group]
        if not own:
            continue
        x, y = [cost for _, cost in own], [score.value for score, _ in own]
        errors = [[score.value - score.low for score, _ in own], [score.high - score.value for score, _ in own]]
        axes.errorbar(x, y, yerr=errors, fmt="none", ecolor=GREY, elinewidth=0.8, zorder=1)
        axes.scatter(x, y, s=70, marker=marker, c=filling, edgecolors=DARK, label=label, zorder=3)
    axes.set_xscale("log")
    ticks = [tick for tick in _TICKS if tick <= 1.3 * max(cost for _, cost in shown.values())]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.margins(x=0.08, y=0.1)
    axes.set_xlabel("time per token, relative to vanilla: further left is cheaper")
    axes.set_ylabel("CHAIR_S (%): lower is better")
    axes.set_title(title)
    axes.grid(color=LIGHT, linewidth=0.4, zorder=0)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.06), ncols=len(_STYLES))
    # Names in a column at the right, joined to their points by thin lines.
    low, high = axes.get_ylim()
    places = {name: (cost, row.metrics[_METRIC].value) for name, (row, cost) in shown.items()}
    heights = spread([(value - low) / (high - low) for _, value in places.values()], _GAP)
    for (name, place), height in zip(places.items(), heights, strict=True):
        axes.annotate(
            f"{name}  {place[1]:.1f}",
            xy=place,
            xytext=(1.04, height),
            textcoords="axes fraction",
            fontsize=8,
            va="center",
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": LIGHT, "linewidth": 0.7, "shrinkB": 5, "relpos": (0, 0.5)},
        )
    return figure
