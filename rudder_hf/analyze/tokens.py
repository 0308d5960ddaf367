"""Answers token by token: where each token stands in the text, what was measured at it, which object it names.

As data, and as HTML for the report and for the page of `rudder demo`: shades, numbers on hover, absent objects marked.
Colours tell nothing that numbers, shapes or text do not tell too.
"""

from __future__ import annotations

import base64
import difflib
import html
import io
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..metrics.chair import parse
from ..runtime.answers import without_prompt

SIDES = {"vanilla": "vanilla", "steered": "RUDDER"}
"""The two answers to an image, and what the reader calls them."""

# Shades lie on the page's own background below its own text: both keep their contrast in a light and in a dark theme,
# which the page names as its `color-scheme`.
TOKEN_CSS = """
.tokens { position: relative; line-height: 2; white-space: pre-wrap; overflow-wrap: anywhere; }
.tok, .scale { --shade: light-dark(#5299de, #1f5f9f); }
.tok { border-radius: 4px; padding: .1rem 0; cursor: help; text-decoration: none;
  background: color-mix(in srgb, var(--shade) var(--part, 0%), transparent); }
.tok.absent { font-weight: 700; text-decoration: line-through; border-block: 2px dashed; }
.tok.present { border-bottom: 2px solid; }
.tok.differs { outline: 2px solid light-dark(#b45309, #fbbf24); margin-inline: 2px; }
.tok:hover { box-shadow: 0 0 0 2px; }
/* No top: it hangs from the token's own line; centred in the answer, so that it never leaves the window. */
.tok:hover::after { content: attr(data-tip); position: absolute; left: 0; right: 0; margin: 2rem auto 0; z-index: 20;
  background: light-dark(#111, #eee); color: light-dark(#fff, #111); padding: .2rem .5rem; border-radius: 4px;
  font-size: .8rem; font-weight: 400; line-height: 1.4; width: max-content; max-width: 95%; white-space: normal;
  pointer-events: none; }
.numbers { font-size: .8rem; } .numbers table { border-collapse: collapse; } .numbers td { padding: 0 .6rem 0 0; }
.numbers th { padding: 0 .6rem 0 0; text-align: left; font-weight: 600; }
.scale { display: inline-block; width: 9rem; height: .9rem; border: 1px solid #888; vertical-align: middle;
  background: linear-gradient(to right, transparent, var(--shade)); }
"""


@dataclass(frozen=True)
class TracedAnswer:
    """One answer and what was measured at each of its tokens."""

    text: str = ""
    # Characters `start` to `stop` of each token in the text; empty for tokens that have no text.
    spans: Sequence[Sequence[int]] = ()
    # For each token its "similarity" (s_t, cosine of CARD and the hidden state that emits the token), "gate" (g_t)
    # and "push" (its length relative to the hidden state).
    trace: dict[str, list[float]] = field(default_factory=dict)

    @property
    def tokens(self) -> list[str]:
        """The text of each token."""
        return [self.text[start:stop] for start, stop in self.spans]


class GrowingAnswer:
    """An answer while it is written: its text, and what each token adds to it and was measured at.

    Tokens are decoded together, because how one looks depends on its neighbours (blanks, characters of several
    tokens): a token reaches from where the text of the tokens before it ends to where its own does. A character that
    takes several tokens belongs to the last of them.

    Args:
        tokenizer: Decodes the tokens; special ones have no text.
        ends: Tokens that end an answer: they and what follows (the padding of a batch) do not belong to it.
        measures: Names of what is measured at each token.
    """

    def __init__(self, tokenizer: Any, ends: Collection[int] = (), measures: Sequence[str] = ()) -> None:
        self._tokenizer, self._ends = tokenizer, ends
        self._ids: list[int] = []
        self._text, self._stops = "", list[int]()
        self._trace: dict[str, list[float]] = {name: [] for name in measures}
        self._ended = False

    def add(self, token: int, *measured: float) -> None:
        """Append a token."""
        self._ended = self._ended or token in self._ends
        if self._ended:
            return
        self._ids.append(token)
        text: str = self._tokenizer.decode(self._ids, skip_special_tokens=True)
        # Half a character is decoded as another one: what this token changes of the earlier text is its own.
        pairs = zip(self._text, text, strict=False)
        kept = next((place for place, (old, new) in enumerate(pairs) if old != new), min(len(self._text), len(text)))
        self._stops = [min(stop, kept) for stop in self._stops] + [len(text)]
        self._text = text
        for values, value in zip(self._trace.values(), measured, strict=True):
            values.append(value)

    def traced(self) -> TracedAnswer:
        """The answer so far."""
        spans = list(zip([0, *self._stops], self._stops, strict=False))
        return TracedAnswer(self._text, spans, {name: list(values) for name, values in self._trace.items()})


