"""The paper's figures of a calibration: heatmaps over alpha_max and k, bars over layers. Needs the extra `plots`.

They are drawn from `calibration.json` alone: `rudder calibrate` saves them beside its report, and `rudder analyze
--calibration` shows them with what they support and what they do not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..runtime.figures import BLUE, DARK, SKY, new_figure, save_figure, styled
from .choice import METRICS
from .layers import layer_groups
from .settings import Setting

_BARS = (
    ("update_norm", "length of the attention update, ||δ||"),
    ("leverage", "length relative to the hidden state, ||δ|| / ||h||"),
    ("coherence", "mean cosine with the CARDs of the other layers of the group"),
    ("alignment", "cosine of CARD and hidden state"),
    ("specificity", "1 - cosine between the CARDs of different images"),
)

_MARKS = {"dropped": "‡", "breaks": "†", "limits_held_in_draws": "§"}

Numbers = dict[str, Any]
"""What `calibration.json` holds."""


def _metrics(vanilla: dict[str, Any]) -> list[str]:
    """The metrics that are drawn: those of captions where these are annotated."""
    return ["chair_s", "chair_i", "recall"] if "chair_s" in vanilla["scores"] else ["grounding"]


def _value(name: str, row: dict[str, Any]) -> float:
    return float((100 if METRICS[name].unit == "percent" else 1) * row["scores"][name])


def vanilla_row(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The row of the unsteered model."""
    return next(row for row in rows if row.get("vanilla"))


@dataclass(frozen=True)
class GridRows:
    """The settings that differ in alpha_max and k alone.

    Attributes:
        layer: Their layer.
        rest: Their other settings that differ from the defaults, in words.
        rows: What `calibration.json` says about each.
    """

    layer: int
    rest: tuple[str, ...]
    rows: list[dict[str, Any]]

    @property
    def chosen(self) -> bool:
        """Whether the chosen setting is one of them."""
        return any(row["chosen"] for row in self.rows)

    @property
    def cells(self) -> dict[tuple[float, float], dict[str, Any]]:
        """The rows by alpha_max and k; mode "add" has no gate, and so no k."""
        return {(row["alpha_max"], row["k"] if row["mode"] == "beta" else 0.0): row for row in self.rows}

    @property
    def name(self) -> str:
        """The name of the figure's files."""
        words = [f"-{word}" for word in re.findall(r"[\w.]+", " ".join(self.rest))]
        return f"heatmaps-layer{self.layer}{''.join(words)}"


def mark(row: dict[str, Any]) -> str:
    """Why a setting could not be chosen, as a sign."""
    return next((sign for name, sign in _MARKS.items() if row.get(name)), "")


def grids(rows: Sequence[dict[str, Any]]) -> list[GridRows]:
    """The grids over alpha_max and k that were tried, pushes all of them; the one of the chosen setting first."""
    found: dict[tuple[int, tuple[str, ...]], GridRows] = {}
    for row in rows:
        if not row.get("vanilla") and row["alpha_max"]:
            setting = Setting.of(row)
            key = setting.layer, tuple(setting.unusual)
            found.setdefault(key, GridRows(*key, [])).rows.append(row)
    return sorted(found.values(), key=lambda grid: not grid.chosen)


def save_figures(numbers: Numbers, folder: Path) -> None:
    """Draw the layers' statistics, their sweep, and the heatmaps of every layer that was tried.

    Raises:
        ImportError: matplotlib is not installed.
    """
    with styled():
        drawing = draw_layers(numbers["layers"], numbers["shortlist"]["layers"], "layers that the grid was tried on")
        save_figure(drawing, folder / "layers")
        if numbers["probes"]:
            save_figure(draw_sweep(numbers), folder / "layer-sweep")
        for grid in grids(numbers["settings"]):
            save_figure(draw_heatmaps(numbers, grid), folder / grid.name)


def draw_heatmaps(numbers: Numbers, grid: GridRows) -> Any:
    """Scores over alpha_max and k, one heatmap for each score."""
    vanilla = vanilla_row(numbers["settings"])
    names, (alphas, ks) = _metrics(vanilla), (sorted({place[axis] for place in grid.cells}) for axis in (0, 1))
    size = len(names) * (1.0 + 0.6 * len(ks)) + 0.6, 1.5 + 0.45 * len(alphas)
    drawing, axes = new_figure(*size, 1, len(names))
    for axis, name in zip(axes, names, strict=True):
        metric, values = METRICS[name], np.full((len(alphas), len(ks)), np.nan)
        places = {(alphas.index(alpha), ks.index(k)): row for (alpha, k), row in grid.cells.items()}
        for place, row in places.items():
            values[place] = _value(name, row)
        image = axis.imshow(values, cmap="Blues" if metric.higher_is_better else "Blues_r", aspect="auto")
        for place, row in places.items():
            _draw_cell(axis, image, f"{values[place]:.{1 if metric.unit == 'percent' else 3}f}", row, *place)
        axis.set_xticks(range(len(ks)), [f"{k:g}" if k else "no gate" for k in ks])
        axis.set_yticks(range(len(alphas)), [f"{alpha:.3g}" for alpha in alphas])
        title = f"{metric.label} in {metric.unit} (vanilla {_value(name, vanilla):.3g})"
        axis.set(xlabel="k", ylabel="alpha_max", title=title)
    drawing.suptitle(
        f"{', '.join([f'layer {grid.layer}', *grid.rest])}, n = {vanilla['images']} images; darker is better, frame: "
        "chosen, †: breaks a limit, §: keeps them, but not safely, ‡: dropped early",
        size=8.5, x=0.01, ha="left",
    )  # fmt: skip
    return drawing


