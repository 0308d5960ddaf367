"""KMeans on the steering vectors, silhouettes in the original space, and what would be found without clusters."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .geometry import Floats

MOST = 10  # largest K, as in the paper
REFERENCES = 5  # clouds without clusters to compare with
RESTARTS = 4


def rotated(vectors: Floats) -> Floats:
    """The same points in as few coordinates as hold them: centred and turned, all distances as they were."""
    centred = vectors - vectors.mean(0)
    left, lengths, _ = np.linalg.svd(centred, full_matrices=False)
    points: Floats = left * lengths
    return points


def silhouette(distances: Floats, labels: NDArray[np.int64]) -> float:
    """Mean silhouette of labelled points by their distances: 1 far apart, 0 no structure, below 0 mixed up."""
    from sklearn.metrics import silhouette_score

    return float(silhouette_score(distances, labels, metric="precomputed"))


def distances(points: Floats) -> Floats:
    """Euclidean distances between rows."""
    squares = (points**2).sum(1)
    found: Floats = np.sqrt(np.maximum(squares[:, None] + squares[None] - 2 * points @ points.T, 0))
    np.fill_diagonal(found, 0)
    return found


def best_clusters(points: Floats, seed: int = 0) -> tuple[dict[int, float], NDArray[np.int64]]:
    """KMeans for K = 2 to 10 (less for few points): the silhouette of each K, and the labels of the best.

    Clusters are numbered from the largest on.

    Raises:
        ValueError: There are fewer than 4 different points.
    """
    from sklearn.cluster import KMeans

    different = len(np.unique(points.round(9), axis=0))
    if different < 4:
        raise ValueError(f"{different} different points are too few to look for clusters")
    apart = distances(points)
    scores: dict[int, float] = {}
    labels: dict[int, NDArray[np.int64]] = {}
    for k in range(2, min(MOST, different - 1) + 1):
        found = KMeans(k, n_init=RESTARTS, random_state=seed).fit_predict(points).astype(np.int64)
        if len(np.unique(found)) < 2:
            continue
        scores[k], labels[k] = silhouette(apart, found), found
    best = max(scores, key=lambda k: (scores[k], -k))
    order = np.argsort(-np.bincount(labels[best]), kind="stable")
    return scores, np.argsort(order)[labels[best]]


def without_clusters(points: Floats, seed: int = 0, references: int = REFERENCES) -> list[float]:
    """Best silhouettes of normal clouds with the same spread in the same directions: what KMeans finds in no clusters.

    Args:
        points: From `rotated`.
        seed: Of the clouds.
        references: How many.
    """
    spread = points.std(0)
    found = []
    for number in range(references):
        cloud = np.random.default_rng([seed, number]).normal(size=points.shape) * spread
        found.append(max(best_clusters(cloud, seed)[0].values()))
    return found


def clusters(
    steering: Floats, card: Floats, by_picture: dict[str, Floats], present: list[list[str]] | None, seed: int = 0
) -> dict[str, Any]:
    """Clusters of the steering vectors and what their pictures have in common.

    Args:
        steering: Mean steering vector of each picture, (pictures, hidden size).
        card: CARD of each picture, same shape.
        by_picture: Statistics to average by cluster, each (pictures,).
        present: Objects in each picture, if they are known.
        seed: Of KMeans and of the clouds to compare with.
    """
    points = rotated(steering)
    scores, labels = best_clusters(points, seed)
    card_scores, _ = best_clusters(rotated(card), seed)
    found = []
    for number in range(int(labels.max()) + 1):
        inside = labels == number
        entry: dict[str, Any] = {"cluster": number + 1, "n": int(inside.sum())}
        for name, values in by_picture.items():
            entry[name] = {"mean": float(values[inside].mean()), "sd": float(values[inside].std())}
        if present is not None:
            entry["typical_objects"] = typical(present, inside)
        found.append(entry)
    return {
        "pictures": len(points),
        "k": int(labels.max()) + 1,
        "silhouette": max(scores.values()),
        "silhouette_by_k": {str(k): value for k, value in scores.items()},
        "silhouette_without_clusters": without_clusters(points, seed),
        "card_silhouette": max(card_scores.values()),
        "card_silhouette_by_k": {str(k): value for k, value in card_scores.items()},
        "labels": (labels + 1).tolist(),
        "clusters": found,
    }


def typical(present: list[list[str]], inside: NDArray[np.bool_], count: int = 3) -> list[dict[str, Any]]:
    """Objects whose share within a cluster most exceeds their share among all pictures."""
    names = sorted({name for names in present for name in names})
    table = np.asarray([[name in row for name in names] for row in present], dtype=bool)
    within, overall = table[inside].mean(0), table.mean(0)
    order = np.argsort(-(within - overall), kind="stable")[:count]
    return [
        {"object": names[i], "share": float(within[i]), "share_of_all": float(overall[i])}
        for i in order
        if within[i] > overall[i]
    ]
