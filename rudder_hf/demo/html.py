"""The page's own HTML: style sheet, first lines, boxes around answers. No font, script or image from elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..analyze.token_html import TOKEN_CSS, escape, scale_html
from ..analyze.tokens import TracedAnswer

# Answers stand on white in the dark theme too, so that a colour always means the same.
CSS = f"""
.gradio-container {{ max-width: 1280px !important; margin: 0 auto !important; }}
.rudder-head h1 {{ font-size: 1.5rem; margin: 0 0 .25rem; }}
.rudder-head p {{ margin: 0; }}
.answer {{ background: #fff; color: #111; border: 1px solid #8a8a8a; border-radius: 8px; padding: .75rem 1rem; }}
.answer h3 {{ margin: 0 0 .5rem; color: #111; font-size: 1rem; }}
.answer .tokens {{ margin: 0; min-height: 9rem; }}
.answer .verdict {{ margin: .5rem 0 0; min-height: 1.5rem; color: #111; font-size: .9rem; }}
.answer .waiting {{ color: #595959; }}
.legend, .notes {{ margin: 0; font-size: .9rem; }}
.keep {{ display: flex; flex-wrap: wrap; align-items: center; gap: .75rem; font-size: .95rem; }}
.keep a.save {{ background: #08306b; color: #fff !important; padding: .45rem .9rem; border-radius: 6px;
  text-decoration: none; }}
.keep a.link {{ text-decoration: underline; }}
footer {{ display: none !important; }}
@media (max-width: 640px) {{ #vanilla, #steered {{ min-width: 100% !important; }} }}
{TOKEN_CSS}"""

# Enforced by the browser: the page cannot ask anybody but the server that it came from.
ONLY_THIS_SERVER = "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; form-action 'self'; base-uri 'self'"

_MEANINGS = {
    "gate": "gate: share of alpha_max that was added when the word was written",
    "similarity": "similarity: cosine of CARD and the hidden state that wrote the word",
}


def head(name: str, note: str) -> str:
    """Title and first lines."""
    return (
        '<div class="rudder-head"><h1>RUDDER, beside the model as it is</h1>'
        f"<p>Model: {escape(name)}. {escape(note)} Give it an image or choose an example: both answers are written at "
        "the same time, and colours show where RUDDER pushed. In examples, objects that are not in the image are "
        "<del>struck out</del>, and those that are in it underlined.</p></div>"
    )


def notes(lines: Sequence[str]) -> str:
    """Remarks below the controls."""
    return "".join(f'<p class="notes">{escape(line)}</p>' for line in lines)


def panel(title: str, body: str, verdict: str, waiting: str) -> str:
    """A titled box around an answer; `waiting` stands in it while there is none."""
    body = body or f'<span class="waiting">{escape(waiting)}</span>'
    return (
        f'<section class="answer"><h3>{escape(title)}</h3><p class="tokens">{body}</p>'
        f'<p class="verdict">{verdict}</p></section>'
    )


def verdict(absent: Sequence[str] | None, done: bool) -> str:
    """What is said below an answer about absent objects; nothing if it is not known what is in the image."""
    if absent is None or not (done or absent):
        return ""
    if not absent:
        return "Names nothing that is not in the image."
    return f"Not in the image: {', '.join(f'<del>{escape(name)}</del>' for name in dict.fromkeys(absent))}"


def colour_scale(answers: Sequence[TracedAnswer], colour: str) -> tuple[float, float]:
    """The values that get the lightest and the darkest shade: one scale for both answers.

    The gate's is 0 to 1; the similarity's what occurs, to the next tenth.
    """
    if colour == "gate":
        return 0.0, 1.0
    values = [value for answer in answers for value in answer.trace.get(colour, ()) if math.isfinite(value)]
    if not values:
        return 0.0, 1.0
    low, high = math.floor(10 * min(values)) / 10, math.ceil(10 * max(values)) / 10
    return low, max(high, round(low + 0.1, 1))


def legend(colour: str, scale: Sequence[float]) -> str:
    """The scale of the shades, and what they mean."""
    return f'<p class="legend">{scale_html(scale)} {escape(_MEANINGS[colour])}. Hover for numbers.</p>'
