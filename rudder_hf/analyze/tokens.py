"""Answers token by token: where each token stands in the text, what was measured at it, which object it names."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from ..metrics.chair_parsers import Lineage
from ..metrics.highlight import mentions

SIDES = {"vanilla": "vanilla", "steered": "RUDDER"}
"""The two answers to an image, and what the reader calls them."""
MEASURES = {"similarity": "CARD similarity (cosine)", "gate": "gate (share of alpha_max)"}
"""What tokens are shaded by."""


class GrowingText:
    """The text of an answer while it grows, and the characters that each of its tokens adds.

    Tokens are decoded together, because how one looks depends on its neighbours (blanks, characters of several
    tokens): a token reaches from where the text of the tokens before it ends to where its own does. A character that
    takes several tokens belongs to the last of them.

    Args:
        tokenizer: Decodes the tokens; special ones have no text.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._ends: list[int] = []
        self.text = ""

    def add(self, token: int) -> None:
        """Append a token."""
        self._ids.append(token)
        text: str = self._tokenizer.decode(self._ids, skip_special_tokens=True)
        # Half a character is decoded as another one: what this token changes of the earlier text is its own.
        pairs = zip(self.text, text, strict=False)
        kept = next((place for place, (old, new) in enumerate(pairs) if old != new), min(len(self.text), len(text)))
        self._ends = [min(end, kept) for end in self._ends] + [len(text)]
        self.text = text

    @property
    def spans(self) -> list[tuple[int, int]]:
        """Characters `start` to `stop` of each token in the text."""
        return list(zip([0, *self._ends], self._ends, strict=False))


@dataclass(frozen=True)
class TracedAnswer:
    """One answer and what was measured at each of its tokens.

    Attributes:
        text: The answer.
        spans: Characters `start` to `stop` of each token in the text; empty for tokens that have no text.
        trace: For each token its "similarity" (s_t, cosine of CARD and the hidden state that emits the token), "gate"
            (g_t; of an unsteered answer, the gate that these states would have opened), "push" (its length relative
            to the hidden state) and, where it was measured, "probability".
    """

    text: str
    spans: Sequence[Sequence[int]]
    trace: dict[str, list[float]]


@dataclass(frozen=True)
class Mention:
    """An object that an answer names.

    Attributes:
        category: COCO category.
        tokens: Places of its tokens in the answer.
        absent: Whether it is not in the image; None if that is not known.
    """

    category: str
    tokens: list[int]
    absent: bool | None


def answer_mentions(
    answer: TracedAnswer, present: Collection[str] | None, lineage: Lineage = "pattern"
) -> list[Mention]:
    """The objects that an answer names, with their tokens.

    Args:
        answer: The answer.
        present: Categories in the image; None if they are not known.
        lineage: How mentions are found.
    """
    found = []
    for span in mentions(answer.text, lineage):
        tokens = [
            place
            for place, (start, stop) in enumerate(answer.spans)
            if start < span.stop and stop > span.start and answer.text[start:stop].strip()
        ]
        if tokens:
            found.append(Mention(span.category, tokens, None if present is None else span.category not in present))
    return found


def token_view(answer: TracedAnswer, present: Collection[str] | None, lineage: Lineage = "pattern") -> dict[str, Any]:
    """An answer as JSON values: its tokens with text and trace, and the objects that they name."""
    named = answer_mentions(answer, present, lineage)
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
                "last": mention is not None and place == mention.tokens[-1],
            }
        )
    return {
        "text": answer.text.strip(),
        "tokens": tokens,
        "named": [mention.category for mention in named],
        "absent": None if present is None else [mention.category for mention in named if mention.absent],
    }
