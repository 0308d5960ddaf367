"""The paper's figures of a calibration: heatmaps over alpha_max and k, bars over layers. Needs the extra `plots`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..metrics.statistics import scores
from .outcome import Outcome
from .report import Table, grid_tables, k_label, mark

_BARS = (
    ("alignment", "cosine of CARD and hidden state"),
    ("specificity", "1 - cosine between pictures' CARDs"),
    ("update_norm", "length of the update"),
    ("leverage", "length relative to the hidden state"),
    ("coherence", "cosine within the layer group"),
)


def available() -> bool:
    """Whether matplotlib is installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def save_figures(outcome: Outcome, folder: Path) -> list[Path]:
    """Draw the layers' statistics, and the heatmaps of every layer that was tried.

    Raises:
        ImportError: matplotlib is not installed.
    """
    paths = [_layers(outcome, folder / "layers.png")]
    if outcome.probes:
        paths.append(_sweep(outcome, folder / "layer-sweep.png"))
    names = ("chair_s", "chair_i", "recall") if outcome.labelled else ("grounding",)
    for layer in outcome.layers:
        for title, table in grid_tables(outcome, layer).items():
            suffix = "".join(f"-{word}" for word in re.findall(r"\w+", title))
            for name in names:
                path = folder / f"{name}-layer{layer}{suffix}.png"
                paths.append(_heatmap(outcome, table, name, f"layer {layer}{title}", path))
    return paths


def _figure(width: float, height: float, rows: int = 1) -> tuple[Any, Any]:
    # Without pyplot: no window system, no global state.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, 1)


@dataclass(frozen=True)
class Cell:
    """One setting of a heatmap: its score, a mark behind it, and whether it was chosen."""

    alpha_max: float
    k: float
    value: float
    mark: str = ""
    chosen: bool = False


def _heatmap(outcome: Outcome, table: Table, name: str, title: str, path: Path) -> Path:
    metric = next(metric for metric in outcome.metrics if metric.name == name)
    factor = 100 if metric.unit == "percent" else 1
    cells = [
        Cell(
            alpha_max=alpha,
            k=k,
            value=factor * scores(counts, [metric])[name],
            mark=mark(outcome, candidate),
            chosen=candidate == outcome.choice.best,
        )
        for (alpha, k), (candidate, counts) in table.items()
    ]
    figure, axes = _figure(1.2 + 0.8 * len({c.k for c in cells}), 1.2 + 0.6 * len({c.alpha_max for c in cells}))
    draw_heatmap(axes, cells, bool(metric.higher_is_better), 1 if factor == 100 else 3)
    axes.set_title(f"{metric.label}, {title}", size=10)
    figure.savefig(path, dpi=150)
    return path


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


def _sweep(outcome: Outcome, path: Path) -> Path:
    """Scores over layers at the settings of the sweep, as the paper's ablation of layers; dashed: vanilla."""
    wanted = ("chair_s", "chair_i", "recall") if outcome.labelled else ("grounding",)
    metrics = [metric for metric in outcome.metrics if metric.name in wanted]
    layers = sorted({layer for layer, setting in outcome.probes if setting.alpha_max > 0})
    figure, axes = _figure(max(5.0, 0.35 * len(layers) + 2), 2.0 * len(metrics), len(metrics))
    for axis, metric in zip(np.atleast_1d(axes), metrics, strict=True):
        factor = 100 if metric.unit == "percent" else 1
        for layer in layers:
            at_layer = sorted((s, counts) for (at, s), counts in outcome.probes.items() if at == layer)
            for place, (setting, counts) in enumerate(at_layer):
                value = factor * scores(counts, [metric])[metric.name]
                left = layer + 0.8 * (place + 0.5) / len(at_layer) - 0.4
                colour = "lightsteelblue" if setting.alpha_max == at_layer[0][0].alpha_max else "steelblue"
                hatch = "" if setting.span == outcome.grid["spans"][0] else "//"
                axis.bar(left, value, width=0.8 / len(at_layer), color=colour, hatch=hatch, edgecolor="white")
        vanilla = next(counts for (_, setting), counts in outcome.probes.items() if setting.alpha_max == 0)
        axis.axhline(factor * scores(vanilla, [metric])[metric.name], color="black", linestyle="--", linewidth=1)
        axis.set_title(metric.label, size=9)
        axis.set_xticks(layers, [str(layer) for layer in layers], size=8)
    spans = outcome.grid["spans"]
    hatched = f"; hatched: span {', '.join(spans[1:])}" if len(spans) > 1 else ""
    np.atleast_1d(axes)[-1].set_xlabel(f"layer (light: the milder setting{hatched}; dashed: vanilla)")
    figure.savefig(path, dpi=150)
    return path


def _layers(outcome: Outcome, path: Path) -> Path:
    layers = [s.layer for s in outcome.statistics]
    figure, axes = _figure(max(5.0, 0.22 * len(layers) + 2), 1.6 * len(_BARS), len(_BARS))
    for axis, (name, label) in zip(axes, _BARS, strict=True):
        colours = ["crimson" if layer in outcome.layers else "steelblue" for layer in layers]
        heights = [getattr(s, name) for s in outcome.statistics]
        axis.bar(layers, heights, color=colours)
        if min(heights) > 0 and max(heights) > 20 * float(np.median(heights)):
            axis.set_yscale("log")  # one layer must not hide the others
        axis.set_title(f"{name}: {label}", size=9)
        axis.tick_params(labelsize=8)
    axes[-1].set_xlabel("layer (red: tried)")
    figure.savefig(path, dpi=150)
    return path