def traced_answers(output: Any, prompt: Tensor, tokenizer: Any) -> list[TracedAnswer]:
    """Return the answers of a `generate` call with `output_rudder=True`, one for each row, to the end of each.

    Args:
        output: What `generate` returned.
        prompt: The token ids of the prompts.
        tokenizer: Decodes the tokens.
    """
    trace = output.rudder
    tables = {"similarity": trace.similarity, "gate": trace.gate, "push": trace.push}
    values = torch.stack([table.double().cpu() for table in tables.values()], dim=-1).tolist()
    answers = []
    for ids, row in zip(without_prompt(output.sequences, prompt).tolist(), values, strict=True):
        answer = GrowingAnswer(tokenizer, measures=tuple(tables))
        for token, at_token in zip(ids, row, strict=True):
            if not math.isnan(at_token[0]):  # padding
                answer.add(token, *(round(value, 6) for value in at_token))
        answers.append(answer.traced())
    return answers


@dataclass(frozen=True)
class TokenMention:
    """An object that an answer names."""

    category: str  # of COCO
    tokens: list[int]  # places of its tokens in the answer
    absent: bool | None  # whether it is not in the image; None if that is not known


def answer_mentions(answer: TracedAnswer, present: Collection[str] | None) -> list[TokenMention]:
    """The objects that an answer names, with their tokens.

    Args:
        answer: The answer.
        present: Categories in the image; None if they are not known.
    """
    found = []
    for span in parse(answer.text).mentions:
        tokens = [
            place
            for place, (start, stop) in enumerate(answer.spans)
            if start < span.stop and stop > span.start and answer.text[start:stop].strip()
        ]
        if tokens:
            found.append(
                TokenMention(span.category, tokens, None if present is None else span.category not in present)
            )
    return found


def token_view(answer: TracedAnswer, present: Collection[str] | None) -> dict[str, Any]:
    """An answer as JSON values: its tokens with text and trace, and the objects that they name."""
    named = answer_mentions(answer, present)
    by_token = {place: mention for mention in named for place in mention.tokens}
    tokens = []
    for place, (start, stop) in enumerate(answer.spans):
        if start == stop:
            continue
        mention = by_token.get(place)
        tokens.append(
            {
                "text": answer.text[start:stop],
                **{name: values[place] for name, values in answer.trace.items()},
                "object": None if mention is None else mention.category,
                "absent": None if mention is None else mention.absent,
            }
        )
    return {
        "text": answer.text.strip(),
        "tokens": tokens,
        "named": [mention.category for mention in named],
        "absent": None if present is None else [mention.category for mention in named if mention.absent],
    }


