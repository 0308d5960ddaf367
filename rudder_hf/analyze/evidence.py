"""Does CARD know what is in the image? Evidence that does not follow from how CARD is made.

A linear probe for the objects, nearest neighbours, and silhouettes by category; each beside what chance gives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..metrics.statistics import Floats, percentile_interval
from .detector import auc
from .geometry import Bools, Ints, mean_interval, rotated, silhouette, units

FOLDS = 5
NEIGHBOURS = 5
PERMUTATIONS = 999
PROBE_PERMUTATIONS = 5
CATEGORIES, PER_CATEGORY = 4, 50  # as in the paper's figure
LEAST_OF_CATEGORY = 5


def _against_chance(observed: float, shuffled: Sequence[float]) -> dict[str, Any]:
    """What shuffling gives: mean, 95 % interval, and the p-value of an observation that is larger than most."""
    return {
        "chance": float(np.mean(shuffled)),
        "chance_interval": list(percentile_interval(np.asarray(shuffled))),
        "permutations": len(shuffled),
        "p_value": (1 + sum(value >= observed - 1e-12 for value in shuffled)) / (1 + len(shuffled)),
    }


def object_table(present: Sequence[Sequence[str]]) -> tuple[list[str], Bools]:
    """Names of all objects, and which image has which, (images, objects)."""
    names = sorted({name for row in present for name in row})
    return names, np.asarray([[name in row for name in names] for row in present], dtype=bool)


def probe(cards: Floats, table: Bools, seed: int = 0) -> Floats:
    """AUC on held-out images of a logistic regression for each object, (objects,), averaged over folds."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold

    # At most as many coordinates as images, and nothing changed but their common scale, which the penalty sees.
    points = rotated(cards)
    points = points / (points.std() or 1.0)
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    found = np.empty(table.shape[1])
    for column, label in enumerate(table.T):
        parts = []
        for train, test in folds.split(points, label):
            model = LogisticRegression(C=1.0, max_iter=1000).fit(points[train], label[train])
            parts.append(auc(model.decision_function(points[test]), label[test]))
        found[column] = np.mean(parts)
    return found


def probe_evidence(cards: Floats, text: Floats | None, present: Sequence[Sequence[str]], seed: int) -> dict[str, Any]:
    """The probe on CARD, on the text-only CARD, and on CARDs that were shuffled over the images.

    Raises:
        ValueError: No object is in enough images.
    """
    names, table = object_table(present)
    often = (table.sum(0) >= 2 * FOLDS) & ((~table).sum(0) >= 2 * FOLDS)
    if not often.any():
        raise ValueError(f"no object is in at least {2 * FOLDS} images and missing in as many")
    kept = [name for name, enough in zip(names, often, strict=True) if enough]
    table = table[:, often]
    aucs = probe(cards, table, seed)
    source = np.random.default_rng(seed)
    shuffles = [source.permutation(len(cards)) for _ in range(PROBE_PERMUTATIONS)]
    return {
        "images": len(cards),
        "objects": len(kept),
        "folds": FOLDS,
        "mean_auc": float(aucs.mean()),
        "interval_over_objects": mean_interval(aucs, seed=seed),
        "by_object": [
            {"object": name, "n": int(count), "auc": float(value)}
            for name, count, value in zip(kept, table.sum(0), aucs, strict=True)
        ],
        "shuffled_mean_auc": [float(probe(cards[order], table, seed).mean()) for order in shuffles],
        "text_only_mean_auc": None if text is None else float(probe(text, table, seed).mean()),
    }


def nearest(cards: Floats, count: int = NEIGHBOURS) -> Ints:
    """The nearest other images of each by cosine, (images, count), nearest first; equally near ones by order."""
    unit = units(cards)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -np.inf)
    found: Ints = np.argsort(-cosines, axis=1, kind="stable")[:, :count]
    return found


def shared_objects(table: Bools) -> Floats:
    """Jaccard index of the object sets of all pairs of images; 0 for two empty sets."""
    both = table.astype(float) @ table.T.astype(float)
    counts = table.sum(1)
    either = counts[:, None] + counts[None] - both
    found: Floats = np.divide(both, either, out=np.zeros_like(both), where=either > 0)
    return found


def neighbour_evidence(
    cards: Floats, present: Sequence[Sequence[str]], seed: int, permutations: int = PERMUTATIONS
) -> dict[str, Any]:
    """How alike an image's objects and those of its nearest neighbours are, against any other images.

    Raises:
        ValueError: There are too few images.
    """
    n = len(cards)
    count = min(NEIGHBOURS, n // 4)
    if count < 1:
        raise ValueError(f"{n} images are too few for neighbours")
    overlap = shared_objects(object_table(present)[1])
    near, rows = nearest(cards, count), np.arange(n)[:, None]
    observed = float(overlap[rows, near].mean())
    source = np.random.default_rng(seed)
    orders = (source.permutation(n) for _ in range(permutations))
    shuffled = [float(overlap[order[rows], order[near]].mean()) for order in orders]
    return {
        "images": n,
        "neighbours": count,
        "shared": observed,
        **_against_chance(observed, shuffled),
        "chance": float((overlap.sum() - np.trace(overlap)) / (n * (n - 1))),  # over all pairs: exact
    }


def by_category(
    present: Sequence[Sequence[str]], categories: int = CATEGORIES, most: int = PER_CATEGORY
) -> tuple[list[str], Ints, Ints]:
    """Images that have exactly one of the most frequent objects: the objects, the images, and which has which.

    Raises:
        ValueError: Fewer than two objects have enough such images.
    """
    counted = Counter(name for row in present for name in set(row))
    chosen = sorted(counted, key=lambda name: (-counted[name], name))[:categories]
    places: dict[str, list[int]] = {name: [] for name in chosen}
    for place, row in enumerate(present):
        inside = [name for name in chosen if name in row]
        if len(inside) == 1 and len(places[inside[0]]) < most:
            places[inside[0]].append(place)
    kept = {name: found for name, found in places.items() if len(found) >= LEAST_OF_CATEGORY}
    if len(kept) < 2:
        raise ValueError(
            f"fewer than two objects have {LEAST_OF_CATEGORY} images with them and no other frequent object"
        )
    labels = np.repeat(np.arange(len(kept)), [len(found) for found in kept.values()])
    return list(kept), np.concatenate([np.asarray(found) for found in kept.values()]), labels


def category_evidence(
    cards: Floats, present: Sequence[Sequence[str]], seed: int, permutations: int = PERMUTATIONS
) -> dict[str, Any]:
    """Silhouette of CARD by category, by cosine distance in the original space, against shuffled labels.

    Raises:
        ValueError: There are too few images of different categories.
    """
    names, rows, labels = by_category(present)
    unit = units(cards[rows])
    distances = np.maximum(1 - unit @ unit.T, 0)
    np.fill_diagonal(distances, 0)
    observed = silhouette(distances, labels)
    source = np.random.default_rng(seed)
    shuffled = [silhouette(distances, source.permutation(labels)) for _ in range(permutations)]
    return {
        "categories": names,
        "n": np.bincount(labels).tolist(),
        "silhouette": observed,
        **_against_chance(observed, shuffled),
        "rows": rows.tolist(),
        "labels": labels.tolist(),
    }
