"""Figures and `report.html`, drawn from the numbers alone. The report stands alone: nothing is fetched.

Each figure has the numbers to remember, what it shows, and what it does not support.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..runtime.figures import (
    BLUE,
    DARK,
    LIGHT,
    SKY,
    html_figure,
    html_page,
    new_figure,
    save_figure,
    styled,
    thumbnail_uri,
)
from ..runtime.store import write_new
from .tokens import SCALE, SIDES, TOKEN_CSS, escape, numbers_html, tokens_html

REPORT_FILE, FIGURES_FOLDER = "report.html", "figures"
_CSS = f"""
p.limits {{ border-left: 4px solid #888; padding-left: .8rem; }} .small {{ font-size: .8rem; }}
.answers {{ display: grid; grid-template-columns: 11rem 1fr 1fr; gap: .3rem 1.2rem; align-items: start;
  margin-bottom: 1.6rem; }}
.answers > div {{ min-width: 0; }} .answers img {{ width: 10rem; }}
@media (max-width: 50rem) {{ .answers {{ grid-template-columns: 1fr; }} }}
{TOKEN_CSS}"""


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
    summary, parts = [_answers(numbers)], [_token_views(numbers["tokens"], images)]
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
    write_new(out / REPORT_FILE, html_page("RUDDER analysis", page, _CSS))
    return summary


# Figures


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


def _token_views(shown: list[dict[str, Any]], images: dict[str, Any]) -> str:
    """Return the answers to the first images, with a key to the shades."""
    key = (
        '<h2 id="tokens">Answers token by token</h2>\n'
        '<p>Point at a token or tap it for its numbers. <del class="tok absent">Dashed and struck out</del>: an '
        'object that is not in the image; <span class="tok present">underlined</span>: one that is. '
        f"Shades: the gate (share of alpha_max that was added) {SCALE}.</p>"
    )
    limits = (
        '<p class="limits">Not supported: single images illustrate and prove nothing; shades differ from token to '
        "token for grammatical reasons too.</p>"
    )
    views = [_token_view(entry, images[entry["id"]]) for entry in shown]
    return "\n".join([key, *views, limits])


def _token_view(entry: dict[str, Any], image: Any) -> str:
    """Return the answers to an image, shaded by the gate."""
    name, present = escape(str(entry["id"])), entry["present"]
    known = "" if present is None else f"In it: {escape(', '.join(present) or 'no known object')}"
    cells = [f'<img src="{thumbnail_uri(image)}" alt="image {name}"><div class="small">Image {name}. {known}</div>']
    for side, title in SIDES.items():
        tokens, named, absent = (entry[side][key] for key in ("tokens", "named", "absent"))
        count = "" if absent is None else f"; {len(absent)} of {len(named)} mentions absent"
        cell = f'<div class="small">{title}{count}</div><div class="tokens">{tokens_html(tokens)}</div>'
        cells.append(cell + numbers_html(tokens))
    return f'<div class="answers">{"".join(f"<div>{cell}</div>" for cell in cells)}</div>'


def _provenance(numbers: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in numbers["versions"].items() if version)
    lines = ["<h2>Where this comes from</h2>"]
    if numbers["command"]:
        lines.append(f"<p>Made by <code>{escape(numbers['command'])}</code>.</p>")
    lines.append(f"<p>Revision of the model: <code>{escape(str(numbers['model']['revision']))}</code>.</p>")
    lines += [f"<p>{escape(note)}</p>" for note in numbers["data"]["notes"]]
    lines.append(f"<p>All numbers: <code>numbers.json</code>; figures: <code>figures/</code>. {escape(versions)}.</p>")
    return "\n".join(lines)
