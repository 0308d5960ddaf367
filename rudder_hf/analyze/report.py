"""Figures and `report.html`, which stands alone: everything is inside, nothing is fetched."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..runtime.figures import save_figure, styled
from ..runtime.report import html_figure, html_page, thumbnail_uri
from ..runtime.store import write_new
from . import answer_figures, card_figures
from .figures import Figure, ablations, dynamics
from .tokens import MEASURES, SIDES, TOKEN_CSS, escape, scale_html, tokens_html

REPORT_FILE, FIGURES_FOLDER = "report.html", "figures"
_CSS = f"""
p.limits {{ border-left: 4px solid #888; padding-left: .8rem; }} .small {{ font-size: .8rem; }}
.answers {{ display: grid; grid-template-columns: 11rem 1fr 1fr; gap: .3rem 1.2rem; align-items: start;
  margin-bottom: 1.6rem; }}
.answers > div {{ min-width: 0; }} .answers img {{ width: 10rem; }}
@media (max-width: 50rem) {{ .answers {{ grid-template-columns: 1fr; }} }}
{TOKEN_CSS}"""


def _figures(numbers: dict[str, Any], images: dict[str, Any]) -> Iterator[Figure]:
    """The figures that the numbers have, in the order of the report."""
    geometry = numbers.get("geometry") or {}
    if found := numbers.get("tokens"):
        yield answer_figures.tokens(found, images[found["figure"]["id"]])
    if found := numbers.get("detector"):
        yield answer_figures.detector(found)
    if found := numbers.get("layers"):
        yield dynamics(found)
    if found := geometry.get("rotation"):
        yield card_figures.rotation(found)
    if geometry.get("probe") or geometry.get("neighbours"):
        yield card_figures.evidence(geometry)
    if found := geometry.get("categories"):
        yield card_figures.categories(found)
    if found := geometry.get("maps"):
        yield card_figures.maps(found, geometry["clusters"])
    if found := geometry.get("clusters"):
        yield card_figures.clusters(found)
    if found := numbers.get("ablations"):
        yield from ablations(found)


def write_report(out: Path, numbers: dict[str, Any], images: dict[str, Any]) -> list[dict[str, str]]:
    """Draw every figure into `figures/` as PNG and SVG, and write the report.

    Args:
        out: The folder of the analysis.
        numbers: All numbers.
        images: Images of the token view by id, as PIL has them.

    Returns:
        Name, title and texts of each figure.
    """
    texts, parts = [], [_head(numbers)]
    with styled():
        for figure in _figures(numbers, images):
            png = save_figure(figure.drawing, out / FIGURES_FOLDER / figure.name).read_bytes()
            caption = f"{figure.finding} {figure.shows}".strip()
            shown, others = html_figure(png, f"{figure.title}: {caption}"), ""
            if figure.name == "token-view":  # as text, which fits every window
                shown, others = _token_views(numbers["tokens"], images)
            parts += [
                f'<h2 id="{escape(figure.name)}">{escape(figure.title)}</h2>',
                shown,
                f'<p>{_marked(caption)}</p>\n<p class="limits">Not supported: {_marked(figure.limits)}</p>',
                others,
            ]
            names = ("name", "title", "finding", "shows", "limits")
            texts.append({name: getattr(figure, name) for name in names})
    write_new(out / REPORT_FILE, html_page("RUDDER analysis", [*parts, _provenance(numbers)], _CSS))
    return texts


def _head(numbers: dict[str, Any]) -> str:
    lines = ["<h1>RUDDER analysis</h1>"]
    if "model" in numbers:
        settings = numbers["settings"]
        data = ", ".join(f"{key} {value}" for key, value in numbers["data"].items() if key != "notes" and value)
        lines.append(
            f"<p>Model <b>{escape(str(numbers['model']['name']))}</b> on <b>{numbers['images']}</b> images "
            f"({escape(data)}), {escape(numbers['decoding'])} decoding, at most {numbers['max_new_tokens']} new "
            f"tokens. RUDDER: {escape(', '.join(f'{name} {value}' for name, value in settings.items()))}.</p>"
        )
        lines.append(f"<p>Asked: {'; '.join(f'“{escape(prompt)}”' for prompt in numbers['prompts'])}</p>")
    lines.append(
        "<p>RUDDER pools what self-attention adds to the residual stream while the prompt is read into one direction, "
        "CARD, and adds it back at every answer token, scaled by a gate that grows with the cosine of CARD and the "
        "hidden state. Below each figure stands what it shows, and, behind the bar, what it does not support.</p>"
    )
    if numbers["notes"]:
        items = "".join(f"<li>{_marked(note)}</li>" for note in numbers["notes"])
        lines.append(f"<p>Not in this report:</p><ul>{items}</ul>")
    return "\n".join(lines)


def _marked(text: str) -> str:
    """Text with what stands between backticks as code."""
    parts = [escape(part) for part in text.split("`")]
    return "".join(f"<code>{part}</code>" if place % 2 else part for place, part in enumerate(parts))


def _token_views(numbers: dict[str, Any], images: dict[str, Any]) -> tuple[str, str]:
    """The answers to the figure's image with a key to the shades, and those to the other first images."""
    shades = "; ".join(f"{label} {scale_html(numbers['scale'][measure])}" for measure, label in MEASURES.items())
    key = (
        '<p>Point at a token or tap it for its numbers. <del class="tok absent">Dashed and struck out</del>: an '
        f'object that is not in the image; <span class="tok present">underlined</span>: one that is. '
        f"Shades: {shades}.</p>"
    )
    drawn, shown = numbers["figure"], numbers["shown"]
    others = [_token_view(numbers, entry, images) for entry in shown if entry["id"] != drawn["id"]]
    if others:
        others.insert(0, f"<h3>Others of the first {len(shown)} of {numbers['images']} images</h3>")
    return key + _token_view(numbers, drawn, images), "\n".join(others)


def _token_view(numbers: dict[str, Any], entry: dict[str, Any], images: dict[str, Any]) -> str:
    """The answers to an image as text with shades."""
    name, present = escape(str(entry["id"])), entry["present"]
    known = "" if present is None else f"In it: {escape(', '.join(present) or 'no known object')}"
    cells = [
        f'<div style="grid-row: span 2"><img src="{thumbnail_uri(images[entry["id"]])}" alt="image {name}">'
        f'<div class="small">Image {name}. {known}</div></div>'
    ]
    for measure, label in MEASURES.items():
        for side, title in SIDES.items():
            would = ", as it would be" if measure == "gate" and side == "vanilla" else ""
            named, absent = entry[side]["named"], entry[side]["absent"]
            count = "" if absent is None else f"; {len(absent)} of {len(named)} mentions absent"
            text = tokens_html(entry[side]["tokens"], measure, numbers["scale"][measure])
            cells.append(
                f'<div><div class="small">{title}, shaded by {label}{would}{count}</div>'
                f'<div class="tokens">{text}</div></div>'
            )
    return f'<div class="answers">{"".join(cells)}</div>'


def _provenance(numbers: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in numbers["versions"].items() if version)
    lines = ["<h2>Where this comes from</h2>"]
    if numbers["command"]:
        lines.append(f"<p>Made by <code>{escape(numbers['command'])}</code>, seed {numbers['seed']}.</p>")
    if "model" in numbers:
        lines.append(f"<p>Revision of the model: <code>{escape(str(numbers['model']['revision']))}</code>.</p>")
        lines += [f"<p>{escape(note)}</p>" for note in numbers["data"]["notes"]]
    lines.append(f"<p>All numbers: <code>numbers.json</code>; figures: <code>figures/</code>. {escape(versions)}.</p>")
    return "\n".join(lines)
