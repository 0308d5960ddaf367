"""Answers token by token: where each token stands in the text, what was measured at it, which object it names."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from ..metrics.chair_parsers import Lineage
from ..metrics.mention_spans import mentions


@dataclass(frozen=True)
class Written:
    """One answer and what was measured at each of its tokens.

    Attributes:
        text: The answer.
        spans: Characters `start` to `stop` of each token in the text; empty for tokens that have no text.
        similarity: s_t, cosine of CARD and the hidden state that emits the token.
        gate: g_t; of an unsteered answer, the gate that these states would have opened.
        push: Length of the push relative to the hidden state; 0 in an unsteered answer.
        probability: Of the token, when it was written.
    """

    text: str
    spans: list[tuple[int, int]]
    similarity: list[float]
    gate: list[float]
    push: list[float]
    probability: list[float]

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> Written:
        """Read what `dataclasses.asdict` wrote."""
        return cls(**{**record, "spans": [(int(start), int(stop)) for start, stop in record["spans"]]})


def token_spans(tokenizer: Any, ids: Sequence[int]) -> tuple[str, list[tuple[int, int]]]:
    """The text of tokens, and the characters that each adds to it.

    Tokens are decoded together, because how one looks depends on its neighbours (blanks, characters of several
    tokens): a token reaches from where the text of the tokens before it ends to where its own does. Characters that
    take several tokens belong to the last of them.
    """
    text: str = tokenizer.decode(ids, skip_special_tokens=True)
    spans, start = [], 0
    for count in range(1, len(ids) + 1):
        grown: str = tokenizer.decode(ids[:count], skip_special_tokens=True)
        # Half a character is decoded as another one, which the whole text does not have in this place.
        stop = max(start, _common(grown, text))
        stop = len(text) if count == len(ids) else stop
        spans.append((start, stop))
        start = stop
    return text, spans


def _common(one: str, other: str) -> int:
    """How many characters two texts begin with alike."""
    return next(
        (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


@dataclass(frozen=True)
class Mentioned:
    """An object that an answer names.

    Attributes:
        category: COCO category.
        start: First character in the text.
        stop: Character after the last.
        tokens: Places of its tokens.
        absent: Whether it is not in the picture; None if that is not known.
    """

    category: str
    start: int
    stop: int
    tokens: list[int]
    absent: bool | None


def mentioned(written: Written, present: Collection[str] | None, lineage: Lineage = "pattern") -> list[Mentioned]:
    """The objects that an answer names, with their tokens."""
    found = []
    for span in mentions(written.text, lineage):
        tokens = [
            place
            for place, (start, stop) in enumerate(written.spans)
            if start < span.stop and stop > span.start and written.text[start:stop].strip()
        ]
        if tokens:
            wrong = None if present is None else span.category not in present
            found.append(Mentioned(span.category, span.start, span.stop, tokens, wrong))
    return found


def view(written: Written, present: Collection[str] | None, lineage: Lineage = "pattern") -> dict[str, Any]:
    """An answer as JSON values for the token view: tokens with text, and the objects they name."""
    named = mentioned(written, present, lineage)
    kind = {place: mention for mention in named for place in mention.tokens}
    tokens = []
    for place, (start, stop) in enumerate(written.spans):
        if start == stop:
            continue
        mention = kind.get(place)
        tokens.append(
            {
                "text": written.text[start:stop],
                "similarity": written.similarity[place],
                "gate": written.gate[place],
                "push": written.push[place],
                "probability": written.probability[place],
                "object": None if mention is None else mention.category,
                "absent": None if mention is None else mention.absent,
                "last": mention is not None and place == mention.tokens[-1],
            }
        )
    return {
        "text": written.text.strip(),
        "tokens": tokens,
        "named": [mention.category for mention in named],
        "absent": None if present is None else [mention.category for mention in named if mention.absent],
    }
