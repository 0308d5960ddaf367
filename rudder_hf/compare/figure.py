"""The figure of a comparison: CHAIR_S against time per token, one point for each method. Needs the extra `plots`.

Groups differ in shape and filling, so that a print in grey says as much as the screen.
"""

from __future__ import annotations

from pathlib import Path

from ..evaluate.result import Result
from ..evaluate.tables import THROUGHPUT
from ..methods import GROUPS
from ..runtime.figures import DARK, GREY, LIGHT, new_figure, save_figure, styled

# Marker, filling, legend.
_STYLES = {
    "vanilla": ("*", DARK, "vanilla"),
    "rudder": ("o", DARK, "RUDDER"),
    "contrast": ("D", DARK, "contrast (not in the paper)"),
    "peers": ("s", "white", "peers"),
    "controls": ("X", LIGHT, "controls"),
}
_TICKS = (0.8, 1, 1.25, 1.5, 2, 3, 5, 8, 12)


def group_of(method: str) -> str:
    """The group that a method is drawn as: "vanilla", "rudder", "contrast", "peers" or "controls"."""
    return next((name for name in _STYLES if method in GROUPS.get(name, ())), "vanilla")


def save_figure_of(result: Result, path: Path) -> None:
    """Draw the methods of a result that have a cost, as PNG.

    Raises:
        ImportError: matplotlib is not installed.
    """
    shown = [(1 / method.cost[THROUGHPUT], method) for method in result.methods if method.cost]
    with styled():
        figure, (axes,) = new_figure(7.0, 4.5)
        drawn = set()
        for time, method in shown:
            group = group_of(method.method)
            marker, filling, label = _STYLES[group]
            value = method.metrics["chair_s"]
            errors = [[value.value - value.low], [value.high - value.value]]
            axes.errorbar(time, value.value, yerr=errors, fmt="none", ecolor=GREY, elinewidth=0.8, zorder=1)
            own = {} if group in drawn else {"label": label}
            axes.scatter(time, value.value, s=60, marker=marker, c=filling, edgecolors=DARK, zorder=3, **own)
            place = {"xytext": (6, 4), "textcoords": "offset points", "fontsize": 7}
            axes.annotate(method.name, (time, value.value), **place)
            drawn.add(group)
        axes.set_xscale("log")
        ticks = [tick for tick in _TICKS if tick <= 1.3 * max(time for time, _ in shown)]
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.margins(x=0.12, y=0.1)
        axes.set_xlabel("time per token, relative to vanilla: further left is cheaper")
        axes.set_ylabel("CHAIR_S (%): lower is better")
        axes.grid(color=LIGHT, linewidth=0.4, zorder=0)
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.02), ncols=3)
        save_figure(figure, path, svg=False)
