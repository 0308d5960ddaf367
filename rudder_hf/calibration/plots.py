"""The paper's figures of a calibration: heatmaps over alpha_max and k, bars over layers. Needs the extra `plots`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from ..evaluation.statistics import scores
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


def _heatmap(outcome: Outcome, table: Table, name: str, title: str, path: Path) -> Path:
    metric = next(metric for metric in outcome.metrics if metric.name == name)
    factor = 100 if metric.unit == "percent" else 1
    alphas, ks = sorted({alpha for alpha, _ in table}), sorted({k for _, k in table})
    values = np.full((len(alphas), len(ks)), np.nan)
    for (alpha, k), (_, counts) in table.items():
        values[alphas.index(alpha), ks.index(k)] = factor * scores(counts, [metric])[name]
    figure, axes = _figure(1.2 + 0.8 * len(ks), 1.2 + 0.6 * len(alphas))
    # Darker is better in each of them.
    image = axes.imshow(values, cmap="Blues" if metric.higher_is_better else "Blues_r", aspect="auto")
    for (alpha, k), (candidate, _) in table.items():
        row, column = alphas.index(alpha), ks.index(k)
        # Luminance of what is behind the text.
        dark = float(np.dot(image.cmap(image.norm(values[row, column]))[:3], (0.299, 0.587, 0.114))) < 0.5
        sign = mark(outcome, candidate)
        weight = "bold" if candidate == outcome.choice.best else "normal"
        axes.text(
            column, row, f"{values[row, column]:.1f}{sign}" if factor == 100 else f"{values[row, column]:.3f}{sign}",
            ha="center", va="center", color="white" if dark else "black", weight=weight, size=9,
        )  # fmt: skip
        if candidate == outcome.choice.best:
            axes.add_patch(_frame(column, row))
    axes.set_xticks(range(len(ks)), [k_label(k) for k in ks])
    axes.set_yticks(range(len(alphas)), [f"{alpha:.3g}" for alpha in alphas])
    axes.set_xlabel("k")
    axes.set_ylabel("alpha_max")
    axes.set_title(f"{metric.label}, {title}", size=10)
    figure.savefig(path, dpi=150)
    return path


def _frame(column: int, row: int) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor="crimson", linewidth=2)


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
