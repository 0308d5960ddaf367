"""Figures about CARD: how far the image turns it, maps, clusters, and what it knows of the image."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..runtime.figures import BLUE, DARK, GREY, LIGHT, VERMILION, new_figure
from .figures import OUTLINE, Figure, brackets, histogram, scatter_map, value_above


def rotation(numbers: dict[str, Any]) -> Figure:
    """The angles from the text-only to the image-conditioned CARD, and the alignment gain."""
    turned, gain = numbers["rotation_degrees"], numbers["alignment_gain"]
    others, count = numbers.get("between_images_degrees"), numbers["distinct_text_only"]
    finding = (
        f"The image turns CARD by {turned['mean']:.1f}° on average {brackets(turned['interval'], 1)} (median "
        f"{turned['median']:.1f}°); alignment gain {gain['mean']:.3f} {brackets(gain['interval'], 3)}, which is "
        "1 - cos(rotation) by construction."
    )
    if count == 1:
        shows = "All prompts are the same, so that there is one text-only CARD and all spread comes from the images."
    else:
        shows = f"There are {count} different text-only CARDs."
    if others:
        shows += (
            f" CARDs of two different images are {others['mean']:.1f}° apart, and the mean direction of all images is "
            f"{numbers['common_rotation_degrees']:.1f}° from the text-only one: so much of the turn is common to all."
        )
    limits = (
        "Alignment gain is no evidence: the steering vector is parallel to CARD, so that the gain is "
        f"1 - cos(rotation) by construction (largest deviation here {numbers['gain_minus_one_minus_cos']:.0e}). "
        "A rotation alone says that the image changes CARD, as any input would; whether the change is about the "
        "image's content is asked below, by probe, neighbours and categories."
    )
    drawing = _draw_rotation(turned, gain, others)
    return Figure("rotation", "Rotation of CARD by the image", drawing, shows, limits, finding)


def _draw_rotation(turned: dict[str, Any], gain: dict[str, Any], others: dict[str, Any] | None) -> Any:
    drawing, (left, right) = new_figure(8.4, 3.3, 1, 2)
    count = int(min(40, max(8, 2 * turned["n"] ** 0.5)))  # so many bars that each has some images
    ends = [*turned["values"], *(others["values"] if others else [])]
    bins = np.linspace(min(ends), max(ends) + 1e-9, count + 1)
    label = f"text-only to image-conditioned CARD\n(n = {turned['n']} images)"
    histogram(left, turned["values"], bins, color=BLUE, label=label)
    if others:
        label = f"CARDs of two different images\n({others['pairs']} pairs)"
        histogram(left, others["values"], bins, label=label, **OUTLINE)
    left.set(xlabel="angle in degrees", title="Rotation")
    histogram(right, gain["values"], count, color=GREY)
    right.set(
        xlabel="alignment gain (difference of cosines)",
        title=f"Alignment gain, which is 1 - cos(rotation), n = {gain['n']}",
    )
    for axes, summary, form in ((left, turned, "{:.1f}°"), (right, gain, "{:.3f}")):
        axes.set_ylim(0, axes.get_ylim()[1] * 1.6)  # room for the legend
        for name, colour, line in (("mean", VERMILION, "-"), ("median", DARK, ":")):
            label = f"{name} {form.format(summary[name])}"
            axes.axvline(summary[name], ymax=0.64, color=colour, linestyle=line, linewidth=1.6, label=label)
        axes.legend(loc="upper left", ncols=2, fontsize=7)
    return drawing


def maps(numbers: dict[str, Any], clusters: dict[str, Any] | None) -> Figure:
    """t-SNE of both CARDs and of the steering vectors, with their clusters."""
    shows = (
        "Image-conditioned CARD (left) and mean steering vectors (right), PCA to 50 dimensions and then t-SNE; shapes "
        "and colours are KMeans clusters of the steering vectors in the original space."
    )
    if len(numbers["text"]) == 1:
        shows += " The text-only CARD is one point, because all prompts are the same."
    limits = (
        "t-SNE keeps neighbourhoods, not distances, sizes or directions: the length of a line is no angle, and gaps "
        "between groups can be made by the method. No number of this report is computed from these coordinates."
    )
    return Figure("maps", "Maps of CARD and steering vectors", _draw_maps(numbers, clusters), shows, limits)


def _draw_maps(numbers: dict[str, Any], clusters: dict[str, Any] | None) -> Any:
    from matplotlib.collections import LineCollection

    image, text = np.asarray(numbers["image"]), np.asarray(numbers["text"]).reshape(-1, 2)
    labels = np.zeros(len(image), dtype=int) if clusters is None else np.asarray(clusters["labels"]) - 1
    names = ["all"] if clusters is None else [f"cluster {row['cluster']}" for row in clusters["clusters"]]
    drawing, (left, right) = new_figure(9.4, 4.6, 1, 2)
    lines = [(point, text[which]) for point, which in zip(image, numbers["pairs"], strict=False)]
    left.add_collection(LineCollection(lines, colors=LIGHT, linewidths=0.5, zorder=1))
    scatter_map(left, image, labels, names)
    if len(text):
        plus = {"linestyle": "", "marker": "P", "color": "black", "markeredgecolor": "white", "markersize": 12}
        shown = left.plot(*text.T, **plus, zorder=4)
        left.legend(shown, [f"text-only ({len(text)} different)"], loc="best", frameon=True, framealpha=0.9)
    left.set_title(f"CARD, n = {len(image)} images; lines: same image")
    scatter_map(right, numbers["steering"], labels, names)
    right.set_title(f"steering vectors, n = {len(image)}")
    return drawing


def clusters(numbers: dict[str, Any]) -> Figure:
    """Silhouettes over K, and means by cluster."""
    chance = numbers["silhouette_without_clusters"]
    verdict = "above" if numbers["silhouette"] > max(chance) else "not above"
    finding = (
        f"KMeans on the steering vectors has its best silhouette, {numbers['silhouette']:.3f}, at K = {numbers['k']}; "
        f"that is {verdict} what the same search finds in normal clouds of the same spread without any clusters "
        f"({np.mean(chance):.3f} on average, at most {max(chance):.3f})."
    )
    shows = "Bars are means by cluster, whiskers standard deviations."
    limits = (
        "KMeans always finds clusters; a small silhouette means no separate groups. That statistics stay similar in "
        "all clusters says nothing about whether the clusters mean something."
    )
    return Figure("clusters", "Clusters of the steering vectors", _draw_clusters(numbers), shows, limits, finding)


def _draw_clusters(numbers: dict[str, Any]) -> Any:
    rows, chance = numbers["clusters"], numbers["silhouette_without_clusters"]
    labels = {
        "rotation_degrees": "rotation (degrees)",
        "alignment_gain": "alignment gain",
        "gate": "mean gate (0 to 1)",
    }
    panels = [name for name in labels if name in rows[0]]
    ratios = [1.6, *[1.0] * len(panels)]
    drawing, (first, *others) = new_figure(3.4 + 2.1 * len(panels), 3.2, 1, len(ratios), width_ratios=ratios)
    scores = numbers["silhouette_by_k"]
    first.plot([int(k) for k in scores], list(scores.values()), "o-", color=BLUE, label="steering vectors")
    first.axhspan(min(chance), max(chance), color=LIGHT, zorder=0, label="best of clouds without clusters")
    first.axhline(float(np.mean(chance)), color=GREY, linewidth=1, linestyle=":")
    first.set(xlabel="K", ylabel="mean silhouette (-1 to 1)")
    first.set_title(f"KMeans, best K = {numbers['k']}, n = {numbers['images']}")
    first.set_ylim(min(0, first.get_ylim()[0]), first.get_ylim()[1] * 1.4)
    first.legend(fontsize=7, loc="upper right")
    places = [row["cluster"] for row in rows]
    for axes, name in zip(others, panels, strict=True):
        means, spread = ([row[name][key] for row in rows] for key in ("mean", "sd"))
        axes.bar(places, means, yerr=spread, color=GREY, ecolor=DARK, capsize=3, width=0.7)
        axes.set_xticks(places, [f"{row['cluster']}\nn={row['n']}" for row in rows], size=7)
        axes.set_xlabel("cluster")
        axes.set_title(labels[name], size=8.5)
    return drawing


def evidence(numbers: dict[str, Any]) -> Figure:
    """AUC of the linear probe by object, and objects shared with nearest neighbours."""
    probe, near = numbers["probe"], numbers["neighbours"]
    rows = [] if probe is None else sorted(probe["by_object"], key=lambda row: row["auc"])
    drawing, (left, right) = new_figure(8.8, max(3.6, 0.17 * len(rows) + 1.4), 1, 2, width_ratios=[2.2, 1.0])
    left.set_visible(probe is not None)
    right.set_visible(near is not None)
    findings = []
    if probe is not None:
        _draw_probe(left, probe, rows)
        drawing.legend(loc="outside lower left", ncols=3)
        chance, text = np.mean(probe["shuffled_mean_auc"]), probe["text_only_mean_auc"]
        findings.append(
            f"A linear probe reads from CARD which of {probe['objects']} objects are in a held-out image with a mean "
            f"AUC of {probe['mean_auc']:.2f} {brackets(probe['interval_over_objects'])} (interval over objects; with "
            f"shuffled images {chance:.2f}{'' if text is None else f', text-only CARD {text:.2f}'})."
        )
    if near is not None:
        _draw_neighbours(right, near)
        findings.append(
            f"The {near['neighbours']} nearest images by CARD share {near['shared']:.3f} of their objects (Jaccard "
            f"index), any others {near['chance']:.3f} (p = {near['p_value']:.3f}, {near['permutations']} shuffles)."
        )
    limits = (
        "That objects can be read from CARD does not show that the model uses them, nor that adding CARD helps. "
        "Objects occur together and go with places, so that part of this may be the scene and not the object."
    )
    return Figure("evidence", "Does CARD know what is in the image?", drawing, "", limits, " ".join(findings))


def _draw_probe(axes: Any, probe: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    places, aucs = np.arange(len(rows)), [row["auc"] for row in rows]
    axes.hlines(places, 0.5, aucs, color=LIGHT, linewidth=2)
    axes.plot(aucs, places, "o", color=BLUE, markersize=5, label="CARD")
    low, high = min(probe["shuffled_mean_auc"]), max(probe["shuffled_mean_auc"])
    axes.axvspan(low, high, color=GREY, alpha=0.5, label=f"mean with shuffled images ({low:.2f} to {high:.2f})")
    axes.axvline(0.5, color=DARK, linewidth=0.8)
    axes.axvline(probe["mean_auc"], color=VERMILION, linestyle="--", label=f"mean of CARD {probe['mean_auc']:.2f}")
    axes.set_yticks(places, [f"{row['object']} ({row['n']})" for row in rows], size=7)
    axes.set(ylim=(-0.8, len(rows) - 0.2), xlim=(min(0.4, low - 0.03, aucs[0] - 0.03), 1.01))
    axes.set_xlabel(f"AUC on held-out images ({probe['folds']} folds, n = {probe['images']} images)")
    axes.set_title("Linear probe: is the object (in n images) there?")


def _draw_neighbours(axes: Any, near: dict[str, Any]) -> None:
    heights, (low, high) = [near["shared"], near["chance"]], near["chance_interval"]
    axes.bar([0, 1], heights, color=[BLUE, LIGHT], hatch=["", "//"], edgecolor=DARK, width=0.6)
    axes.errorbar([1], heights[1:], yerr=[[heights[1] - low], [high - heights[1]]], color=DARK, capsize=4)
    value_above(axes, f"{heights[0]:.3f}", 0, heights[0])
    value_above(axes, f"{heights[1]:.3f}", 1, max(heights[1], high))
    axes.set_xticks([0, 1], [f"{near['neighbours']} nearest\nby CARD", "any other\n(95 % of shuffles)"])
    axes.set(ylim=(0, max(*heights, high) * 1.2), ylabel="objects in common (Jaccard index, 0 to 1)")
    axes.set_title(f"Neighbours, n = {near['images']}, p = {near['p_value']:.3f}")


def categories(numbers: dict[str, Any]) -> Figure:
    """t-SNE of CARD by category."""
    low, high = numbers["chance_interval"]
    beyond = "beyond" if numbers["silhouette"] > high else "within"
    p = f"p = {numbers['p_value']:.3f}"
    drawing, (axes,) = new_figure(5.6, 4.6)
    scatter_map(axes, numbers["map"], numbers["labels"], numbers["categories"])
    axes.set_title(
        f"CARD by category; silhouette in the original space {numbers['silhouette']:.3f}\n"
        f"(shuffled labels {low:.3f} to {high:.3f}, {p})"
    )
    finding = (
        f"Images with exactly one of {', '.join(numbers['categories'])}: the silhouette of CARD by category is "
        f"{numbers['silhouette']:.3f}, {beyond} what shuffled labels give ({low:.3f} to {high:.3f}, {p}, "
        f"{numbers['permutations']} shuffles)."
    )
    limits = (
        "A silhouette near 0 means that categories overlap widely even if they can be told from chance; the map may "
        "look more or less separate than the space is. Images hold other objects too, and other categories may "
        "behave otherwise."
    )
    return Figure("categories", "CARD by category", drawing, "", limits, finding)
