"""Figures about layers and settings: dynamics of the layers, and the ablations of a calibration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ...calibrate.figures import draw_heatmaps, draw_sweep, grids, vanilla_row
from ...runtime.figures import BLUE, DARK, LIGHT, ORANGE, SKY, new_figure
from .common import Figure

_PANELS = (
    ("update_norm", "||δ||", "length of the attention update\n(units of the hidden state)"),
    ("leverage", "||δ|| / ||h||", "length relative to\nthe hidden state (ratio)"),
    ("coherence", "directional coherence", "mean cosine with the CARDs of the\nother layers of the group"),
)


def dynamics(numbers: dict[str, Any]) -> Figure:
    """Length of the attention updates, absolute and relative, and their coherence."""
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
    return Figure("layers", "Layer dynamics", _draw_dynamics(numbers), shows, limits)


def _draw_dynamics(numbers: dict[str, Any]) -> Any:
    """Three rows of bars over layers; a line for each group's mean, a triangle at the steered layer."""
    rows, steered = numbers["layers"], numbers["steered_layer"]
    layers = [row["layer"] for row in rows]
    drawing, axes = new_figure(max(6.4, 0.26 * len(layers) + 2.5), 6.8, 3)
    for axis, (name, title, label) in zip(axes, _PANELS, strict=True):
        values = [row[name] for row in rows]
        shades, hatches = zip(*((SKY, "//") if row["group"] % 2 else (BLUE, "") for row in rows), strict=True)
        axis.bar(layers, values, color=shades, hatch=hatches, edgecolor="white", linewidth=0.5, width=0.8)
        for group in numbers["groups"]:
            first, last, mean = group["layers"][0] - 0.45, group["layers"][1] + 0.45, group[name]
            axis.hlines(mean, first, last, color=DARK, linewidth=1.8)
            box = {"facecolor": "white", "alpha": 0.8, "pad": 0.6, "lw": 0}
            place = {"xytext": (-1, 3), "textcoords": "offset points", "ha": "right"}
            axis.annotate(f"{mean:.3g}", (last, mean), **place, size=7.5, color=DARK, bbox=box)
        # The first layer reads bare embeddings, which are short: on a plain scale it would hide the others.
        wide = min(values) > 0 and max(values) > 10 * float(np.median(values))
        if wide:
            axis.set_yscale("log")
        else:
            axis.axhline(0, color=DARK, linewidth=0.6)
        if steered in layers:
            # At the upper edge, in front of the bars whatever their height.
            edge = {"transform": axis.get_xaxis_transform(), "clip_on": False}
            axis.plot(steered, 1.0, "v", color="black", markersize=8, **edge)
        axis.margins(y=0.14)
        axis.set_title(f"{title}, n = {numbers['images']} images{' (logarithmic scale)' if wide else ''}", pad=9)
        axis.set_ylabel(label, size=8)
        axis.set_xticks(layers, [str(layer) for layer in layers], size=7 if len(layers) > 24 else 8)
    axes[-1].set_xlabel(
        "decoder layer, from 0\nshades: groups of layers; black lines: means of groups; ▼: steered layer"
    )
    return drawing


def ablations(numbers: dict[str, Any]) -> Iterator[Figure]:
    """Heatmaps over strength and sensitivity, bars over layers, POPE; what the calibration has of them."""
    for grid in grids(numbers["settings"]):
        shows = (
            "CHAIR_S and CHAIR_I (less is better) and recall (more is better) over strength and sensitivity in layer "
            f"{grid.layer}, {'the chosen layer' if grid.chosen else 'another layer that was tried'}; darker is better "
            "in each."
        )
        limits = (
            "These are the images that the setting was chosen on, so that the best cell flatters itself; neighbouring "
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
