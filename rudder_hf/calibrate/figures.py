"""The paper's figures of a calibration: heatmaps over alpha_max and k, bars over layers. Needs the extra `plots`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..metrics.statistics import scores
from ..runtime.figures import BLUE, DARK, SKY, VERMILION, new_figure, save_figure, styled
from .outcome import Outcome
from .report import GridTable, grid_tables, k_label, mark
from .settings import VANILLA

_BARS = (
    ("alignment", "cosine of CARD and hidden state"),
    ("specificity", "1 - cosine between images' CARDs"),
    ("update_norm", "length of the update"),
    ("leverage", "length relative to the hidden state"),
    ("coherence", "cosine within the layer group"),
)


@dataclass(frozen=True)
class Cell:
    """One setting of a heatmap: its score, a mark behind it, and whether it was chosen."""

    alpha_max: float
    k: float
    value: float
    mark: str = ""
    chosen: bool = False


def save_figures(outcome: Outcome, folder: Path) -> list[Path]:
    """Draw the layers' statistics, their sweep, and the heatmaps of every layer that was tried.

    Raises:
        ImportError: matplotlib is not installed.
    """
    with styled():
        paths = [save_figure(_layers(outcome), folder / "layers")]
        if outcome.probes:
            paths.append(save_figure(_sweep(outcome), folder / "layer-sweep"))
        for layer in outcome.layers:
            for title, table in grid_tables(outcome, layer).items():
                suffix = "".join(f"-{word}" for word in re.findall(r"\w+", title))
                made = _heatmaps(outcome, table, f"layer {layer}{title}")
                paths.append(save_figure(made, folder / f"heatmaps-layer{layer}{suffix}"))
    return paths


def _metrics(outcome: Outcome) -> list[tuple[Any, float]]:
    """What is drawn, and the factor that its unit needs."""
    wanted = ("chair_s", "chair_i", "recall") if outcome.data.labelled else ("grounding",)
    return [(m, 100.0 if m.unit == "percent" else 1.0) for m in outcome.metrics if m.name in wanted]


def _heatmaps(outcome: Outcome, table: GridTable, title: str) -> Any:
    metrics = _metrics(outcome)
    alphas, ks = ({key[place] for key in table} for place in (0, 1))
    figure, axes = new_figure(len(metrics) * (1.2 + 0.6 * len(ks)), 1.4 + 0.5 * len(alphas), 1, len(metrics))
    for axis, (metric, factor) in zip(axes, metrics, strict=True):
        cells = [
            Cell(
                *place,
                value=factor * scores(outcome.counts[setting], [metric])[metric.name],
                mark=mark(outcome, setting),
                chosen=setting == outcome.choice.best,
            )
            for place, setting in table.items()
        ]
        draw_heatmap(axis, cells, bool(metric.higher_is_better), 1 if factor == 100 else 3)
        axis.set_title(f"{metric.label}, {title}")
    return figure


def draw_heatmap(axes: Any, cells: Sequence[Cell], higher_is_better: bool, digits: int) -> None:
    """Draw scores over alpha_max (down) and k (across); darker is better, the chosen setting has a frame."""
    alphas, ks = sorted({cell.alpha_max for cell in cells}), sorted({cell.k for cell in cells})
    values = np.full((len(alphas), len(ks)), np.nan)
    for cell in cells:
        values[alphas.index(cell.alpha_max), ks.index(cell.k)] = cell.value
    image = axes.imshow(values, cmap="Blues" if higher_is_better else "Blues_r", aspect="auto")
    for cell in cells:
        row, column = alphas.index(cell.alpha_max), ks.index(cell.k)
        # Luminance of what is behind the text.
        dark = float(np.dot(image.cmap(image.norm(cell.value))[:3], (0.299, 0.587, 0.114))) < 0.5
        axes.text(
            column, row, f"{cell.value:.{digits}f}{cell.mark}", ha="center", va="center",
            color="white" if dark else "black", weight="bold" if cell.chosen else "normal", size=9,
        )  # fmt: skip
        if cell.chosen:
            axes.add_patch(_frame(column, row))
    axes.set_xticks(range(len(ks)), [k_label(k) for k in ks])
    axes.set_yticks(range(len(alphas)), [f"{alpha:.3g}" for alpha in alphas])
    axes.set_xlabel("k")
    axes.set_ylabel("alpha_max")


def _frame(column: int, row: int) -> Any:
    from matplotlib.patches import Rectangle
    from matplotlib.patheffects import withStroke

    # Black in a white seam: seen on any shade, in greyscale too.
    seam = [withStroke(linewidth=5, foreground="white")]
    box = (column - 0.46, row - 0.46)
    return Rectangle(box, 0.92, 0.92, fill=False, edgecolor="black", linewidth=2.2, path_effects=seam)


def _sweep(outcome: Outcome) -> Any:
    """Scores over layers at the settings of the sweep, as the paper's ablation of layers; dashed: vanilla."""
    metrics, spans = _metrics(outcome), outcome.options.grid.spans
    layers = [s.layer for s in outcome.statistics]
    figure, axes = new_figure(max(5.0, 0.35 * len(layers) + 2), 2.0 * len(metrics), len(metrics))
    for axis, (metric, factor) in zip(axes, metrics, strict=True):
        values = {s: factor * scores(counts, [metric])[metric.name] for s, counts in outcome.probes.items()}
        for layer in layers:
            probes = sorted((s for s in values if s.layer == layer and s != VANILLA), key=lambda s: s.gentleness)
            for place, setting in enumerate(probes):
                axis.bar(
                    layer + 0.8 * (place + 0.5) / len(probes) - 0.4, values[setting], width=0.8 / len(probes),
                    color=SKY if setting.alpha_max == probes[0].alpha_max else BLUE, edgecolor="white",
                    hatch="" if setting.span == spans[0] else "//",
                )  # fmt: skip
        axis.axhline(values[VANILLA], color=DARK, linestyle="--", linewidth=1)
        axis.set_title(metric.label)
        axis.set_xticks(layers, [str(layer) for layer in layers], size=8)
    hatched = f"; hatched: span {', '.join(spans[1:])}" if len(spans) > 1 else ""
    axes[-1].set_xlabel(f"layer (light: the milder setting{hatched}; dashed: vanilla)")
    return figure


def _layers(outcome: Outcome) -> Any:
    layers = [s.layer for s in outcome.statistics]
    figure, axes = new_figure(max(5.0, 0.22 * len(layers) + 2), 1.6 * len(_BARS), len(_BARS))
    for axis, (name, label) in zip(axes, _BARS, strict=True):
        heights = [getattr(s, name) for s in outcome.statistics]
        axis.bar(layers, heights, color=[VERMILION if layer in outcome.layers else SKY for layer in layers])
        if min(heights) > 0 and max(heights) > 20 * float(np.median(heights)):
            axis.set_yscale("log")  # one layer must not hide the others
        axis.set_title(f"{name}: {label}")
        axis.tick_params(labelsize=8)
    axes[-1].set_xlabel("layer (dark: tried)")
    return figure
