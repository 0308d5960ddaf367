"""Answers made by hand, and the luminance of colours."""

from __future__ import annotations

from typing import Any

from rudder_hf.analyze.tokens import TracedAnswer


def traced(words: str, similarity: list[float], probability: list[float] | None = None) -> TracedAnswer:
    """An answer of one token per word, with a gate of half the similarity."""
    spans, start = [], 0
    for word in words.split(" "):
        stop = start + len(word) + (start > 0)
        spans.append((start, stop))
        start = stop
    gate, push = [s / 2 for s in similarity], [0.0] * len(spans)
    chances = probability or [0.5] * len(spans)
    trace = {"similarity": similarity, "gate": gate, "push": push, "probability": chances}
    return TracedAnswer(words, spans, trace)


def luminance(colour: Any) -> float:
    """Relative luminance of an sRGB colour with parts from 0 to 1, 0 for black to 1 for white (WCAG)."""
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour)
    return float(0.2126 * red + 0.7152 * green + 0.0722 * blue)
