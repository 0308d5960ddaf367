"""Figures of the report, with what each shows and what it does not support; drawn from the numbers alone.

What all of them share, and the figures about layers and settings: dynamics of the layers, ablations of a calibration.
`card_figures` and `answer_figures` have the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..calibrate.figures import draw_heatmaps, draw_layers, draw_sweep, grids, vanilla_row
from ..runtime.figures import BLUE, DARK, LIGHT, MARKERS, ORANGE, SERIES, new_figure

OUTLINE: dict[str, Any] = {"histtype": "step", "color": DARK, "hatch": "///", "linewidth": 1.2}
"""How a histogram is drawn in front of another one."""


@dataclass(frozen=True)
class Figure:
    """One figure of the report.

    Attributes:
        name: Of its files.
        title: In the report.
        drawing: As matplotlib has it.
        shows: What it shows.
        limits: What it does not support.
        finding: The numbers to remember, in one sentence.
    """

    name: str
    title: str
    drawing: Any
    shows: str
    limits: str
    finding: str = ""


def brackets(ends: Sequence[float], digits: int = 2) -> str:
    """An interval: `[0.12, 0.34]`."""
    return f"[{ends[0]:.{digits}f}, {ends[1]:.{digits}f}]"


def histogram(axes: Any, values: Sequence[float], bins: Any, **options: Any) -> None:
    """Bars as shares of all values, in percent."""
    axes.hist(values, bins, weights=np.full(len(values), 100 / len(values)), **options)
    axes.set_ylabel("share in percent")


def value_above(axes: Any, text: str, place: float, height: float) -> None:
    """A number above a bar or a marker."""
    axes.annotate(text, (place, height), xytext=(0, 5), textcoords="offset points", ha="center", size=7.5)


def scatter_map(axes: Any, points: Any, labels: Any, names: Sequence[str]) -> None:
    """Points of a t-SNE map; each label has a shape, a colour, and its name in the legend."""
    for label, name in enumerate(names):
        inside = np.asarray(points)[np.asarray(labels) == label]
        axes.scatter(
            *inside.T, s=22, marker=MARKERS[label % len(MARKERS)], color=SERIES[label % len(SERIES)], edgecolor=DARK,
            linewidth=0.3, zorder=2, label=f"{name} (n = {len(inside)})",
        )  # fmt: skip
    axes.legend(loc="best", frameon=True, framealpha=0.9)
    # The coordinates mean nothing.
    axes.set(xticks=[], yticks=[], xlabel="t-SNE 1 (no unit)", ylabel="t-SNE 2 (no unit)")


def dynamics(numbers: dict[str, Any]) -> Figure:
    """Length of the attention updates, absolute and relative, their coherence, and what CARD is aligned with."""
    peak, relative = (max(numbers["layers"], key=lambda row: row[name]) for name in ("update_norm", "leverage"))
    shows = (
        f"What self-attention adds to the residual stream, averaged over the prompts of {numbers['images']} images: "
        f"its length is largest in layer {peak['layer']}, relative to the hidden state in layer "
        f"{relative['layer']}. Coherence is the mean cosine between a layer's CARD and those of the other layers of "
        "its group."
    )
    limits = (
        "A long update is room to act, not evidence that acting there helps: which layer reduces hallucination is a "
        "matter of measurement (the layer ablation). Nothing here looks at answers."
    )
    drawing = draw_layers(numbers["layers"], [numbers["steered_layer"]], "steered layer")
    return Figure("layers", "Layer dynamics", drawing, shows, limits)


def ablations(numbers: dict[str, Any]) -> Iterator[Figure]:
    """Heatmaps over strength and sensitivity, bars over layers, POPE; what the calibration has of them."""
    for grid in grids(numbers["settings"]):
        shows = (
            "CHAIR_S and CHAIR_I (less is better) and recall (more is better) over strength and sensitivity in layer "
            f"{grid.layer}, {'the chosen layer' if grid.chosen else 'another layer that was tried'}; darker is better "
            "in each."
        )
        limits = (
            "These are the images that the setting was chosen on, so that the best cell is optimistic; neighbouring "
            "cells often cannot be told apart (see the plateau in the calibration's report)."
        )
        title = f"Strength and sensitivity, {', '.join([f'layer {grid.layer}', *grid.rest])}"
        yield Figure(grid.name, title, draw_heatmaps(numbers, grid), shows, limits)
    if numbers["probes"]:
        yield _sweep(numbers)
    if numbers["pope"]:
        yield _pope(numbers["pope"])


def _sweep(numbers: dict[str, Any]) -> Figure:
    vanilla = vanilla_row(numbers["probes"])
    best = min((row for row in numbers["probes"] if row is not vanilla), key=lambda row: row["scores"]["chair_s"])
    least, before = (100 * row["scores"]["chair_s"] for row in (best, vanilla))
    finding = f"The least CHAIR_S of single layers is {least:.1f}, in layer {best['layer']} (vanilla {before:.1f})."
    shows = "Scores at the settings of the sweep, whose strengths are relative to each layer's hidden states."
    limits = (
        f"{vanilla['images']} images are few, and the best of many bars is partly luck: the calibration's report has "
        "the choice on more images and its check on others. A low CHAIR with a low recall is no gain."
    )
    return Figure("layer-ablation", "Which layer to steer", draw_sweep(numbers), shows, limits, finding)


def _pope(rows: list[dict[str, Any]]) -> Figure:
    accuracies = [100 * row["scores"]["accuracy"] for row in rows]
    steered = [value for row, value in zip(rows[1:], accuracies[1:], strict=True) if row["steer_first_token"]]
    shows = (
        f"Yes/no questions with the chosen setting and its neighbours; vanilla has an accuracy of "
        f"{accuracies[0]:.1f}. Settings that leave the first token unsteered cannot change a one-word answer; "
    )
    if steered:
        shows += f"steering it gives accuracies of {min(steered):.1f} to {max(steered):.1f}."
    else:
        shows += "no setting that steers it was asked."
    limits = (
        "Settings that equal vanilla are no sign of robustness: they do not act on one-word answers at all. Intervals "
        "are in the calibration's report."
    )
    return Figure("pope", "POPE", _draw_pope(rows), shows, limits)


def _draw_pope(rows: list[dict[str, Any]]) -> Any:
    """Accuracy and F1 of every setting that was asked POPE's questions."""
    drawing, (axes,) = new_figure(9.0, 0.34 * len(rows) + 1.4)
    places, side = [-place for place in range(len(rows))], axes.get_yaxis_transform()
    accuracy, f1 = ([100 * row["scores"][name] for row in rows] for name in ("accuracy", "f1"))
    axes.hlines(places, accuracy, f1, color=LIGHT, linewidth=1, zorder=1)
    axes.plot(accuracy, places, "o", color=BLUE, markersize=7, label="accuracy")
    axes.plot(f1, places, "s", color=ORANGE, markeredgecolor=DARK, markersize=6, label="F1")
    axes.axvline(accuracy[0], color=BLUE, linestyle="--", linewidth=1)
    axes.axvline(f1[0], color=ORANGE, linestyle=":", linewidth=1.4)
    for place, row in zip(places, rows, strict=True):
        axes.text(1.02, place, row["change"], va="center", size=7.5, transform=side)
    axes.text(1.02, 0.75, "accuracy minus vanilla's\n[95 % interval], points", size=7.5, transform=side)
    axes.set_yticks(places, [row["setting"] for row in rows], size=7.5)
    axes.set(xlabel="percent (lines: vanilla)", ylim=(0.6 - len(rows), 0.6))
    axes.set_title("POPE around the setting chosen on captions")
    drawing.legend(loc="outside lower left", ncols=2)
    return drawing