def _draw_cell(axes: Any, image: Any, text: str, row: dict[str, Any], down: int, across: int) -> None:
    """The score as a number, with a mark if the setting could not be chosen, and a frame if it was."""
    from matplotlib.patches import Rectangle
    from matplotlib.patheffects import withStroke

    # Luminance of what is behind the text.
    dark = float(np.dot(image.cmap(image.norm(image.get_array()[down, across]))[:3], (0.299, 0.587, 0.114))) < 0.5
    color, weight = "white" if dark else "black", "bold" if row["chosen"] else "normal"
    axes.text(across, down, text + mark(row), ha="center", va="center", color=color, weight=weight, size=9)
    if row["chosen"]:
        # Black in a white seam: seen on any shade, in greyscale too.
        seam = [withStroke(linewidth=5, foreground="white")]
        corner = across - 0.46, down - 0.46
        axes.add_patch(Rectangle(corner, 0.92, 0.92, fill=False, edgecolor="black", lw=2.2, path_effects=seam))


def draw_sweep(numbers: Numbers) -> Any:
    """Scores over layers at the settings of the sweep, as the paper's ablation of layers; dashed: vanilla."""
    vanilla = vanilla_row(numbers["probes"])
    names, layers = _metrics(vanilla), [row["layer"] for row in numbers["layers"]]
    probes: dict[int, list[Any]] = {layer: [] for layer in layers}
    for row in numbers["probes"]:
        if row is not vanilla:
            probes[row["layer"]].append((Setting.of(row), row))
    spans = dict.fromkeys(setting.span for rows in probes.values() for setting, _ in rows)
    drawing, axes = new_figure(max(5.0, 0.35 * len(layers) + 2), 2.0 * len(names), len(names))
    for axis, name in zip(axes, names, strict=True):
        for layer, rows in probes.items():
            rows.sort(key=lambda entry: entry[0].gentleness)
            for place, (setting, row) in enumerate(rows):
                axis.bar(
                    layer + 0.8 * (place + 0.5) / len(rows) - 0.4, _value(name, row), width=0.8 / len(rows),
                    color=SKY if setting.alpha_max == rows[0][0].alpha_max else BLUE, edgecolor="white",
                    hatch="" if setting.span == next(iter(spans)) else "//",
                )  # fmt: skip
        axis.axhline(_value(name, vanilla), color=DARK, linestyle="--", linewidth=1)
        axis.set_title(f"{METRICS[name].label} in {METRICS[name].unit}, n = {vanilla['images']} images")
        axis.set_xticks(layers, [str(layer) for layer in layers], size=8)
    hatched = f"; hatched: span {', '.join([*spans][1:])}" if len(spans) > 1 else ""
    axes[-1].set_xlabel(f"layer (light: the milder setting{hatched}; dashed: vanilla)")
    return drawing


def draw_layers(rows: Sequence[dict[str, Any]], marked: Sequence[int], mark: str) -> Any:
    """Bars of every layer's statistics; a line for the mean of each quarter of the depth.

    Args:
        rows: The statistics, as JSON has them.
        marked: Layers with a triangle above their bars.
        mark: What the triangle means.
    """
    layers, groups = [row["layer"] for row in rows], layer_groups(len(rows))
    drawing, axes = new_figure(max(6.4, 0.26 * len(layers) + 2.5), 2.0 * len(_BARS), len(_BARS))
    for axis, (name, label) in zip(axes, _BARS, strict=True):
        values = [row[name] for row in rows]
        shades, hatches = zip(*((SKY, "//") if group % 2 else (BLUE, "") for group in groups), strict=True)
        axis.bar(layers, values, color=shades, hatch=hatches, edgecolor="white", linewidth=0.5, width=0.8)
        for group in sorted(set(groups)):
            inside = [place for place, number in enumerate(groups) if number == group]
            mean, last = float(np.mean([values[place] for place in inside])), layers[inside[-1]] + 0.45
            axis.hlines(mean, layers[inside[0]] - 0.45, last, color=DARK, linewidth=1.8)
            box = {"facecolor": "white", "alpha": 0.8, "pad": 0.6, "lw": 0}
            place = {"xytext": (-1, 3), "textcoords": "offset points", "ha": "right"}
            axis.annotate(f"{mean:.3g}", (last, mean), **place, size=7.5, color=DARK, bbox=box)
        # The first layer reads bare embeddings, which are short: on a plain scale it would hide the others.
        wide = min(values) > 0 and max(values) > 10 * float(np.median(values))
        axis.set_yscale("log" if wide else "linear")
        # At the upper edge, in front of the bars whatever their height.
        edge = {"transform": axis.get_xaxis_transform(), "clip_on": False}
        if marked:
            axis.plot(list(marked), [1.0] * len(marked), "v", color="black", markersize=8, **edge)
        axis.margins(y=0.14)
        axis.set_title(f"{name}: {label}{' (logarithmic scale)' if wide else ''}", pad=9)
        axis.set_xticks(layers, [str(layer) for layer in layers], size=7 if len(layers) > 24 else 8)
    axes[-1].set_xlabel(f"decoder layer, from 0\nblack lines: means of groups of layers; ▼: {mark}")
    return drawing
