"""The geometry of CARD: how far the image turns it, and how far the CARDs of two images are apart."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..metrics.statistics import Counts, Floats, Metric, interval, share

_DRAWS = 2000
_BINS = 20
_MEAN = Metric("mean", "mean", share("sum", "count"), None)


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


def mean_interval(values: Floats, seed: int = 0) -> list[float]:
    """Return the 95 % bootstrap interval of a mean."""
    table = np.stack([values, np.ones_like(values)], axis=1)
    counts = Counts(tuple(map(str, range(len(values)))), ("sum", "count"), table)
    found = interval(counts, [_MEAN], _DRAWS, seed)["mean"]
    return [found.low, found.high]


def geometry_numbers(text: Floats | None, image: Floats, seed: int = 0) -> dict[str, Any]:
    """Compute the angles between CARDs, with histograms of them on common bins.

    Args:
        text: CARD of each prompt without its image, (images, hidden size); None if the model has none.
        image: CARD of each prompt with its image, same shape.
        seed: Of the intervals.
    """
    cosines = (units(image) @ units(image).T)[np.triu_indices(len(image), 1)]
    angles: dict[str, Floats] = {"between_images": np.degrees(np.arccos(np.clip(cosines, -1, 1)))}
    if text is not None:
        angles["rotation"] = rotation(text, image)
    everything = np.concatenate(list(angles.values()))
    bins = np.linspace(0, max(everything.max(initial=0.0), 1.0), _BINS + 1)
    found: dict[str, Any] = {"images": len(image), "hidden_size": image.shape[1], "bins": bins.tolist()}
    for name, values in angles.items():
        if len(values):
            summary = {"n": len(values), "mean": float(values.mean()), "median": float(np.median(values))}
            found[name] = {**summary, "histogram": np.histogram(values, bins)[0].tolist()}
    if text is not None:
        turned = angles["rotation"]
        found["rotation"]["interval"] = mean_interval(turned, seed)
        # The steering vector is parallel to CARD, so that the paper's gain is this, whatever the model does.
        found["alignment_gain"] = float((1 - np.cos(np.radians(turned))).mean())
        # The part of the turn that all images share.
        found["common_rotation"] = float(rotation(units(text).mean(0), units(image).mean(0)))
    return found
