"""Answers made by hand."""

from __future__ import annotations

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
