"""Fluency of answers: a hallucination score can be bought with broken text, so this stands beside it in every table.

- `repetition`: shares of distinct word sequences, and of sentences that an answer has already said. Both are taken
  within each answer and summed over answers, so that saying the same about two images is no repetition.
- `broken`: sentences of scene captions that the scenes' grammar cannot produce.

What the unsteered model thinks of an answer needs the model: `rudder_hf.runtime.answers.log_likelihoods`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..scenes.captions import broken_sentences, scene_sentences
from .statistics import Counts, Metric, share
from .words import sentences, words

SIZES = (1, 2, 3)

FLUENCY_METRICS: tuple[Metric, ...] = (
    *(Metric(f"distinct_{n}", f"Distinct-{n}", share(f"distinct_{n}", f"sequences_{n}"), True) for n in SIZES),
    Metric("repeated_sentences", "Repeated sentences", share("repeated_sentences", "sentences"), False),
    Metric("empty", "Empty", share("empty", "answers"), False),
)
BROKEN_METRICS: tuple[Metric, ...] = (
    Metric("broken_sentences", "Broken sentences", share("broken_sentences", "scene_sentences"), False),
)


def repetition(answers: Sequence[str], ids: Sequence[str]) -> Counts:
    """Count word sequences and sentences of each answer, for `FLUENCY_METRICS`; case and punctuation are ignored."""
    rows = []
    for answer in answers:
        text = answer.lower()
        plain = [word for word in words(text) if any(letter.isalnum() for letter in word)]
        said = [" ".join(sentence.split()) for sentence in sentences(text) if sentence.strip()]
        row: list[int] = [1, not answer.strip(), len(said), len(said) - len(set(said))]
        for size in SIZES:
            runs = list(zip(*(plain[start:] for start in range(size)), strict=False))
            row += [len(runs), len(set(runs))]
        rows.append(row)
    sequences = (name for size in SIZES for name in (f"sequences_{size}", f"distinct_{size}"))
    return _row_counts(ids, ("answers", "empty", "sentences", "repeated_sentences", *sequences), rows)


def broken(answers: Sequence[str], ids: Sequence[str]) -> Counts:
    """Count the sentences of each answer, and those that no template of the scenes makes, for `BROKEN_METRICS`."""
    return _row_counts(
        ids,
        ("scene_sentences", "broken_sentences"),
        [(len(scene_sentences(answer)), broken_sentences(answer)) for answer in answers],
    )


def _row_counts(ids: Sequence[str], columns: tuple[str, ...], rows: Sequence[Sequence[float]]) -> Counts:
    return Counts(tuple(ids), columns, np.asarray(rows, dtype=np.float64).reshape(len(rows), len(columns)))
