"""Answers token by token: spans, mentions and lines; as HTML the text stays as it is, and shades can be read."""

from __future__ import annotations

import html
import math
import re
from functools import cache
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rudder_hf.analyze.tokens import GrowingAnswer, answer_mentions, numbers_html, token_view, tokens_html
from tests.support.analyzing import Page, traced
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
    answer = GrowingAnswer(tokenizer)
    for count, token in enumerate(ids, start=1):
        answer.add(token)
        assert len(answer.traced().spans) == count
        assert answer.traced().text == tokenizer.decode(ids[:count], skip_special_tokens=True)
    return answer.traced().text, [(start, stop) for start, stop in answer.traced().spans]


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


def test_an_answer_ends_with_its_end_of_sequence() -> None:
    toy = toy_processor().tokenizer
    answer = GrowingAnswer(toy, {0}, ["gate"])
    for token, gate in zip([*toy("a dog").input_ids, 0, *toy("a cat").input_ids], range(5), strict=True):
        answer.add(token, gate)
    assert (answer.traced().text, answer.traced().trace) == ("a dog", {"gate": [0, 1]})


def test_mentions_and_their_tokens() -> None:
    answer = traced("a dog and a traffic light", [0.1, 0.2, 0.3, 0.4, 0.5, 0.7])
    dog, light = answer_mentions(answer, {"dog"})
    assert (dog.tokens, dog.absent, light.tokens, light.absent) == ([1], False, [4, 5], True)
    assert answer_mentions(answer, None)[0].absent is None
    shown = token_view(answer, {"dog"})
    assert [t["text"] for t in shown["tokens"] if t["absent"]] == [" traffic", " light"]
    assert shown["absent"] == ["traffic light"]


# As HTML


def token(text: str, similarity: float = 0.25, absent: bool | None = None) -> dict[str, Any]:
    named = None if absent is None else "cup"
    return {"text": text, "similarity": similarity, "gate": 0.5, "push": 0.125, "object": named, "absent": absent}


def tips(page: Page) -> list[str | None]:
    return [token["data-tip"] for token in page.tokens]


tokens = st.lists(st.builds(token, st.text(max_size=12), st.floats(-1, 1), st.sampled_from([None, False, True])))


@given(tokens)
def test_tokens_show_the_text_and_strike_out_absent_objects(answer: list[dict[str, Any]]) -> None:
    page = tokens_html(answer)
    read = Page(page)
    assert set(read.tags) <= {"span", "del"}
    # Browsers take carriage returns and NUL for something else; blanks before the first word are dropped.
    assert read.text == html.unescape(html.escape("".join(token["text"] for token in answer).lstrip()))
    words = [token for token in answer if token["text"].strip()]
    struck = "".join(token["text"].lstrip() for token in words if token["absent"])
    assert read.struck == html.unescape(html.escape(struck))
    assert not re.search(r"\{\{|\$\{|`", page)  # nothing for a template to evaluate
    assert len(read.tokens) == len(words)


def test_tokens_carry_their_numbers_and_hostile_text_stays_text() -> None:
    hostile = '<img src=x onerror="alert(1)"> {{constructor}} ${alert(1)}'
    read = Page(tokens_html([token(hostile)]))
    assert read.text == hostile
    assert read.tags == ["span"]
    assert tips(read) == ["gate 0.500 · similarity +0.250 · push 12.5 %"]
    named = Page(tokens_html([token("cup", absent=True)]))
    assert tips(named) == ["gate 0.500 · similarity +0.250 · push 12.5 % · cup, not in the image"]
    assert tips(Page(tokens_html([token("a", math.nan)]))) == ["not recorded"]


def test_the_table_has_the_numbers_of_every_word() -> None:
    page = numbers_html([token("a <b>", 0.25), token(" "), token(" cup", math.nan)])
    assert Page(page).tags.count("tr") == 3  # with the heading
    assert "<td>a &lt;b&gt;</td><td>0.500</td><td>+0.250</td><td>12.5 %</td>" in page
    assert "<td>cup</td><td></td><td></td><td></td>" in page
    assert numbers_html([]) == numbers_html([token("a", math.nan)]) == ""
