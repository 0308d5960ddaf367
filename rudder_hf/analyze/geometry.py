"""Directions in the original space: how far the image turns CARD, what follows from that by construction, clusters.

Coordinates of t-SNE are for the eye alone: no statistic is computed from them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..metrics.statistics import Counts, Floats, Metric, interval, share

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
LARGEST_K = 10  # as in the paper
CLOUDS = 5  # without clusters, to compare with
RESTARTS = 4
TSNE_COMPONENTS = 50  # as in the paper
PERPLEXITY = 30.0  # scikit-learn's default
_MEAN = Metric("mean", "mean", share("sum", "count"), None)


# Angles


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


def alignment_gain(text: Floats, image: Floats, steering: Floats) -> Floats:
    """cos(v_img+txt, v_steer) - cos(v_txt, v_steer) of paired rows (the paper's alignment gain).

    The steering vector is a positive multiple of the image-conditioned CARD, so that this is 1 - cos(rotation),
    whatever the model does.
    """
    gain: Floats = ((units(image) - units(text)) * units(steering)).sum(-1)
    return gain


def angles_between(vectors: Floats) -> Floats:
    """Angles between all pairs of different rows, in degrees."""
    unit = units(vectors)
    cosines = np.clip((unit @ unit.T)[np.triu_indices(len(vectors), 1)], -1, 1)
    angles: Floats = np.degrees(np.arccos(cosines))
    return angles


def distinct(vectors: Floats, tolerance: float = 1e-4) -> tuple[Floats, Ints]:
    """The different rows, and for each row which of these it is.

    One prompt without its image has one text-only CARD, but for rounding, whatever the number of images.

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


def mean_interval(values: Floats, draws: int = 2000, seed: int = 0) -> list[float]:
    """The 95 % bootstrap interval of a mean."""
    table = np.stack([values, np.ones_like(values)], axis=1)
    counts = Counts(tuple(map(str, range(len(values)))), ("sum", "count"), table)
    found = interval(counts, [_MEAN], draws, seed)["mean"]
    return [found.low, found.high]


def _summary(values: Floats, seed: int) -> dict[str, Any]:
    return {
        "n": len(values),
        "mean": float(values.mean()),
        "interval": mean_interval(values, seed=seed),
        "median": float(np.median(values)),
        "sd": float(values.std()),
        "range": [float(values.min()), float(values.max())],
        "values": values.tolist(),
    }


def rotation_numbers(text: Floats, image: Floats, strength: Floats, seed: int = 0) -> dict[str, Any]:
    """Everything about the turn from the text-only to the image-conditioned CARD.

    Args:
        text: Text-only CARD of each image's prompt, (images, hidden size).
        image: Image-conditioned CARD of each image, same shape.
        strength: Mean length of each image's steering vectors, (images,).
        seed: Of the intervals.
    """
    turned = rotation(text, image)
    gain = alignment_gain(text, image, strength[:, None] * image)
    others = angles_between(image)
    found: dict[str, Any] = {
        "images": len(image),
        "hidden_size": image.shape[1],
        "rotation_degrees": _summary(turned, seed),
        "alignment_gain": _summary(gain, seed),
        "gain_minus_one_minus_cos": float(np.abs(gain - (1 - np.cos(np.radians(turned)))).max()),
        "distinct_text_only": len(distinct(units(text))[0]),
    }
    if len(others):
        found["between_images_degrees"] = {
            "pairs": len(others),
            "mean": float(others.mean()),
            "median": float(np.median(others)),
            "values": _thinned(others, seed).tolist(),
        }
        # What all images share: their mean direction against the text-only one.
        found["common_rotation_degrees"] = float(rotation(units(text).mean(0), units(image).mean(0)))
    return found


def _thinned(values: Floats, seed: int, most: int = 2000) -> Floats:
    """At most so many of the values, for a histogram."""
    if len(values) <= most:
        return values
    return np.sort(np.random.default_rng(seed).choice(values, most, replace=False))


# Clusters


def rotated(vectors: Floats) -> Floats:
    """The same points in as few coordinates as hold them: centred and turned, all distances as they were."""
    left, lengths, _ = np.linalg.svd(vectors - vectors.mean(0), full_matrices=False)
    points: Floats = left * lengths
    return points


def silhouette(distances: Floats, labels: Ints) -> float:
    """Mean silhouette of labelled points by their distances: 1 far apart, 0 no structure, below 0 mixed up."""
    from sklearn.metrics import silhouette_score

    return float(silhouette_score(distances, labels, metric="precomputed"))


def best_clusters(points: Floats, seed: int = 0) -> tuple[dict[int, float], Ints]:
    """KMeans for K = 2 to 10 (less for few points): the silhouette of each K, and the labels of the best.

    Clusters are numbered from the largest on.

    Raises:
        ValueError: There are fewer than 4 different points.
    """
    from sklearn.cluster import KMeans
    from sklearn.metrics import pairwise_distances

    different = len(np.unique(points.round(9), axis=0))
    if different < 4:
        raise ValueError(f"{different} different points are too few to look for clusters")
    distances = pairwise_distances(points)
    scores: dict[int, float] = {}
    labels: dict[int, Ints] = {}
    for k in range(2, min(LARGEST_K, different - 1) + 1):
        found = KMeans(k, n_init=RESTARTS, random_state=seed).fit_predict(points).astype(np.int64)
        if len(np.unique(found)) >= 2:
            scores[k], labels[k] = silhouette(distances, found), found
    best = max(scores, key=lambda k: (scores[k], -k))
    order = np.argsort(-np.bincount(labels[best]), kind="stable")
    return scores, np.argsort(order)[labels[best]]


def without_clusters(points: Floats, seed: int = 0) -> list[float]:
    """Best silhouettes of normal clouds with the same spread in the same directions: what KMeans finds in no clusters.

    Args:
        points: From `rotated`.
        seed: Of the clouds.
    """
    sources = [np.random.default_rng([seed, number]) for number in range(CLOUDS)]
    clouds = [source.normal(size=points.shape) * points.std(0) for source in sources]
    return [max(best_clusters(cloud, seed)[0].values()) for cloud in clouds]


def cluster_numbers(steering: Floats, by_image: dict[str, Floats], seed: int = 0) -> dict[str, Any]:
    """Clusters of the steering vectors and what their images have in common.

    Args:
        steering: Mean steering vector of each image, (images, hidden size).
        by_image: Statistics to average by cluster, each (images,).
        seed: Of KMeans and of the clouds to compare with.
    """
    points = rotated(steering)
    scores, labels = best_clusters(points, seed)
    found = []
    for number in range(int(labels.max()) + 1):
        inside = labels == number
        parts = {name: values[inside] for name, values in by_image.items()}
        means = {name: {"mean": float(part.mean()), "sd": float(part.std())} for name, part in parts.items()}
        found.append({"cluster": number + 1, "n": int(inside.sum()), **means})
    return {
        "images": len(points),
        "k": len(found),
        "silhouette": max(scores.values()),
        "silhouette_by_k": {str(k): value for k, value in scores.items()},
        "silhouette_without_clusters": without_clusters(points, seed),
        "labels": (labels + 1).tolist(),
        "clusters": found,
    }


def tsne(vectors: Floats, seed: int = 0) -> Floats:
    """PCA and then t-SNE: two coordinates for each row, (rows, 2).

    Raises:
        ValueError: There are too few different rows.
    """
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    different = len(np.unique(vectors.round(9), axis=0))
    if different < 5:
        raise ValueError(f"{different} different vectors are too few for t-SNE")
    reduced = PCA(min(TSNE_COMPONENTS, *vectors.shape), random_state=seed).fit_transform(vectors)
    # The scale of the input does not matter to neighbours, but to the optimiser's start.
    reduced = reduced / max(float(reduced.std()), 1e-30)
    perplexity = min(PERPLEXITY, (len(vectors) - 1) / 3)
    found: Floats = TSNE(2, perplexity=perplexity, init="pca", random_state=seed).fit_transform(reduced).astype(float)
    return found.round(3)
