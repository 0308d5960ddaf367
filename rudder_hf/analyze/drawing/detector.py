"""The trace as a detector: ROC curves, AUC with intervals, and the similarities themselves."""

from __future__ import annotations

from typing import Any

import numpy as np

from .style import (
    BLUE,
    DARK,
    GREY,
    LINES,
    ORANGE,
    figure,
)

LABELS = {
    "similarity": "CARD similarity",
    "gate": "gate",
    "probability": "token probability",
    "earliness": "place in the answer",
}
_COLOURS = {"similarity": BLUE, "gate": ORANGE, "probability": DARK, "earliness": GREY}
_MARKERS = {"similarity": "o", "gate": "s", "probability": "^", "earliness": "D"}
_ANSWERS = {"vanilla": "vanilla", "steered": "RUDDER"}


def draw_detector(numbers: dict[str, Any]) -> Any:
    """ROC curves on the vanilla answers, AUC on both answers, similarities of both kinds of mentions."""
    present = [name for name in _ANSWERS if numbers.get(name)]
    main = numbers[present[0]]
    made, (left, middle, right) = figure(10.6, 3.7, 1, 3, width_ratios=[1.15, 1.2, 1.0])
    for line, (name, label) in zip(LINES, LABELS.items(), strict=False):
        wrong, hits = main["scores"][name]["roc"]
        width = 2.6 if name == "gate" else 1.5
        left.plot(wrong, hits, linestyle=line, color=_COLOURS[name], linewidth=width, label=label)
    left.plot([0, 1], [0, 1], color=GREY, linewidth=0.6)
    left.set_xlabel("hallucinated taken for grounded (share)")
    left.set_ylabel("grounded mentions found (share)")
    counts = main["mentions"]
    left.set_title(
        f"ROC, {_ANSWERS[present[0]]} answers\n({counts['grounded']} grounded, {counts['hallucinated']} hallucinated)"
    )
    left.legend(loc="lower right", fontsize=7)
    left.set_aspect("equal")
    _intervals(middle, numbers, present)
    values = main["values"]
    bins = np.linspace(min(map(min, values.values())), max(map(max, values.values())) + 1e-9, 25)
    for name, options in (
        ("grounded", {"color": BLUE}),
        ("hallucinated", {"histtype": "step", "color": DARK, "hatch": "///", "linewidth": 1.3}),
    ):
        weights = np.full(len(values[name]), 100 / len(values[name]))
        right.hist(values[name], bins, weights=weights, label=f"{name} (n = {len(values[name])})", **options)
    right.set_xlabel("CARD similarity at the mention (cosine)")
    right.set_ylabel("share in percent")
    right.set_title(f"Similarity, {_ANSWERS[present[0]]} answers")
    right.set_ylim(0, right.get_ylim()[1] * 1.25)
    right.legend(loc="upper left", fontsize=7)
    return made


def _intervals(axes: Any, numbers: dict[str, Any], present: list[str]) -> None:
    """AUC with 95 % intervals, one block for each kind of answers."""
    place, ticks = 0.0, []
    for answers in present:
        for name, label in LABELS.items():
            entry = numbers[answers]["scores"][name]
            low, high = entry["interval"]
            axes.plot([low, high], [place, place], color=_COLOURS[name], linewidth=2)
            filled = _COLOURS[name] if answers == "vanilla" else "white"
            axes.plot(
                entry["auc"], place, _MARKERS[name], markersize=7, markerfacecolor=filled,
                markeredgecolor=_COLOURS[name],
            )  # fmt: skip
            axes.annotate(
                f"{entry['auc']:.2f}", (entry["auc"], place), xytext=(0, 6), textcoords="offset points", ha="center",
                size=7,
            )  # fmt: skip
            ticks.append((place, f"{label},\n{_ANSWERS[answers]}"))
            place -= 1
        place -= 0.6
    axes.axvline(0.5, color=DARK, linewidth=0.8, linestyle=":")
    axes.set_yticks(*zip(*ticks, strict=True), size=7)
    axes.set_ylim(place + 1.0, 0.8)
    axes.set_xlabel("AUC (0.5: no better than chance)")
    axes.set_title(f"AUC, 95 % intervals over {numbers[present[0]]['pictures_with_mentions']} pictures")
