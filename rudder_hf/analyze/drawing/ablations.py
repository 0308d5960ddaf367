"""Ablations of a calibration: layers, alpha_max and k, POPE."""

from __future__ import annotations

from typing import Any

from ...calibrate.plots import Cell, draw_heatmap
from .style import BLUE, DARK, ORANGE, SKY, figure

METRICS = {"chair_s": "CHAIR_S", "chair_i": "CHAIR_I", "recall": "Recall"}


def draw_sweep(numbers: dict[str, Any]) -> Any:
    """Scores over layers at the settings of the sweep."""
    rows = numbers["layers"]
    made, axes = figure(max(6.0, 0.36 * len(rows) + 2), 5.6, 3)
    for axis, (name, label) in zip(axes, METRICS.items(), strict=True):
        for place, row in enumerate(rows):
            settings = row["settings"]
            for number, setting in enumerate(settings):
                mild = number == 0 and len(settings) > 1
                axis.bar(
                    place + 0.8 * (number + 0.5) / len(settings) - 0.4, setting[name], width=0.8 / len(settings),
                    color=SKY if mild else BLUE, hatch="//" if mild else "", edgecolor="white", linewidth=0.4,
                )  # fmt: skip
        vanilla = numbers["vanilla"][name]
        axis.axhline(vanilla, color=DARK, linestyle="--", linewidth=1.2, label=f"vanilla {vanilla:.1f}")
        axis.set_ylabel(f"{label} in percent")
        axis.set_title(f"{label}, n = {numbers['pictures']} pictures")
        axis.set_ylim(0, axis.get_ylim()[1] * 1.18)
        axis.legend(loc="upper right")
        axis.set_xticks(range(len(rows)), [str(row["layer"]) for row in rows], size=8)
    axes[-1].set_xlabel("steered decoder layer (light, hatched: the milder setting of the sweep)")
    return made


def draw_grid(numbers: dict[str, Any], grid: dict[str, Any]) -> Any:
    """Heatmaps of CHAIR_S, CHAIR_I and recall over alpha_max and k."""
    cells = grid["cells"]
    ks, alphas = {cell["k"] for cell in cells}, {cell["alpha_max"] for cell in cells}
    made, axes = figure(3 * (1.0 + 0.52 * len(ks)) + 0.6, 1.5 + 0.42 * len(alphas), 1, 3)
    for axis, (name, label) in zip(axes, METRICS.items(), strict=True):
        drawn = [
            Cell(
                cell["alpha_max"], cell["k"], cell[name],
                "‡" if cell["dropped"] else "†" if cell["breaks"] else "", cell["chosen"],
            )
            for cell in cells
        ]  # fmt: skip
        draw_heatmap(axis, drawn, higher_is_better=name == "recall", digits=1)
        axis.set_title(f"{label} in percent (vanilla {numbers['vanilla'][name]:.1f})", size=9)
    made.suptitle(
        f"layer {grid['layer']}{_rest(grid)}, n = {numbers['pictures']} pictures; darker is better, frame: chosen, "
        "†: breaks a limit, ‡: dropped early",
        size=8.5, x=0.01, ha="left",
    )  # fmt: skip
    return made


def _rest(grid: dict[str, Any]) -> str:
    parts = [str(grid["mode"])] if grid.get("mode") not in (None, "beta") else []
    parts += [f"{grid['pool']} pooling"] if grid.get("pool") not in (None, "mean") else []
    parts += [f"{grid['span']} span"] if grid.get("span") not in (None, "prompt") else []
    parts += ["first token steered"] if grid.get("steer_first_token") else []
    return f" ({', '.join(parts)})" if parts else ""


def draw_pope(rows: list[dict[str, Any]]) -> Any:
    """Accuracy and F1 of every setting that was asked POPE's questions."""
    made, (axes,) = figure(9.0, 0.34 * len(rows) + 1.4)
    for place, row in enumerate(rows):
        axes.plot([row["accuracy"], row["f1"]], [-place, -place], color="#BBBBBB", linewidth=1, zorder=1)
        accuracy = axes.plot(row["accuracy"], -place, "o", color=BLUE, markersize=7, zorder=2)[0]
        f1 = axes.plot(row["f1"], -place, "s", color=ORANGE, markeredgecolor=DARK, markersize=6, zorder=2)[0]
        side = axes.get_yaxis_transform()
        axes.text(1.02, -place, row["change"], va="center", size=7.5, transform=side)
    axes.axvline(rows[0]["accuracy"], color=BLUE, linestyle="--", linewidth=1)
    axes.axvline(rows[0]["f1"], color=ORANGE, linestyle=":", linewidth=1.4)
    axes.set_yticks([-place for place in range(len(rows))], [row["setting"] for row in rows], size=7.5)
    axes.set_xlabel("percent (lines: vanilla)")
    axes.text(1.02, 0.75, "accuracy minus vanilla's\n[95 % interval], points", size=7.5, transform=side)
    axes.set_ylim(0.6 - len(rows), 0.6)
    axes.set_title("POPE around the setting chosen on captions")
    made.legend([accuracy, f1], ["accuracy", "F1"], loc="outside lower left", ncols=2)
    return made
