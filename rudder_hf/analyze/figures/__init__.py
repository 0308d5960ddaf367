"""Figures of the report, with what each shows and what it does not support; drawn from the numbers alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...runtime.figures import DARK, MARKERS, SERIES


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
    # The coordinates mean nothing.
    axes.set(xticks=[], yticks=[], xlabel="t-SNE 1 (no unit)", ylabel="t-SNE 2 (no unit)")
