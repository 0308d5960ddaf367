"""Figures and `report.html`, drawn from the numbers alone. The report stands alone: nothing is fetched.

Each figure has the numbers to remember, what it shows, and what it does not support. All have one style: readable in
greyscale and without colour vision, no window system, reproducible files. Groups differ in lightness and in a hatch,
marker or line style, never in hue alone; the hues are those of Okabe and Ito. Needs the extra `plots`: matplotlib is
imported when a figure is drawn.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..runtime.store import write_new
from .tokens import SIDES, TOKEN_CSS, data_uri, escape, token_views_html

REPORT_FILE, FIGURES_FOLDER = "report.html", "figures"
BLUE, SKY, DARK, LIGHT = "#0072B2", "#56B4E9", "#222222", "#D9D9D9"
DPI = 150
_STYLE = {
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "legend.fontsize": 8.0,
    "legend.frameon": False,
    "hatch.linewidth": 0.6,
    # Without it ids in an SVG are random: the same numbers give the same file.
    "svg.hashsalt": "rudder",
    "svg.fonttype": "path",
}
# Light or dark, as the reader's system. Figures stay white and keep their size: narrow windows scroll them, so that
# their text can be read.
_CSS = (
    """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; max-width: 68rem; margin: 2rem auto;
  padding: 0 1rem; color: light-dark(#1a1a1a, #ececec); background: light-dark(#fff, #161618); }
h1 { font-size: 1.7rem; } h2 { font-size: 1.25rem; margin-top: 2.6rem; border-top: 1px solid #888; padding-top: 1rem; }
.figure { overflow-x: auto; background: #fff; border-radius: 6px; padding: .5rem; width: fit-content; max-width: 100%;
  box-sizing: border-box; } .figure img { display: block; height: auto; }
@media (min-width: 50rem) { .figure img { max-width: 100%; } }
code { background: light-dark(#f2f2f2, #2b2b2f); padding: 0 .2rem; }
p.limits { border-left: 4px solid #888; padding-left: .8rem; } .small { font-size: .8rem; }
.answers { display: grid; grid-template-columns: 11rem 1fr 1fr; gap: .3rem 1.2rem; align-items: start;
  margin-bottom: 1.6rem; }
.answers > div { min-width: 0; } .answers img { width: 10rem; }
@media (max-width: 50rem) { .answers { grid-template-columns: 1fr; } }
"""
    + TOKEN_CSS
)


@dataclass(frozen=True)
class Figure:
    """One figure of the report."""

    title: str
    drawing: Any  # as matplotlib has it
    finding: str  # the numbers to remember, in one or two sentences
    shows: str
    limits: str  # what it does not support


def write_report(out: Path, numbers: dict[str, Any], images: dict[str, Any]) -> list[str]:
    """Draw every figure into `figures/` as PNG and SVG, and write the report.

    Args:
        out: The folder of the analysis.
        numbers: All numbers.
        images: Images of the token view by id, as PIL has them.

    Returns:
        The summary, a sentence or two for each part.
    """
    summary, parts = [_answers(numbers)], [token_views_html(numbers["tokens"], images)]
    with styled():
        for name, draw in (("gate", draw_gate), ("layers", draw_layers), ("geometry", draw_geometry)):
            figure = draw(numbers[name])
            png = save_figure(figure.drawing, out / FIGURES_FOLDER / name).read_bytes()
            text = f"{figure.finding} {figure.shows}"
            parts += [
                f'<h2 id="{name}">{escape(figure.title)}</h2>',
                html_figure(png, f"{figure.title}: {text}"),
                f'<p>{_marked(text)}</p>\n<p class="limits">Not supported: {_marked(figure.limits)}</p>',
            ]
            summary.append(figure.finding)
    page = [_head(numbers), _summary(summary, numbers["notes"]), *parts, _provenance(numbers)]
    write_new(out / REPORT_FILE, _page(page))
    return summary


# Figures


@contextmanager
def styled() -> Iterator[None]:
    """Draw and save figures within this context; matplotlib's settings are restored afterwards."""
    import matplotlib

    with matplotlib.rc_context(_STYLE):
        yield


def new_figure(width: float, height: float, rows: int = 1, columns: int = 1) -> tuple[Any, list[Any]]:
    """Create a figure, sized in inches, and its axes, row by row."""
    # Without pyplot: no window system, no global state.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def save_figure(figure: Any, path: Path) -> Path:
    """Write a figure as PNG and SVG, within `styled`; the path has no suffix. Return the PNG's path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    png = path.with_name(f"{path.name}.png")
    figure.savefig(png, dpi=DPI, metadata={"Software": None})
    # Without date and address of the program.
    figure.savefig(path.with_name(f"{path.name}.svg"), metadata={"Date": None, "Creator": None})
    return png


def draw_gate(numbers: dict[str, Any]) -> Figure:
    """Draw the gate over the similarity of the steered answers' tokens."""
    drawing, (axes,) = new_figure(6.4, 3.4)
    _histogram(axes, numbers, "tokens", "answer tokens", color=LIGHT)
    axes.set(xlabel="CARD similarity of the token's hidden state", ylabel="share of tokens in percent", title="Gate")
    right = axes.twinx()
    right.spines["right"].set_visible(True)
    right.plot(*zip(*numbers["curve"], strict=True), "o-", color=BLUE, label="mean gate") if numbers["curve"] else None
    right.set(ylim=(0, 1.05), ylabel="gate (share of alpha_max)")
    axes.legend(loc="upper left")
    right.legend(loc="upper right")
    return Figure(
        "The gate",
        drawing,
        f"The mean gate of steered tokens is {numbers['mean_gate']:.2f}.",
        "The share of `alpha_max` that a hidden state gets by its cosine with CARD, over the similarities of the "
        "steered answers' tokens.",
        "It does not show that steering helps, or that the gate knows which objects are in the image.",
    )


def draw_layers(numbers: dict[str, Any]) -> Figure:
    """Draw the length of every layer's attention update, absolute and relative to the hidden state."""
    rows, steered = numbers["layers"], numbers["steered_layer"]
    places = [row["layer"] for row in rows]
    panels = {"update_norm": "length of the attention update", "leverage": "length relative to the hidden state"}
    drawing, axes = new_figure(max(6.4, 0.26 * len(rows) + 2.5), 4.6, 2)
    bars: dict[str, Any] = {
        "color": [BLUE if place == steered else LIGHT for place in places],
        "hatch": ["//" if place == steered else "" for place in places],
    }
    for axis, (name, label) in zip(axes, panels.items(), strict=True):
        values = [row[name] for row in rows]
        axis.bar(places, values, edgecolor=DARK, linewidth=0.6, width=0.8, **bars)
        # The first layer reads bare embeddings, which are short: on a plain scale it would hide the others.
        wide = min(values) > 0 and max(values) > 10 * sorted(values)[len(values) // 2]
        axis.set_yscale("log" if wide else "linear")
        axis.set_title(f"{label}{' (logarithmic scale)' if wide else ''}")
        axis.set_xticks(places, [str(place) for place in places], size=7 if len(places) > 24 else 8)
    axes[-1].set_xlabel("decoder layer, from 0; hatched: the steered layer")
    longest, relative = (max(rows, key=lambda row: row[name])["layer"] for name in panels)
    return Figure(
        "Layers",
        drawing,
        f"Attention adds most in layer {longest}, and most relative to the hidden state in layer {relative}; layer "
        f"{steered} is steered.",
        "What self-attention adds to the residual stream, averaged over the prompts.",
        "A long update is room to act, not evidence that steering there helps: `rudder calibrate` measures which "
        "layer reduces hallucination.",
    )


def draw_geometry(numbers: dict[str, Any]) -> Figure:
    """Draw the angles between CARDs: without and with the image, and of two images."""
    drawing, (axes,) = new_figure(6.4, 3.4)
    findings = []
    limits = (
        "A rotation says that the image changes CARD, as any input would, not that the change is about the image's "
        "content. The paper's alignment gain is 1 - cos(rotation) by construction, because the steering vector is "
        "parallel to CARD."
    )
    if turned := numbers.get("rotation"):
        _histogram(axes, numbers, "rotation", "prompt without image to with image", color=SKY)
        low, high = turned["spread"]
        findings.append(
            f"The image turns CARD by {turned['mean']:.1f}° on average (5 to 95 % of images: {low:.1f} to {high:.1f})."
        )
    if others := numbers.get("between_images"):
        label = "two different images"
        _histogram(axes, numbers, "between_images", label, fill=False, edgecolor=DARK, hatch="///")
        findings.append(f"CARDs of two images are {others['mean']:.1f}° apart on average.")
    axes.set(xlabel="angle between CARDs in degrees", ylabel="share in percent", title="Angles between CARDs")
    axes.legend(loc="upper left")
    shows = "How far CARD turns when the prompt has its image, and how far the CARDs of different images are apart."
    return Figure("Geometry of CARD", drawing, " ".join(findings), shows, limits)


def _histogram(axes: Any, numbers: dict[str, Any], name: str, label: str, **style: Any) -> None:
    """Draw stored counts as shares of all values, in percent."""
    bins, entry = numbers["bins"], numbers[name]
    shares = [100 * count / entry["n"] for count in entry["histogram"]]
    axes.bar(bins[:-1], shares, bins[1] - bins[0], align="edge", label=f"{label} (n = {entry['n']})", **style)
    axes.set_ylim(0, max(axes.get_ylim()[1], 1.35 * max(shares)))  # room for the legend


# Text


def _page(parts: list[str]) -> str:
    """Return the self-contained page of pieces of HTML."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>RUDDER analysis</title>\n<style>{_CSS}</style>\n</head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def html_figure(png: bytes, alt: str) -> str:
    """Return a figure of `save_figure` for the page, with its alternative text."""
    width = int.from_bytes(png[16:20], "big") * 96 // DPI  # of the PNG's pixels, in the browser's, 96 to an inch
    # The keyboard reaches it too, for scrolling.
    return f'<div class="figure" tabindex="0"><img src="{data_uri(png)}" alt="{escape(alt)}" width="{width}"></div>'


def _answers(numbers: dict[str, Any]) -> str:
    """Return the first sentences of the summary: how the answers changed."""
    found, count = numbers["answers"], numbers["images"]
    text = f"RUDDER changed {found['differ']} of {count} answers."
    if "vanilla" in found:
        sides = [f"{found[side]['absent']} of {found[side]['mentions']} ({label})" for side, label in SIDES.items()]
        text += f" Mentioned objects that are not in the image: {', '.join(sides)}."
    return text


def _head(numbers: dict[str, Any]) -> str:
    settings = ", ".join(f"{name} {value}" for name, value in numbers["settings"].items())
    data = ", ".join(f"{key} {value}" for key, value in numbers["data"].items() if key != "notes" and value)
    return (
        "<h1>RUDDER analysis</h1>\n"
        f"<p>Model <b>{escape(str(numbers['model']['name']))}</b> on <b>{numbers['images']}</b> images "
        f"({escape(data)}), {escape(numbers['decoding'])} decoding, at most {numbers['max_new_tokens']} new "
        f"tokens. RUDDER: {escape(settings)}.</p>\n"
        f"<p>Asked: {'; '.join(f'“{escape(prompt)}”' for prompt in numbers['prompts'])}</p>"
    )


def _summary(lines: list[str], notes: list[str]) -> str:
    """Return the summary, which says all findings before any figure."""
    items = "".join(f"<li>{_marked(line)}</li>" for line in lines)
    left_out = "".join(f"<li>{_marked(note)}</li>" for note in notes)
    return (
        f'<h2 id="summary">Summary</h2>\n<ul>{items}</ul>\n'
        "<p>RUDDER pools what self-attention adds to the residual stream while the prompt is read into one direction, "
        "CARD, and adds it back at every answer token, scaled by a gate that grows with the cosine of CARD and the "
        "hidden state. Whether RUDDER helps is measured by <code>rudder evaluate</code>.</p>"
        + (f"\n<p>Not in this report:</p><ul>{left_out}</ul>" if notes else "")
    )


def _marked(text: str) -> str:
    """Return text with what stands between backticks as code."""
    parts = [escape(part) for part in text.split("`")]
    return "".join(f"<code>{part}</code>" if place % 2 else part for place, part in enumerate(parts))


def _provenance(numbers: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in numbers["versions"].items() if version)
    lines = ["<h2>Where this comes from</h2>"]
    if numbers["command"]:
        lines.append(f"<p>Made by <code>{escape(numbers['command'])}</code>.</p>")
    lines.append(f"<p>Revision of the model: <code>{escape(str(numbers['model']['revision']))}</code>.</p>")
    lines += [f"<p>{escape(note)}</p>" for note in numbers["data"]["notes"]]
    lines.append(f"<p>All numbers: <code>numbers.json</code>; figures: <code>figures/</code>. {escape(versions)}.</p>")
    return "\n".join(lines)
