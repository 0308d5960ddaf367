"""Layer dynamics: length of the attention updates, absolute and relative, and their coherence."""

from __future__ import annotations

from typing import Any

from .style import BLUE, DARK, SKY, figure

_PANELS = (
    ("update_norm", "||δ||", "length of the attention update\n(units of the hidden state)"),
    ("leverage", "||δ|| / ||h||", "length relative to\nthe hidden state (ratio)"),
    ("coherence", "directional coherence", "mean cosine with the CARDs of the\nother layers of the group"),
)


def draw_layers(numbers: dict[str, Any]) -> Any:
    """Three rows of bars over layers; a line for each group's mean, a triangle at the steered layer."""
    rows, groups = numbers["layers"], numbers["groups"]
    layers = [row["layer"] for row in rows]
    made, axes = figure(max(6.0, 0.26 * len(layers) + 2.5), 6.6, 3)
    for axis, (name, title, label) in zip(axes, _PANELS, strict=True):
        values = [row[name] for row in rows]
        shades = [SKY if row["group"] % 2 else BLUE for row in rows]
        hatches = ["//" if row["group"] % 2 else "" for row in rows]
        axis.bar(layers, values, color=shades, hatch=hatches, edgecolor="white", linewidth=0.5, width=0.8)
        for group in groups:
            first, last = group["layers"]
            axis.hlines(group[name], first - 0.45, last + 0.45, color=DARK, linewidth=1.8)
            axis.annotate(
                f"{group[name]:.3g}", (last + 0.45, group[name]), xytext=(-1, 3), textcoords="offset points",
                ha="right", size=7.5, color=DARK, bbox={"facecolor": "white", "alpha": 0.8, "pad": 0.6, "lw": 0},
            )  # fmt: skip
        if numbers["steered_layer"] in layers:
            top = max(*values, 0.0)
            room = (top - min(*values, 0.0)) or 1.0
            axis.plot(numbers["steered_layer"], top + 0.16 * room, "v", color="black", markersize=7, clip_on=False)
            axis.set_ylim(min(*values, 0.0) * 1.1, top + 0.24 * room)
        axis.axhline(0, color=DARK, linewidth=0.6)
        axis.set_title(f"{title}, n = {numbers['pictures']} pictures")
        axis.set_ylabel(label, size=8)
        axis.set_xticks(layers, [str(layer) for layer in layers], size=7 if len(layers) > 24 else 8)
    axes[-1].set_xlabel(
        "decoder layer, counted from 0 (shades: groups of layers; black line: mean of the group; ▼: steered layer)"
    )
    return made
