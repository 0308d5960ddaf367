"""Figures of the report, with what each shows and what it does not support; drawn from the numbers alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..runtime.figures import BLUE, DARK, LIGHT, SKY, VERMILION, new_figure


@dataclass(frozen=True)
class Figure:
    """One figure of the report."""

    name: str  # of its files
    title: str  # in the report
    drawing: Any  # as matplotlib has it
    finding: str  # the numbers to remember, in one or two sentences
    shows: str
    limits: str  # what it does not support


def draw_figures(numbers: dict[str, Any]) -> Iterator[Figure]:
    """Draw the figures, in the order of the report."""
    for name, draw in (("gate", gate), ("layers", layers), ("geometry", geometry)):
        yield draw(numbers[name])


def gate(numbers: dict[str, Any]) -> Figure:
    """Draw the gate over the similarity, and the similarity at mentions of objects."""
    known = "present_minus_absent" in numbers
    drawing, axes = new_figure(9.0 if known else 5.0, 3.4, 1, 1 + known)
    _histogram(axes[0], numbers, "tokens", "answer tokens", color=LIGHT)
    axes[0].set(
        xlabel="CARD similarity of the token's hidden state", ylabel="share of tokens in percent", title="Gate"
    )
    right = axes[0].twinx()
    right.spines["right"].set_visible(True)
    right.plot(numbers["bins"], numbers["curve"], color=BLUE, linewidth=2.2, label="gate")
    right.set(ylim=(0, 1.05), ylabel="gate (share of alpha_max)")
    axes[0].legend(loc="upper left")
    right.legend(loc="upper right")
    finding = f"The mean gate of steered tokens is {numbers['mean_gate']:.2f}."
    if known:
        _histogram(axes[1], numbers, "present", "in the image", color=LIGHT)
        _histogram(axes[1], numbers, "absent", "not in the image", fill=False, edgecolor=VERMILION, hatch="///")
        axes[1].set(xlabel="CARD similarity at the mention", ylabel="share in percent", title="Mentioned objects")
        axes[1].legend(loc="upper left")
        value, low, high = numbers["present_minus_absent"]
        clear = "significantly" if low > 0 or high < 0 else "not significantly"
        finding += (
            f" Similarity at objects in the image is {clear} different from that at absent ones: "
            f"{value:+.3f} [{low:+.3f}, {high:+.3f}]."
        )
    shows = (
        "Left: the share of `alpha_max` that a hidden state gets by its cosine with CARD, over the similarities of "
        "the steered answers' tokens. Right, with annotations: similarities at objects that unsteered answers name."
    )
    limits = (
        "A difference between the two kinds of mentions may come from their place in the answer, because hallucinated "
        "objects come late. It does not show that steering helps."
    )
    return Figure("gate", "The gate", drawing, finding, shows, limits)


def layers(numbers: dict[str, Any]) -> Figure:
    """Draw the length of every layer's attention update, absolute and relative to the hidden state."""
    rows, steered = numbers["layers"], numbers["steered_layer"]
    places = [row["layer"] for row in rows]
    panels = {"update_norm": "length of the attention update", "leverage": "length relative to the hidden state"}
    drawing, axes = new_figure(max(6.4, 0.26 * len(rows) + 2.5), 4.6, 2)
    for axis, (name, label) in zip(axes, panels.items(), strict=True):
        values = [row[name] for row in rows]
        chosen = [place == steered for place in places]
        bars = {
            "color": [BLUE if mark else LIGHT for mark in chosen],
            "hatch": ["//" if mark else "" for mark in chosen],
        }
        axis.bar(places, values, edgecolor=DARK, linewidth=0.6, width=0.8, **bars)
        # The first layer reads bare embeddings, which are short: on a plain scale it would hide the others.
        wide = min(values) > 0 and max(values) > 10 * sorted(values)[len(values) // 2]
        axis.set_yscale("log" if wide else "linear")
        axis.set_title(f"{label}{' (logarithmic scale)' if wide else ''}")
        axis.set_xticks(places, [str(place) for place in places], size=7 if len(places) > 24 else 8)
    axes[-1].set_xlabel("decoder layer, from 0; hatched: the steered layer")
    longest, relative = (max(rows, key=lambda row: row[name])["layer"] for name in panels)
    finding = (
        f"Attention adds most in layer {longest}, and most relative to the hidden state in layer {relative}; layer "
        f"{steered} is steered."
    )
    shows = (
        f"What self-attention adds to the residual stream, averaged over the prompts of {numbers['images']} images."
    )
    limits = (
        "A long update is room to act, not evidence that steering there helps: `rudder calibrate` measures which "
        "layer reduces hallucination."
    )
    return Figure("layers", "Layers", drawing, finding, shows, limits)


def geometry(numbers: dict[str, Any]) -> Figure:
    """Draw the angles between CARDs: without and with the image, and of two images."""
    drawing, (axes,) = new_figure(6.4, 3.4)
    styles: dict[str, Any] = {
        "rotation": {"color": SKY},
        "between_images": {"fill": False, "edgecolor": DARK, "hatch": "///"},
    }
    labels = {"rotation": "prompt without image to with image", "between_images": "two different images"}
    for name in (name for name in styles if name in numbers):
        _histogram(axes, numbers, name, labels[name], **styles[name])
    axes.set(xlabel="angle between CARDs in degrees", ylabel="share in percent", title="Angles between CARDs")
    axes.legend(loc="upper left")
    findings = []
    if turned := numbers.get("rotation"):
        low, high = turned["interval"]
        findings.append(
            f"The image turns CARD by {turned['mean']:.1f}° on average [{low:.1f}, {high:.1f}]; the mean direction of "
            f"all images is turned by {numbers['common_rotation']:.1f}°."
        )
    if others := numbers.get("between_images"):
        findings.append(f"CARDs of two images are {others['mean']:.1f}° apart on average.")
    shows = "How far CARD turns when the prompt has its image, and how far the CARDs of different images are apart."
    limits = (
        "A rotation says that the image changes CARD, as any input would, not that the change is about the image's "
        "content. The paper's alignment gain is 1 - cos(rotation) by construction, because the steering vector is "
        "parallel to CARD" + (f" ({numbers['alignment_gain']:.3f} here)." if turned else ".")
    )
    return Figure("geometry", "Geometry of CARD", drawing, " ".join(findings), shows, limits)


def _histogram(axes: Any, numbers: dict[str, Any], name: str, label: str, **style: Any) -> None:
    """Draw stored counts as shares of all values, in percent."""
    bins, entry = numbers["bins"], numbers[name]
    shares = [100 * count / entry["n"] for count in entry["histogram"]]
    axes.bar(bins[:-1], shares, bins[1] - bins[0], align="edge", label=f"{label} (n = {entry['n']})", **style)
    axes.set_ylim(0, max(axes.get_ylim()[1], 1.35 * max(shares)))  # room for the legend
