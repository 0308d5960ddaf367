"""Answers token by token: spans, mentions and lines."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rudder_hf.analyze.figures.answers import COLUMNS, lay_out
from rudder_hf.analyze.tokens import GrowingText, answer_mentions, token_view
from rudder_hf.metrics.highlight import mentions
from tests.support.analyzing import traced
from tests.support.toy import toy_processor


@cache
def byte_tokenizer() -> Any:
    """Every byte a token, so that an emoji takes four of them."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made)


def grown(tokenizer: Any, ids: list[int]) -> tuple[str, list[tuple[int, int]]]:
    text = GrowingText(tokenizer)
    for count, token in enumerate(ids, start=1):
        text.add(token)
        assert len(text.spans) == count
        assert text.text == tokenizer.decode(ids[:count], skip_special_tokens=True)
    return text.text, text.spans


@given(st.text(max_size=12))
@settings(max_examples=50, deadline=None)
def test_spans_cover_the_text(text: str) -> None:
    tokenizer = byte_tokenizer()
    ids = tokenizer(text).input_ids
    decoded, spans = grown(tokenizer, ids)
    assert decoded == text
    assert len(spans) == len(ids)
    assert "".join(text[start:stop] for start, stop in spans) == text
    assert all(one[1] == two[0] for one, two in pairwise(spans))


def test_spans_of_characters_of_several_tokens() -> None:
    tokenizer = byte_tokenizer()
    text, spans = grown(tokenizer, tokenizer("a🐻b").input_ids)
    assert [text[start:stop] for start, stop in spans] == ["a", "", "", "", "🐻", "b"]
    toy = toy_processor().tokenizer
    text, spans = grown(toy, toy("a dog near the chair").input_ids)
    assert [text[a:b].strip() for a, b in spans] == ["a", "dog", "near", "the", "chair"]


def test_mentions_and_their_tokens() -> None:
    answer = traced("a dog and a traffic light", [0.1, 0.2, 0.3, 0.4, 0.5, 0.7], [0.1, 0.2, 0.3, 0.4, 0.5, 0.02])
    dog, light = answer_mentions(answer, {"dog"})
    assert (dog.tokens, dog.absent, light.tokens, light.absent) == ([1], False, [4, 5], True)
    assert answer_mentions(answer, None)[0].absent is None
    shown = token_view(answer, {"dog"})
    assert [t["text"] for t in shown["tokens"] if t["absent"]] == [" traffic", " light"]
    assert [t["last"] for t in shown["tokens"]] == [False, True, False, False, False, True]
    assert shown["absent"] == ["traffic light"]


def test_places_of_joined_words() -> None:
    text = "Two baby elephants, a hot-dog and passenger trains."
    assert [text[s.start : s.stop] for s in mentions(text)] == ["baby elephants", "passenger trains"]
    assert [text[s.start : s.stop] for s in mentions(text, "strict")] == [
        "baby elephants", "hot-dog", "passenger trains",
    ]  # fmt: skip


def test_token_view_breaks_lines_between_words() -> None:
    shown = token_view(traced("a dog and a cat " * 9 + "end", [0.1] * 46), {"dog"})
    placed = lay_out(shown["tokens"])
    assert "".join(text for _, _, text, _ in placed).count("cat✗") == 9
    for line in {line for line, _, _, _ in placed}:
        inside = sorted((column, text) for at, column, text, _ in placed if at == line)
        assert inside[-1][0] + len(inside[-1][1]) <= COLUMNS
        assert all(c + len(t) < d for (c, t), (d, _) in pairwise(inside))
