"""Tokens as HTML, for the report and for the page of `rudder demo`: shades, numbers on hover, absent objects marked.

Colours tell nothing that numbers, shapes or text do not tell too.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

TOKEN_CSS = """
.tokens { position: relative; line-height: 2; white-space: pre-wrap; overflow-wrap: anywhere; }
.tok { border-radius: 4px; padding: .1rem 0; color: #000; cursor: help; }
.tok.absent { font-weight: 700; text-decoration: line-through; outline: 2px dashed #000; outline-offset: -1px; }
.tok.present { border-bottom: 2px solid #000; }
.tok:hover { box-shadow: 0 0 0 2px #111; }
/* No top: it hangs from the token's own line; centred in the answer, so that it never leaves the window. */
.tok:hover::after { content: attr(data-tip); position: absolute; left: 0; right: 0; margin: 2rem auto 0; z-index: 20;
  background: #111; color: #fff; padding: .2rem .5rem; border-radius: 4px; font-size: .8rem; font-weight: 400;
  line-height: 1.4; width: max-content; max-width: 95%; white-space: normal; pointer-events: none; }
.scale { display: inline-block; width: 9rem; height: .9rem; border: 1px solid #888; vertical-align: middle; }
"""


def escape(text: str) -> str:
    """Text that neither HTML nor a page's templates take for anything else."""
    escaped = html.escape(text, quote=True)
    for character in "{}$`":
        escaped = escaped.replace(character, f"&#{ord(character)};")
    return escaped


def shade(value: float, scale: Sequence[float]) -> tuple[float, float, float]:
    """From white to a blue on which black text is readable; lightness falls all the way, so that greys tell it too.

    Args:
        value: What is shown; beyond the scale it has the shade of the scale's end, NaN is white.
        scale: The values of the lightest and of the darkest shade.

    Returns:
        Red, green and blue, 0 to 1.
    """
    low, high = scale
    part = 0.0 if math.isnan(value) else min(max((value - low) / (high - low), 0.0), 1.0)
    red, green, blue = (1 - part * (1 - end) for end in (0.32, 0.60, 0.87))
    return red, green, blue


def _background(value: float, scale: Sequence[float]) -> str:
    return "rgb({:.0f}, {:.0f}, {:.0f})".format(*(255 * part for part in shade(value, scale)))


def tokens_html(tokens: Iterable[Mapping[str, Any]], measure: str, scale: Sequence[float]) -> str:
    """An answer: every token shaded, mentions of objects marked, blanks between the tokens.

    Args:
        tokens: From `token_view`.
        measure: What they are shaded by.
        scale: The values of the lightest and of the darkest shade.
    """
    parts: list[str] = []
    for token in tokens:
        text = token["text"] if parts else token["text"].lstrip()
        word = text.lstrip()
        shown = escape(text[: len(text) - len(word)])
        if word:
            # Crossed out for those who do not see the page, too.
            tag = "del" if token["absent"] else "span"
            kind = {True: "tok absent", False: "tok present", None: "tok"}[token["absent"]]
            style = f"background: {_background(token[measure], scale)}"
            shown += f'<{tag} class="{kind}" data-tip="{_tip(token)}" style="{style}">{escape(word)}</{tag}>'
        if shown:
            parts.append(shown)
    return "".join(parts)


def _tip(token: Mapping[str, Any]) -> str:
    """What hovering over a token shows."""
    if math.isnan(token["similarity"]):
        return "not recorded"
    parts = [
        f"gate {token['gate']:.3f}",
        f"similarity {token['similarity']:+.3f}",
        f"push {100 * token['push']:.1f} %",
    ]
    if "probability" in token:
        parts.append(f"probability {token['probability']:.3f}")
    if token["object"] is not None:
        parts.append(
            token["object"] + {True: ", not in the image", False: ", in the image", None: ""}[token["absent"]]
        )
    return escape(" · ".join(parts))


def scale_html(scale: Sequence[float]) -> str:
    """The shades from the lightest to the darkest, with the values of both."""
    low, high = scale
    ramp = f"linear-gradient(to right, {_background(low, scale)}, {_background(high, scale)})"
    return f'{low:.2f} <span class="scale" style="background: {ramp}"></span> {high:.2f}'
