"""Geometry of CARD: rotation, what follows from it, maps for the eye, and clusters."""

from __future__ import annotations

from typing import Any

import numpy as np

from .style import (
    BLUE,
    DARK,
    GREY,
    LIGHT,
    MARKERS,
    ORANGE,
    SERIES,
    VERMILION,
    figure,
    plain_map,
)


def draw_rotation(numbers: dict[str, Any]) -> Any:
    """Histograms of the rotation, beside angles between pictures, and of the alignment gain."""
    made, (left, right) = figure(8.4, 3.3, 1, 2)
    turned, gain = numbers["rotation_degrees"], numbers["alignment_gain"]
    others = numbers.get("between_pictures_degrees")
    ends = [*turned["values"], *(others["values"] if others else [])]
    bins = np.linspace(min(ends), max(ends) + 1e-9, _bins(turned["n"]) + 1)
    share = np.full(len(turned["values"]), 100 / len(turned["values"]))
    label = f"text-only to image-conditioned CARD\n(n = {turned['n']} pictures)"
    left.hist(turned["values"], bins, weights=share, color=BLUE, label=label)
    if others:
        other = np.full(len(others["values"]), 100 / len(others["values"]))
        left.hist(
            others["values"], bins, weights=other, histtype="step", color=DARK, hatch="///", linewidth=1.1,
            label=f"CARDs of two different pictures\n({others['pairs']} pairs)",
        )  # fmt: skip
    left.set_xlabel("angle in degrees")
    left.set_title("Rotation")
    _middles(left, turned, 1, "°")
    weights = np.full(len(gain["values"]), 100 / len(gain["values"]))
    right.hist(gain["values"], _bins(gain["n"]), weights=weights, color=GREY)
    right.set_xlabel("alignment gain (difference of cosines)")
    right.set_title(f"Alignment gain, which is 1 - cos(rotation), n = {gain['n']}")
    _middles(right, gain, 3, "")
    return made


def _bins(count: int) -> int:
    """So many bars that each has some pictures."""
    return int(min(40, max(8, 2 * count**0.5)))


def _middles(axes: Any, summary: dict[str, Any], digits: int, unit: str) -> None:
    """Lines at mean and median, with room for the legend above them."""
    axes.set_ylim(0, axes.get_ylim()[1] * 1.6)
    for name, colour, line in (("mean", VERMILION, "-"), ("median", DARK, ":")):
        label = f"{name} {summary[name]:.{digits}f}{unit}"
        axes.axvline(summary[name], ymax=0.64, color=colour, linestyle=line, linewidth=1.6, label=label)
    axes.set_ylabel("share in percent")
    axes.legend(loc="upper left", ncols=2, fontsize=7)


def draw_maps(numbers: dict[str, Any]) -> Any:
    """t-SNE of both CARDs with lines between pairs, and of the steering vectors, with their clusters."""
    from matplotlib.collections import LineCollection

    overlay, steering, clusters = numbers["overlay"], numbers["steering_map"], numbers["clusters"]
    made, (left, right) = figure(9.4, 4.6, 1, 2)
    if overlay is not None:
        image, text = np.asarray(overlay["image"]), np.asarray(overlay["text"]).reshape(-1, 2)
        lines = [(point, text[which]) for point, which in zip(image, overlay["pairs"], strict=False)]
        left.add_collection(LineCollection(lines, colors=LIGHT, linewidths=0.5, zorder=1))
        _by_cluster(left, image, clusters)
        if len(text):
            left.plot(
                *text.T, linestyle="", marker="P", color="black", markeredgecolor="white", markersize=12, zorder=4,
                label=f"text-only ({len(text)} different)",
            )  # fmt: skip
            left.legend(loc="best", frameon=True, framealpha=0.9)
        plain_map(left, f"CARD, n = {len(image)} pictures; lines: same picture")
    if steering is not None:
        points = np.asarray(steering)
        _by_cluster(right, points, clusters, legend=True)
        plain_map(right, f"steering vectors, n = {len(points)}")
    return made


def _by_cluster(axes: Any, points: Any, clusters: dict[str, Any] | None, legend: bool = False) -> None:
    labels = np.ones(len(points), dtype=int) if clusters is None else np.asarray(clusters["labels"])
    for number in sorted(set(labels.tolist())):
        inside = points[labels == number]
        axes.scatter(
            *inside.T, s=20, marker=MARKERS[(number - 1) % len(MARKERS)], color=SERIES[(number - 1) % len(SERIES)],
            edgecolor=DARK, linewidth=0.3, zorder=2, label=f"cluster {number} (n = {len(inside)})",
        )  # fmt: skip
    if legend and clusters is not None:
        axes.legend(loc="best", frameon=True, framealpha=0.9)


def draw_clusters(numbers: dict[str, Any]) -> Any:
    """Silhouettes over K, and means by cluster."""
    panels = [
        ("rotation_degrees", "rotation (degrees)"),
        ("alignment_gain", "alignment gain"),
        ("gate", "mean gate (0 to 1)"),
    ]
    panels = [panel for panel in panels if panel[0] in numbers["clusters"][0]]
    made, axes = figure(3.4 + 2.1 * len(panels), 3.2, 1, 1 + len(panels), width_ratios=[1.6, *[1.0] * len(panels)])
    first = axes[0]
    for name, label, marker, line, colour in (
        ("silhouette_by_k", "steering vectors", "o", "-", BLUE),
        ("card_silhouette_by_k", "CARD", "s", "--", ORANGE),
    ):
        ks = sorted(int(k) for k in numbers[name])
        first.plot(ks, [numbers[name][str(k)] for k in ks], marker=marker, linestyle=line, color=colour, label=label)
    chance = numbers["silhouette_without_clusters"]
    first.axhspan(min(chance), max(chance), color=LIGHT, zorder=0, label="best of clouds without clusters")
    first.axhline(float(np.mean(chance)), color=GREY, linewidth=1, linestyle=":")
    first.set_xlabel("K")
    first.set_ylabel("mean silhouette (-1 to 1)")
    first.set_title(f"KMeans, best K = {numbers['k']}, n = {numbers['pictures']}")
    first.set_ylim(min(0, first.get_ylim()[0]), first.get_ylim()[1] * 1.4)
    first.legend(fontsize=7, loc="upper right")
    rows = numbers["clusters"]
    for axis, (name, label) in zip(axes[1:], panels, strict=True):
        places = [row["cluster"] for row in rows]
        spread = [row[name]["sd"] for row in rows]
        axis.bar(
            places, [row[name]["mean"] for row in rows], yerr=spread, color=GREY, ecolor=DARK, capsize=3, width=0.7
        )
        axis.set_xticks(places, [f"{row['cluster']}\nn={row['n']}" for row in rows], size=7)
        axis.set_xlabel("cluster")
        axis.set_title(label, size=8.5)
    return made
