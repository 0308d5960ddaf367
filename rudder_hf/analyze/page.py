"""The pieces of `report.html`. Colours tell nothing that numbers, shapes or text do not tell too."""

from __future__ import annotations

from html import escape
from typing import Any

from .drawing.tokens import ABSENT, MEASURES, NAMES, shade

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; max-width: 68rem; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.7rem; } h2 { font-size: 1.25rem; margin-top: 2.6rem; border-top: 1px solid #ccc; padding-top: 1rem; }
h3 { font-size: 1rem; margin: 1.6rem 0 .4rem; }
img.figure { max-width: 100%; height: auto; }
p.limits { border-left: 4px solid #444; padding-left: .8rem; color: #333; }
table { border-collapse: collapse; margin: .6rem 0; } th, td { padding: .2rem .8rem .2rem 0; text-align: left; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
.answers { display: grid; grid-template-columns: 11rem 1fr 1fr; gap: .3rem 1.2rem; align-items: start; }
.answers > div { min-width: 0; } .answers img { width: 10rem; image-rendering: auto; }
.told { font-size: .8rem; color: #444; } .text { line-height: 1.75; }
.t { border-radius: 2px; padding: .05rem 0; cursor: help; }
.absent { font-weight: 700; outline: 2px solid #000; outline-offset: -1px; }
.present { border-bottom: 2px solid #000; }
.scale { display: inline-block; width: 9rem; height: .9rem; border: 1px solid #888; vertical-align: middle; }
ul.notes li { margin: .2rem 0; } code { background: #f2f2f2; padding: 0 .2rem; overflow-wrap: anywhere; }
nav a { margin-right: 1rem; }
@media (max-width: 50rem) { .answers { grid-template-columns: 1fr; } }
"""


def document(numbers: dict[str, Any], sections: list[str]) -> str:
    """The whole page."""
    body = [_head(numbers), _scores(numbers.get("scores")), *sections, _provenance(numbers)]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>RUDDER analysis</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(part for part in body if part)
        + "\n</body>\n</html>\n"
    )


def _head(numbers: dict[str, Any]) -> str:
    lines = ["<h1>RUDDER, looked at</h1>"]
    if "model" in numbers:
        settings = numbers["settings"]
        data = ", ".join(f"{key} {value}" for key, value in numbers["data"].items() if key != "notes" and value)
        lines.append(
            f"<p>Model <b>{escape(str(numbers['model']['name']))}</b> on <b>{numbers['pictures']}</b> pictures "
            f"({escape(data)}), {escape(numbers['decoding'])} decoding, at most {numbers['max_new_tokens']} new "
            f"tokens. RUDDER: mode {escape(str(settings['mode']))}, layer {settings['layer']}, "
            f"alpha_max {settings['alpha_max']:g}, k {settings['k']:g}, span {escape(str(settings['span']))}, "
            f"{escape(str(settings['pool']))} pooling.</p>"
        )
        asked = "; ".join(f"“{escape(prompt)}”" for prompt in numbers["prompts"])
        lines.append(f"<p>Asked: {asked}</p>")
    lines.append(
        "<p>RUDDER pools what self-attention adds to the residual stream while the prompt is read into one direction, "
        "CARD, and adds it back at every answer token, scaled by a gate that grows with the cosine of CARD and the "
        "hidden state. Below each figure stands what it shows, and, behind the bar, what it does not support.</p>"
    )
    if numbers["notes"]:
        items = "".join(f"<li>{escape(note)}</li>" for note in numbers["notes"])
        lines.append(f'<p>Not in this report:</p><ul class="notes">{items}</ul>')
    return "\n".join(lines)


def _scores(scores: dict[str, Any] | None) -> str:
    if scores is None:
        return ""
    rows = []
    for metric in scores["metrics"]:
        factor = 100 if metric["percent"] else 1
        cells = []
        for side in ("vanilla", "steered", "difference"):
            value, low, high = (factor * metric[side][key] for key in ("value", "low", "high"))
            sign = "+" if side == "difference" else ""
            cells.append(f'<td class="number">{value:{sign}.1f} [{low:{sign}.1f}, {high:{sign}.1f}]</td>')
        unit = "percent" if metric["percent"] else "words"
        rows.append(f"<tr><td>{escape(metric['label'])} ({unit})</td>{''.join(cells)}</tr>")
    return (
        f"<h2>On these {scores['pictures']} pictures</h2><table><tr><th></th><th>vanilla</th><th>RUDDER</th>"
        f"<th>difference</th></tr>{''.join(rows)}</table>"
        "<p>CHAIR_S: captions that name an absent object; CHAIR_I: mentions of absent objects among all mentions; "
        f"recall: objects found ({escape(scores['lineage'])} lineage). 95 % bootstrap intervals over pictures, "
        "differences paired.</p>"
    )


def section(name: str, title: str, shows: str, limits: str, data: str) -> str:
    """A figure with its texts."""
    return (
        f'<h2 id="{escape(name)}">{escape(title)}</h2>\n'
        f'<img class="figure" src="{data}" alt="{escape(f"{title}: {shows}")}">\n'
        f'<p>{escape(shows)}</p>\n<p class="limits">Not supported: {escape(limits)}</p>'
    )


def token_views(numbers: dict[str, Any], pictures: dict[str, str]) -> str:
    """The answers of the first pictures as text with shades."""
    parts = [
        f"<h3>The first {len(numbers['shown'])} of {numbers['pictures']} pictures</h3>",
        '<p>Point at a token for its numbers. <span class="absent">framed and bold '
        + ABSENT
        + "</span>: an object that "
        'is not in the picture; <span class="present">underlined</span>: one that is. Shades: '
        + "; ".join(f"{escape(label)} {_scale(numbers['scale'][measure])}" for measure, label in MEASURES.items())
        + ".</p>",
    ]
    for entry in numbers["shown"]:
        known = (
            "" if entry["present"] is None else f"In it: {escape(', '.join(entry['present']) or 'no known object')}"
        )
        parts.append(f"<h3>Picture {escape(str(entry['id']))}</h3>")
        name = escape(str(entry["id"]))
        cells = [
            f'<div style="grid-row: span 2"><img src="{pictures[entry["id"]]}" alt="picture {name}">'
            f'<div class="told">{known}</div></div>'
        ]
        for measure, label in MEASURES.items():
            for side, title in NAMES.items():
                would = ", as it would be" if measure == "gate" and side == "vanilla" else ""
                text = _tokens(entry[side]["tokens"], measure, numbers["scale"][measure])
                cells.append(
                    f'<div><div class="told">{title}, shaded by {escape(label)}{would}{_count(entry[side])}</div>'
                    f'<div class="text">{text}</div></div>'
                )
        parts.append(f'<div class="answers">{"".join(cells)}</div>')
    return "\n".join(parts)


def _count(answer: dict[str, Any]) -> str:
    if answer["absent"] is None:
        return ""
    return f"; {len(answer['absent'])} of {len(answer['named'])} mentions absent"


def _scale(ends: list[float]) -> str:
    low, high = (_colour(end, ends) for end in ends)
    return (
        f'{ends[0]:.2f} <span class="scale" style="background: linear-gradient(to right, {low}, {high})"></span> '
        f"{ends[1]:.2f}"
    )


def _colour(value: float, ends: list[float]) -> str:
    return "rgb({:.0f}, {:.0f}, {:.0f})".format(*(255 * part for part in shade(value, ends)))


def _tokens(tokens: list[dict[str, Any]], measure: str, scale: list[float]) -> str:
    parts = []
    for token in tokens:
        text = token["text"]
        blank = text[: len(text) - len(text.lstrip())]
        kind = "absent" if token["absent"] else "present" if token["absent"] is False else ""
        told = (
            f"similarity {token['similarity']:+.3f}, gate {token['gate']:.3f}, push {100 * token['push']:.1f} % of "
            f"the hidden state, probability {token['probability']:.3f}"
        )
        if token["object"] is not None:
            state = {True: ", not in the picture", False: ", in the picture", None: ""}[token["absent"]]
            told += f"; {token['object']}{state}"
        mark = ABSENT if token["absent"] and token["last"] else ""
        parts.append(
            f'{escape(blank)}<span class="t {kind}" style="background: {_colour(token[measure], scale)}" '
            f'title="{escape(told)}">{escape(text[len(blank) :])}{mark}</span>'
        )
    return "".join(parts)


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
