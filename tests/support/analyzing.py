"""Slow, direct computations that the statistics of the analysis are compared with, and answers made by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from rudder_hf.analyze.tokens import TracedAnswer


def pair_counting(scores: Any, positive: Any) -> float:
    """AUC by counting pairs."""
    won = total = 0.0
    for one, is_one in zip(scores, positive, strict=True):
        for other, is_other in zip(scores, positive, strict=True):
            if is_one and not is_other:
                total += 1
                won += 1 if one > other else 0.5 if one == other else 0
    return won / total


def slow_silhouette(apart: Any, labels: Any) -> float:
    """Mean silhouette, point by point."""
    values = []
    for i in range(len(labels)):
        same = [apart[i, j] for j in range(len(labels)) if labels[j] == labels[i] and j != i]
        if not same:
            values.append(0.0)
            continue
        a = sum(same) / len(same)
        b = min(
            np.mean([apart[i, j] for j in range(len(labels)) if labels[j] == k]) for k in set(labels) - {labels[i]}
        )
        values.append((b - a) / max(a, b))
    return float(np.mean(values))


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
