"""From what was gathered to all numbers of the report; figures are drawn from these numbers and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..metrics.statistics import Floats
from .tokens import SIDES, answer_mentions, token_view

if TYPE_CHECKING:
    from .run import ImageTraces

_BINS = 20
SHOWN = 8  # images that the report shows token by token
Present = Sequence[frozenset[str]] | None
"""The objects in each image, as CHAIR's ground truth has them; None if they are not known."""


def answer_numbers(traces: Sequence[ImageTraces], present: Present) -> dict[str, Any]:
    """Count the answers that differ, and the mentions of objects that are not in the image."""
    found: dict[str, Any] = {"differ": sum(entry.vanilla.text != entry.steered.text for entry in traces)}
    if present is not None:
        for side in SIDES:
            pairs = zip(traces, present, strict=True)
            named = [m for entry, inside in pairs for m in answer_mentions(getattr(entry, side), inside)]
            found[side] = {"mentions": len(named), "absent": sum(bool(mention.absent) for mention in named)}
    return found


def token_numbers(traces: Sequence[ImageTraces], present: Present) -> list[dict[str, Any]]:
    """Return the answers of the first images token by token."""
    views: list[dict[str, Any]] = []
    for place, entry in enumerate(traces[:SHOWN]):
        inside = None if present is None else present[place]
        answers = {side: token_view(getattr(entry, side), inside) for side in SIDES}
        views.append({"id": entry.sample, "present": None if inside is None else sorted(inside), **answers})
    return views


def gate_numbers(traces: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, Any]:
    """Return the similarities of the steered answers' tokens, and the mean gate over the similarity.

    Args:
        traces: The trace of each steered answer.
    """
    similarity, gate = (
        np.asarray([value for trace in traces for value in trace[name]]) for name in ("similarity", "gate")
    )
    bins = np.linspace(similarity.min(initial=0.0), similarity.max(initial=0.1), _BINS + 1)
    # The first token is not steered unless `steer_first_token` is on.
    similarity_steered, gate = similarity[gate > 0], gate[gate > 0]
    counts, sums = (np.histogram(similarity_steered, bins, weights=weights)[0] for weights in (None, gate))
    middles = (bins[:-1] + bins[1:]) / 2
    return {
        "bins": bins.tolist(),
        "tokens": {"n": len(similarity), "histogram": np.histogram(similarity, bins)[0].tolist()},
        "curve": [[float(at), float(total / n)] for at, n, total in zip(middles, counts, sums, strict=True) if n],
        "mean_gate": float(gate.mean()) if len(gate) else 0.0,
    }


def geometry_numbers(image: Floats, text: Floats | None) -> dict[str, Any]:
    """Compute the angles between CARDs, with histograms of them on common bins.

    Args:
        image: CARD of each prompt with its image, (images, hidden size).
        text: CARD of each prompt without its image, same shape; None if the model has none.
    """
    cosines = (units(image) @ units(image).T)[np.triu_indices(len(image), 1)]
    angles: dict[str, Floats] = {"between_images": np.degrees(np.arccos(np.clip(cosines, -1, 1)))}
    found: dict[str, Any] = {}
    if text is not None:
        angles["rotation"] = rotation(text, image)
    bins = np.linspace(0, max([1.0, *(values.max(initial=0.0) for values in angles.values())]), _BINS + 1)
    for name, values in angles.items():
        if len(values):
            low, high = np.quantile(values, (0.05, 0.95)).tolist()
            counts = np.histogram(values, bins)[0].tolist()
            found[name] = {"n": len(values), "mean": float(values.mean()), "spread": [low, high], "histogram": counts}
    return {"bins": bins.tolist(), **found}


def units(vectors: Floats) -> Floats:
    """Return the rows with length 1; a zero row stays zero."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    found: Floats = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)
    return found


def rotation(one: Floats, other: Floats) -> Floats:
    """Return the angle between the directions of paired rows, in degrees (the paper's Delta theta).

    By the half-angle form: the arc cosine of a product close to 1 would lose half of its digits.
    """
    one, other = units(one), units(other)
    half = np.arctan2(np.linalg.norm(one - other, axis=-1), np.linalg.norm(one + other, axis=-1))
    angles: Floats = np.degrees(2 * half)
    return angles
