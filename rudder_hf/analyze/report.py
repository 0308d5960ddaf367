"""Figures and `report.html`, which stands alone: everything is inside, nothing is fetched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..runtime.figures import save_figure, styled
from ..runtime.report import html_figure, html_page, thumbnail_uri
from ..runtime.store import write_new
from .figures import draw_figures
from .tokens import MEASURES, SIDES, TOKEN_CSS, escape, numbers_html, scale_html, tokens_html

REPORT_FILE, FIGURES_FOLDER = "report.html", "figures"
_CSS = f"""
p.limits {{ border-left: 4px solid #888; padding-left: .8rem; }} .small {{ font-size: .8rem; }}
.answers {{ display: grid; grid-template-columns: 11rem 1fr 1fr; gap: .3rem 1.2rem; align-items: start;
  margin-bottom: 1.6rem; }}
.answers > div {{ min-width: 0; }} .answers img {{ width: 10rem; }}
@media (max-width: 50rem) {{ .answers {{ grid-template-columns: 1fr; }} }}
{TOKEN_CSS}"""


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
        for figure in draw_figures(numbers):
            png = save_figure(figure.drawing, out / FIGURES_FOLDER / figure.name).read_bytes()
            parts += [
                f'<h2 id="{escape(figure.name)}">{escape(figure.title)}</h2>',
                html_figure(png, f"{figure.title}: {figure.finding} {figure.shows}"),
                f"<p>{_marked(f'{figure.finding} {figure.shows}')}</p>",
                f'<p class="limits">Not supported: {_marked(figure.limits)}</p>',
            ]
            summary.append(figure.finding)
    page = [_head(numbers), _summary(summary, numbers["notes"]), *parts, _provenance(numbers)]
    write_new(out / REPORT_FILE, html_page("RUDDER analysis", page, _CSS))
    return summary


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
        "hidden state. Intervals are 95 % bootstrap intervals over images. Whether RUDDER helps is measured by "
        "<code>rudder evaluate</code>.</p>" + (f"\n<p>Not in this report:</p><ul>{left_out}</ul>" if notes else "")
    )


def _marked(text: str) -> str:
    """Return text with what stands between backticks as code."""
    parts = [escape(part) for part in text.split("`")]
    return "".join(f"<code>{part}</code>" if place % 2 else part for place, part in enumerate(parts))


def _token_views(numbers: dict[str, Any], images: dict[str, Any]) -> str:
    """Return the answers to the first images, with a key to the shades."""
    shades = "; ".join(f"{label} {scale_html(numbers['scale'][measure])}" for measure, label in MEASURES.items())
    key = (
        '<h2 id="tokens">Answers token by token</h2>\n'
        '<p>Point at a token or tap it for its numbers. <del class="tok absent">Dashed and struck out</del>: an '
        'object that is not in the image; <span class="tok present">underlined</span>: one that is. '
        f"Shades: {shades}.</p>"
    )
    limits = (
        '<p class="limits">Not supported: single images illustrate and prove nothing; shades differ from token to '
        "token for grammatical reasons too.</p>"
    )
    return "\n".join([key, *(_token_view(numbers, entry, images) for entry in numbers["shown"]), limits])


def _token_view(numbers: dict[str, Any], entry: dict[str, Any], images: dict[str, Any]) -> str:
    """Return the answers to an image as text with shades."""
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
            every = numbers_html(entry[side]["tokens"]) if measure == "gate" else ""
            cells.append(
                f'<div><div class="small">{title}, shaded by {label}{would}{count}</div>'
                f'<div class="tokens">{text}</div>{every}</div>'
            )
    return f'<div class="answers">{"".join(cells)}</div>'


def _provenance(numbers: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in numbers["versions"].items() if version)
    lines = ["<h2>Where this comes from</h2>"]
    if numbers["command"]:
        lines.append(f"<p>Made by <code>{escape(numbers['command'])}</code>, seed {numbers['seed']}.</p>")
    lines.append(f"<p>Revision of the model: <code>{escape(str(numbers['model']['revision']))}</code>.</p>")
    lines += [f"<p>{escape(note)}</p>" for note in numbers["data"]["notes"]]
    lines.append(f"<p>All numbers: <code>numbers.json</code>; figures: <code>figures/</code>. {escape(versions)}.</p>")
    return "\n".join(lines)
