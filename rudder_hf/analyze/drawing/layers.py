"""Layer dynamics: length of the attention updates, absolute and relative, and their coherence."""

from __future__ import annotations

from typing import Any

import numpy as np

from .style import BLUE, DARK, SKY, figure

_PANELS = (
    ("update_norm", "||δ||", "length of the attention update\n(units of the hidden state)"),
    ("leverage", "||δ|| / ||h||", "length relative to\nthe hidden state (ratio)"),
    ("coherence", "directional coherence", "mean cosine with the CARDs of the\nother layers of the group"),
)


def draw_layers(numbers: dict[str, Any]) -> Any:
    """Three rows of bars over layers; a line for each group's mean, a triangle at the steered layer."""
    rows = numbers["layers"]
    layers = [row["layer"] for row in rows]
    made, axes = figure(max(6.4, 0.26 * len(layers) + 2.5), 6.8, 3)
    for axis, (name, title, label) in zip(axes, _PANELS, strict=True):
        values = [row[name] for row in rows]
        shades = [SKY if row["group"] % 2 else BLUE for row in rows]
        hatches = ["//" if row["group"] % 2 else "" for row in rows]
        axis.bar(layers, values, color=shades, hatch=hatches, edgecolor="white", linewidth=0.5, width=0.8)
        # The first layer reads bare embeddings, which are short: on a plain scale it would hide the others.
        wide = min(values) > 0 and max(values) > 10 * float(np.median(values))
        for group in numbers["groups"]:
            _group_mean(axis, group, name)
        if wide:
            axis.set_yscale("log")
        else:
            axis.axhline(0, color=DARK, linewidth=0.6)
        if numbers["steered_layer"] in layers:
            # At the upper edge, in front of the bars whatever their height.
            place = axis.get_xaxis_transform()
            axis.plot(numbers["steered_layer"], 1.0, "v", color="black", markersize=8, transform=place, clip_on=False)
        axis.margins(y=0.14)
        axis.set_title(f"{title}, n = {numbers['pictures']} pictures{' (logarithmic scale)' if wide else ''}", pad=9)
        axis.set_ylabel(label, size=8)
        axis.set_xticks(layers, [str(layer) for layer in layers], size=7 if len(layers) > 24 else 8)
    axes[-1].set_xlabel(
        "decoder layer, from 0\nshades: groups of layers; black lines: means of groups; ▼: steered layer"
    )
    return made


def _group_mean(axes: Any, group: dict[str, Any], name: str) -> None:
    first, last = group["layers"]
    axes.hlines(group[name], first - 0.45, last + 0.45, color=DARK, linewidth=1.8)
    axes.annotate(
        f"{group[name]:.3g}", (last + 0.45, group[name]), xytext=(-1, 3), textcoords="offset points", ha="right",
        size=7.5, color=DARK, bbox={"facecolor": "white", "alpha": 0.8, "pad": 0.6, "lw": 0},
    )  # fmt: skip