def mark_differences(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Mark the tokens by which two answers of `token_view` differ; return whether there are any."""
    before, after = ([token["text"].strip().lower() for token in view["tokens"]] for view in (one, other))
    for tag, *places in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        for view, (start, stop) in zip((one, other), (places[:2], places[2:]), strict=True):
            for token in view["tokens"][start:stop]:
                token["differs"] = tag != "equal"
    return before != after


# As HTML

SCALE = '0 <span class="scale"></span> 1'
"""The shades from the lightest to the darkest, with the gates of both."""


def escape(text: str) -> str:
    """Text that neither HTML nor a page's templates take for anything else."""
    escaped = html.escape(text, quote=True)
    for character in "{}$`":
        escaped = escaped.replace(character, f"&#{ord(character)};")
    return escaped


def tokens_html(tokens: Iterable[Mapping[str, Any]]) -> str:
    """Return an answer with every token of `token_view` shaded by its gate, and mentions of objects marked."""
    parts: list[str] = []
    for token in tokens:
        text = token["text"] if parts else token["text"].lstrip()
        word = text.lstrip()
        shown = escape(text[: len(text) - len(word)])
        if word:
            # Crossed out for those who do not see the page, too.
            tag = "del" if token["absent"] else "span"
            kind = {True: "tok absent", False: "tok present", None: "tok"}[token["absent"]]
            kind += " differs" if token.get("differs") else ""
            style = f"--part: {0 if math.isnan(token['gate']) else 100 * token['gate']:.0f}%"
            shown += f'<{tag} class="{kind}" data-tip="{_tip(token)}" style="{style}">{escape(word)}</{tag}>'
        if shown:
            parts.append(shown)
    return "".join(parts)


def _numbers(token: Mapping[str, Any]) -> dict[str, str]:
    """Return what is shown of a token, by name; nothing if nothing was recorded."""
    if math.isnan(token["similarity"]):
        return {}
    return {
        "gate": f"{token['gate']:.3f}",
        "similarity": f"{token['similarity']:+.3f}",
        "push": f"{100 * token['push']:.1f} %",
    }


def _tip(token: Mapping[str, Any]) -> str:
    """Return what hovering over a token shows."""
    parts = [f"{name} {value}" for name, value in _numbers(token).items()] or ["not recorded"]
    if token["object"] is not None:
        where = {True: ", not in the image", False: ", in the image", None: ""}[token["absent"]]
        parts.append(token["object"] + where)
    if token.get("differs"):
        parts.append("in this answer only")
    return escape(" · ".join(parts))


def numbers_html(tokens: Iterable[Mapping[str, Any]]) -> str:
    """Return the numbers of all tokens as a table that opens by a click or a key: hovering needs a mouse."""
    rows = [(token["text"].strip(), _numbers(token)) for token in tokens if token["text"].strip()]
    names = next((list(found) for _, found in rows if found), [])
    if not names:
        return ""
    head = "".join(f'<th scope="col">{name}</th>' for name in ("token", *names))
    cells = [[escape(word), *(found.get(name, "") for name in names)] for word, found in rows]
    body = "".join(f"<tr><td>{'</td><td>'.join(row)}</td></tr>" for row in cells)
    return (
        '<details class="numbers"><summary>Numbers of each token</summary>'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></details>"
    )


def token_views_html(shown: list[dict[str, Any]], images: dict[str, Any]) -> str:
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
    cells = [f'<img src="{_thumbnail_uri(image)}" alt="image {name}"><div class="small">Image {name}. {known}</div>']
    for side, title in SIDES.items():
        tokens, named, absent = (entry[side][key] for key in ("tokens", "named", "absent"))
        count = "" if absent is None else f"; {len(absent)} of {len(named)} mentions absent"
        cell = f'<div class="small">{title}{count}</div><div class="tokens">{tokens_html(tokens)}</div>'
        cells.append(cell + numbers_html(tokens))
    return f'<div class="answers">{"".join(f"<div>{cell}</div>" for cell in cells)}</div>'


def _thumbnail_uri(image: Any) -> str:
    """Return a PIL image as a data URI, at most 240 pixels wide and high."""
    copy = image.copy()
    copy.thumbnail((240, 240))
    buffer = io.BytesIO()
    copy.save(buffer, format="PNG")
    return data_uri(buffer.getvalue())


def data_uri(png: bytes) -> str:
    """Return a PNG as a data URI."""
    return "data:image/png;base64," + base64.b64encode(png).decode()
