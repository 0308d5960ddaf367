"""From tokens and what RUDDER recorded of them to HTML: colours, numbers on hover, absent objects struck out."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..metrics.highlight import Span

COLOURS = ("gate", "similarity")
# One hue that darkens all the way: order survives greyscale and every kind of colour blindness.
_LIGHT = (255, 255, 255)
_DARK = (8, 48, 107)
# Black and white, because nothing between them is readable on the middle of the scale.
_INK, _PAPER = (0, 0, 0), (255, 255, 255)


@dataclass(frozen=True)
class Token:
    """A piece of an answer with what RUDDER saw and did when it was emitted.

    Attributes:
        text: Its text; the texts of all tokens together are the answer.
        similarity: s_t, cosine of CARD and the hidden state.
        gate: g_t, share of alpha_max that was applied; 0 where nothing was added.
        push: Length of the push relative to the hidden state.
    """

    text: str
    similarity: float
    gate: float
    push: float


def escape(text: str) -> str:
    """Text that neither HTML nor the page's templates take for anything else."""
    escaped = html.escape(text, quote=True)
    for character in "{}$`":
        escaped = escaped.replace(character, f"&#{ord(character)};")
    return escaped


class Pieces:
    """Grows with an answer and knows the text that each of its tokens adds: joined they are the decoded answer.

    Decoding tokens one by one would lose spaces and break characters that several tokens make up; such a character
    belongs to its last token.

    Args:
        decode: From ids to text.
    """

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._ends: list[int] = []
        self.text = ""

    def add(self, token: int) -> None:
        """Append a token."""
        self._ids.append(token)
        text = self._decode(list(self._ids))
        # What later tokens change of the text is theirs.
        pairs = zip(self.text, text, strict=False)
        kept = next((place for place, (old, new) in enumerate(pairs) if old != new), min(len(self.text), len(text)))
        self._ends = [min(end, kept) for end in self._ends] + [len(text)]
        self.text = text

    def texts(self) -> list[str]:
        """The text of each token, in order."""
        return [self.text[start:stop] for start, stop in zip([0, *self._ends], self._ends, strict=False)]


def luminance(colour: Sequence[int]) -> float:
    """Relative luminance of an sRGB colour, 0 for black to 1 for white (WCAG)."""
    red, green, blue = (
        (value / 255) / 12.92 if value <= 10 else ((value / 255 + 0.055) / 1.055) ** 2.4 for value in colour
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: Sequence[int], other: Sequence[int]) -> float:
    """Contrast of two colours, 1 to 21; text needs 4.5 (WCAG AA)."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def shade(share: float) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Background for a value (0 to 1 of the scale, cut off there) and the colour of text that is readable on it."""
    share = 0.0 if math.isnan(share) else min(max(share, 0.0), 1.0)
    background = tuple(round(light + share * (dark - light)) for light, dark in zip(_LIGHT, _DARK, strict=True))
    return background, max(_INK, _PAPER, key=lambda ink: contrast(background, ink))


def scale(answers: Iterable[Sequence[Token]], colour: str) -> tuple[float, float]:
    """The values that get the lightest and the darkest colour: one scale for all answers that stand side by side.

    The gate's is 0 to 1; the similarity's what occurs, to the next tenth.
    """
    if colour == "gate":
        return 0.0, 1.0
    values = [token.similarity for tokens in answers for token in tokens if math.isfinite(token.similarity)]
    if not values:
        return 0.0, 1.0
    low, high = math.floor(10 * min(values)) / 10, math.ceil(10 * max(values)) / 10
    return low, max(high, round(low + 0.1, 1))


def _hex(colour: Sequence[int]) -> str:
    return "#" + "".join(f"{value:02x}" for value in colour)


def _style(share: float) -> str:
    background, ink = shade(share)
    return f"background:{_hex(background)};color:{_hex(ink)}"


def numbers(token: Token) -> str:
    """What hovering over a token shows."""
    if not math.isfinite(token.similarity):
        return "not recorded"
    return f"gate {token.gate:.3f} · similarity {token.similarity:+.3f} · push {100 * token.push:.1f} %"


def caption(tokens: Sequence[Token], colour: str, limits: tuple[float, float], absent: Sequence[Span] = ()) -> str:
    """An answer as HTML: every token coloured by `colour`, mentions in `absent` struck out.

    Args:
        tokens: The answer.
        colour: "gate" or "similarity".
        limits: The scale's ends.
        absent: Mentions of what is not in the picture, as places in the answer's text.
    """
    low, high = limits
    parts: list[str] = []
    start = 0
    for token in tokens:
        value = getattr(token, colour)
        head = f'<span class="tok" data-tip="{escape(numbers(token))}" style="{_style((value - low) / (high - low))}">'
        for text, wrong in _segments(token.text, start, absent):
            body = text.lstrip() if not parts else text
            bare = body.lstrip()
            blank = body[: len(body) - len(bare)]
            shown = escape(blank) + (f"{head}{escape(bare)}</span>" if bare else "")
            if shown:
                parts.append(f'<del class="absent">{shown}</del>' if wrong else shown)
        start += len(token.text)
    return "".join(parts)


def _segments(text: str, start: int, absent: Sequence[Span]) -> list[tuple[str, bool]]:
    """A token's text, which stands at `start`, cut where mentions begin and end; whether each part is in one."""
    edges = {0, len(text)}
    for span in absent:
        edges |= {min(max(edge - start, 0), len(text)) for edge in (span.start, span.stop)}
    cuts = sorted(edges)
    return [
        (text[low:high], any(span.start < start + high and start + low < span.stop for span in absent))
        for low, high in pairwise(cuts)
    ]


def panel(title: str, body: str, verdict: str, waiting: str) -> str:
    """A titled box around an answer; `waiting` stands in it while there is none."""
    body = body or f'<span class="waiting">{escape(waiting)}</span>'
    return (
        f'<section class="answer"><h3>{escape(title)}</h3><p class="caption">{body}</p>'
        f'<p class="verdict">{verdict}</p></section>'
    )


def verdict(absent: Sequence[Span] | None, done: bool) -> str:
    """What is said below an answer about objects that are not in the picture; nothing if that is not known."""
    if absent is None or not (done or absent):
        return ""
    if not absent:
        return "Names nothing that is not in the picture."
    names = list(dict.fromkeys(span.category for span in absent))
    return f"Not in the picture: {', '.join(f'<del>{escape(name)}</del>' for name in names)}"


def legend(colour: str, limits: tuple[float, float]) -> str:
    """The scale of the colours, with its ends as numbers."""
    low, high = limits
    meaning = {
        "gate": "gate: share of alpha_max that was added when the word was written",
        "similarity": "similarity: cosine of CARD and the hidden state that wrote the word",
    }[colour]
    steps = "".join(f'<span style="{_style(step / 10)}"></span>' for step in range(11))
    return (
        f'<div class="legend"><span>{low:g}</span><span class="ramp">{steps}</span><span>{high:g}</span>'
        f'<span class="meaning">{escape(meaning)}. Hover for numbers.</span></div>'
    )
