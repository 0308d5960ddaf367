"""What CARD knows of the picture: probe, neighbours, categories; each beside chance."""

from __future__ import annotations

from typing import Any

import numpy as np

from .style import (
    BLUE,
    DARK,
    GREY,
    LIGHT,
    MARKERS,
    SERIES,
    VERMILION,
    figure,
    plain_map,
)


def draw_evidence(numbers: dict[str, Any]) -> Any:
    """AUC of the linear probe by object, and objects shared with nearest neighbours."""
    probe, near = numbers["probe"], numbers["neighbours"]
    rows = [] if probe is None else sorted(probe["by_object"], key=lambda row: row["auc"])
    made, (left, right) = figure(8.8, max(3.6, 0.17 * len(rows) + 1.4), 1, 2, width_ratios=[2.2, 1.0])
    if probe is None:
        left.set_visible(False)
    else:
        places = np.arange(len(rows))
        left.hlines(places, 0.5, [row["auc"] for row in rows], color=LIGHT, linewidth=2)
        left.plot([row["auc"] for row in rows], places, "o", color=BLUE, markersize=5, label="CARD")
        low, high = min(probe["shuffled_mean_auc"]), max(probe["shuffled_mean_auc"])
        left.axvspan(low, high, color=GREY, alpha=0.5, label=f"mean with shuffled pictures ({low:.2f} to {high:.2f})")
        left.axvline(0.5, color=DARK, linewidth=0.8)
        left.axvline(probe["mean_auc"], color=VERMILION, linestyle="--", label=f"mean of CARD {probe['mean_auc']:.2f}")
        left.set_yticks(places, [f"{row['object']} ({row['n']})" for row in rows], size=7)
        left.set_ylim(-0.8, len(rows) - 0.2)
        left.set_xlim(min(0.4, low - 0.03, *(row["auc"] - 0.03 for row in rows)), 1.01)
        left.set_xlabel(f"AUC on held-out pictures ({probe['folds']} folds, n = {probe['pictures']} pictures)")
        left.set_title("Linear probe: is the object (in n pictures) there?")
        made.legend(loc="outside lower left", ncols=3)
    if near is None:
        right.set_visible(False)
        return made
    low, high = near["chance_interval"]
    heights = [near["shared"], near["chance"]]
    right.bar([0, 1], heights, color=[BLUE, LIGHT], hatch=["", "//"], edgecolor=DARK, width=0.6)
    right.errorbar(
        [1], [near["chance"]], yerr=[[near["chance"] - low], [high - near["chance"]]], color=DARK, capsize=4
    )
    for place, height in enumerate(heights):
        right.annotate(
            f"{height:.3f}", (place, max(height, high if place else height)), xytext=(0, 4),
            textcoords="offset points", ha="center",
        )  # fmt: skip
    right.set_xticks([0, 1], [f"{near['neighbours']} nearest\nby CARD", "any other\n(95 % of shuffles)"])
    right.set_ylim(0, max(*heights, high) * 1.2)
    right.set_ylabel("objects in common (Jaccard index, 0 to 1)")
    right.set_title(f"Neighbours, n = {near['pictures']}, p = {near['p_value']:.3f}")
    return made


def draw_semantic(numbers: dict[str, Any]) -> Any:
    """t-SNE of CARD by category."""
    made, (axes,) = figure(5.6, 4.6)
    points, labels = np.asarray(numbers["map"]), np.asarray(numbers["labels"])
    for number, name in enumerate(numbers["categories"]):
        axes.scatter(
            *points[labels == number].T, s=26, marker=MARKERS[number], color=SERIES[number], edgecolor=DARK,
            linewidth=0.4, label=f"{name} (n = {numbers['n'][number]})",
        )  # fmt: skip
    low, high = numbers["chance_interval"]
    plain_map(
        axes,
        f"CARD by category; silhouette in the original space {numbers['silhouette']:.3f}\n"
        f"(shuffled labels {low:.3f} to {high:.3f}, p = {numbers['p_value']:.3f})",
    )
    axes.legend(loc="best", frameon=True, framealpha=0.9)
    return made
