"""Tokens as HTML: the text stays as it is, marks stand where they belong, shades can be read."""

from __future__ import annotations

import html
import math
import re
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rudder_hf.analyze.token_html import scale_html, shade, tokens_html
from tests.support.analyzing import luminance


class Read(HTMLParser):
    """Reads HTML as a browser would: text, what is struck out, tips, and tags that are open."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.text, self.struck = "", ""
        self.tips: list[str | None] = []
        self.tags: set[str] = set()
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.open.append(tag)
        self.tips += [value for name, value in attrs if name == "data-tip"]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        self.struck += data if "del" in self.open else ""


def token(text: str, similarity: float = 0.25, absent: bool | None = None) -> dict[str, Any]:
    named = None if absent is None else "cup"
    return {"text": text, "similarity": similarity, "gate": 0.5, "push": 0.125, "object": named, "absent": absent}


tokens = st.lists(st.builds(token, st.text(max_size=12), st.floats(-1, 1), st.sampled_from([None, False, True])))


@given(tokens, st.sampled_from(["gate", "similarity"]))
def test_tokens_show_the_text_and_strike_out_absent_objects(answer: list[dict[str, Any]], measure: str) -> None:
    page = tokens_html(answer, measure, (0.0, 1.0))
    read = Read(page)
    assert read.open == []
    assert read.tags <= {"span", "del"}
    # Browsers take carriage returns and NUL for something else; blanks before the first word are dropped.
    assert read.text == html.unescape(html.escape("".join(token["text"] for token in answer).lstrip()))
    words = [token for token in answer if token["text"].strip()]
    struck = "".join(token["text"].lstrip() for token in words if token["absent"])
    assert read.struck == html.unescape(html.escape(struck))
    assert not re.search(r"\{\{|\$\{|`", page)  # nothing for a template to evaluate
    assert len(read.tips) == len(words)


def test_tokens_carry_their_numbers_and_hostile_text_stays_text() -> None:
    hostile = '<img src=x onerror="alert(1)"> {{constructor}} ${alert(1)}'
    read = Read(tokens_html([token(hostile)], "gate", (0.0, 1.0)))
    assert read.text == hostile
    assert read.tags == {"span"}
    assert read.tips == ["gate 0.500 · similarity +0.250 · push 12.5 %"]
    named = Read(tokens_html([token("cup", absent=True) | {"probability": 0.5}], "gate", (0.0, 1.0)))
    assert named.tips == ["gate 0.500 · similarity +0.250 · push 12.5 % · probability 0.500 · cup, not in the image"]
    assert Read(tokens_html([token("a", math.nan)], "similarity", (0.0, 1.0))).tips == ["not recorded"]


def test_shades_are_told_apart_in_grey_and_leave_text_readable() -> None:
    greys = [luminance(shade(value, [-0.2, 0.6])) for value in np.linspace(-0.3, 0.7, 50)]
    assert all(one >= two for one, two in pairwise(greys))
    assert (greys[-1] + 0.05) / 0.05 > 4.5  # contrast of black text, WCAG AA
    assert greys[0] - greys[-1] > 0.5
    assert shade(-3.0, (0, 1)) == shade(0.0, (0, 1)) == shade(math.nan, (0, 1))
    assert shade(7.0, (0, 1)) == shade(1.0, (0, 1))


def test_the_scale_has_its_ends_as_numbers() -> None:
    assert scale_html((-0.2, 0.6)).startswith("-0.20 <")
    assert scale_html((-0.2, 0.6)).endswith("> 0.60")
