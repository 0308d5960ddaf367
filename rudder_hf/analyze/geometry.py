"""Directions in the original space: how far the picture turns CARD, and what follows from that by construction."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def units(vectors: Floats) -> Floats:
    """Rows with length 1; a zero row stays zero."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    found: Floats = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)
    return found


def rotation(one: Floats, other: Floats) -> Floats:
    """Angle between the directions of paired rows, in degrees (the paper's Delta theta).

    By the half-angle form: the arc cosine of a product close to 1 would lose half of its digits.
    """
    one, other = units(one), units(other)
    half = np.arctan2(np.linalg.norm(one - other, axis=-1), np.linalg.norm(one + other, axis=-1))
    angles: Floats = np.degrees(2 * half)
    return angles


def cosine(one: Floats, other: Floats) -> Floats:
    """Cosine of paired rows."""
    products: Floats = (units(one) * units(other)).sum(-1)
    return products


def alignment_gain(text: Floats, image: Floats, steering: Floats) -> Floats:
    """cos(v_img+txt, v_steer) - cos(v_txt, v_steer) of paired rows (the paper's alignment gain).

    The steering vector is a positive multiple of the image-conditioned CARD, so that this is 1 - cos(rotation),
    whatever the model does.
    """
    gain: Floats = cosine(image, steering) - cosine(text, steering)
    return gain


def between(vectors: Floats) -> Floats:
    """Angles between all pairs of different rows, in degrees."""
    rows, columns = np.triu_indices(len(vectors), 1)
    unit = units(vectors)
    cosines = np.clip((unit @ unit.T)[rows, columns], -1, 1)
    angles: Floats = np.degrees(np.arccos(cosines))
    return angles


def distinct(vectors: Floats, tolerance: float = 1e-4) -> tuple[Floats, NDArray[np.int64]]:
    """The different rows, and for each row which of these it is.

    One prompt without its picture has one text-only CARD, but for rounding, whatever the number of pictures.

    Args:
        vectors: Unit rows.
        tolerance: Rows closer than this are the same.
    """
    kept: list[Floats] = []
    which = np.zeros(len(vectors), dtype=np.int64)
    for row, vector in enumerate(vectors):
        near = [place for place, other in enumerate(kept) if float(np.linalg.norm(vector - other)) < tolerance]
        which[row] = near[0] if near else len(kept)
        if not near:
            kept.append(vector)
    return np.stack(kept), which


def summary(values: Floats, draws: int = 2000, seed: int = 0) -> dict[str, Any]:
    """Mean with its 95 % bootstrap interval, median, standard deviation, range and number of values."""
    source = np.random.default_rng(seed)
    means = values[source.integers(len(values), size=(draws, len(values)))].mean(1)
    low, high = np.quantile(means, (0.025, 0.975))
    return {
        "n": len(values),
        "mean": float(values.mean()),
        "interval": [float(low), float(high)],
        "median": float(np.median(values)),
        "sd": float(values.std()),
        "range": [float(values.min()), float(values.max())],
    }


def geometry(text: Floats, image: Floats, strength: Floats, seed: int = 0) -> dict[str, Any]:
    """Everything about the turn from the text-only to the image-conditioned CARD.

    Args:
        text: Text-only CARD of each picture's prompt, (pictures, hidden size).
        image: Image-conditioned CARD of each picture, same shape.
        strength: Mean length of each picture's steering vectors, (pictures,).
        seed: Of the intervals.
    """
    turned = rotation(text, image)
    gain = alignment_gain(text, image, strength[:, None] * image)
    others = between(image)
    found: dict[str, Any] = {
        "pictures": len(image),
        "hidden_size": image.shape[1],
        "rotation_degrees": summary(turned, seed=seed) | {"values": turned.tolist()},
        "alignment_gain": summary(gain, seed=seed) | {"values": gain.tolist()},
        "gain_minus_one_minus_cos": float(np.abs(gain - (1 - np.cos(np.radians(turned)))).max()),
        "distinct_text_only": len(distinct(units(text))[0]),
    }
    if len(others):
        found["between_pictures_degrees"] = {
            "pairs": len(others),
            "mean": float(others.mean()),
            "median": float(np.median(others)),
            "values": _thinned(others, seed).tolist(),
        }
        # What all pictures share: their mean direction against the text-only one.
        found["common_rotation_degrees"] = float(rotation(units(text).mean(0), units(image).mean(0)))
    return found


def _thinned(values: Floats, seed: int, most: int = 2000) -> Floats:
    """So many of the values, for a histogram."""
    if len(values) <= most:
        return values
    return np.sort(np.random.default_rng(seed).choice(values, most, replace=False))
