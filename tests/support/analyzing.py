"""Answers made by hand, and HTML as a browser reads it."""

from __future__ import annotations

from html.parser import HTMLParser

from rudder_hf.analyze.tokens import TracedAnswer


def traced(words: str, similarity: list[float]) -> TracedAnswer:
    """An answer of one token per word, with a gate of half the similarity."""
    spans, start = [], 0
    for word in words.split(" "):
        stop = start + len(word) + (start > 0)
        spans.append((start, stop))
        start = stop
    gate, push = [s / 2 for s in similarity], [0.0] * len(spans)
    return TracedAnswer(words, spans, {"similarity": similarity, "gate": gate, "push": push})


class Page(HTMLParser):
    """Checks that elements are closed; keeps text, what is struck out, tags, addresses and token spans."""

    VOID = ("meta", "img", "br", "link", "hr", "input")

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.text, self.struck = "", ""
        self.addresses: list[str] = []
        self.tags: list[str] = []
        self.tokens: list[dict[str, str | None]] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append(tag)
        self.addresses += [found[name] or "" for name in ("src", "href", "action", "data") if name in found]
        if "data-tip" in found:
            self.tokens.append(found)
        if tag == "img":
            assert found.get("alt")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        self.struck += data if "del" in self.open else ""
