"""Does CARD know what is in the picture? Evidence that does not follow from how CARD is made.

A linear probe for the objects, nearest neighbours, and silhouettes by category; each beside what chance gives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .clusters import rotated, silhouette
from .geometry import Floats, units
from .ranks import auc

Bools = NDArray[np.bool_]
FOLDS = 5
NEIGHBOURS = 5
PERMUTATIONS = 999
PROBE_PERMUTATIONS = 5
CATEGORIES, PER_CATEGORY = 4, 50  # as in the paper's figure
LEAST_OF_CATEGORY = 5


def object_table(present: Sequence[Sequence[str]]) -> tuple[list[str], Bools]:
    """Names of all objects, and which picture has which, (pictures, objects)."""
    names = sorted({name for row in present for name in row})
    return names, np.asarray([[name in row for name in names] for row in present], dtype=bool)


# The linear probe


def in_span(train: Floats, test: Floats) -> tuple[Floats, Floats]:
    """Both in coordinates of the training rows' span, at a common scale.

    A linear model with a squared penalty has its solution in that span: nothing that it can use is lost, and
    thousands of dimensions become as many as there are rows.
    """
    middle = train.mean(0)
    _, lengths, axes = np.linalg.svd(train - middle, full_matrices=False)
    axes = axes[lengths > 1e-9 * max(float(lengths.max()), 1e-30)]
    one, two = (train - middle) @ axes.T, (test - middle) @ axes.T
    scale = float(one.std()) if one.size and one.std() > 0 else 1.0
    return one / scale, two / scale


def probe(cards: Floats, table: Bools, seed: int = 0, folds: int = FOLDS) -> Floats:
    """AUC on held-out pictures of a logistic regression for each object, (objects,), averaged over folds."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold

    found = np.empty(table.shape[1])
    empty = np.zeros(len(cards))
    cards = rotated(cards)  # at most as many coordinates as pictures, and nothing else about them changed
    for column in range(table.shape[1]):
        label = table[:, column]
        parts = []
        for train, test in StratifiedKFold(folds, shuffle=True, random_state=seed).split(empty, label):
            one, two = in_span(cards[train], cards[test])
            if not one.shape[1]:
                parts.append(0.5)  # all the same: nothing to tell apart
                continue
            model = LogisticRegression(C=1.0, max_iter=1000).fit(one, label[train])
            parts.append(auc(model.decision_function(two), label[test]))
        found[column] = np.mean(parts)
    return found


def probe_evidence(cards: Floats, text: Floats | None, present: Sequence[Sequence[str]], seed: int) -> dict[str, Any]:
    """The probe on CARD, on the text-only CARD, and on CARDs that were dealt to other pictures.

    Raises:
        ValueError: No object is in enough pictures.
    """
    names, table = object_table(present)
    often = (table.sum(0) >= 2 * FOLDS) & ((~table).sum(0) >= 2 * FOLDS)
    if not often.any():
        raise ValueError(f"no object is in at least {2 * FOLDS} pictures and missing in as many")
    kept = [name for name, enough in zip(names, often, strict=True) if enough]
    table = table[:, often]
    aucs = probe(cards, table, seed)
    source = np.random.default_rng(seed)
    chance = [
        float(probe(cards[source.permutation(len(cards))], table, seed).mean()) for _ in range(PROBE_PERMUTATIONS)
    ]
    low, high = _over_objects(aucs, seed)
    return {
        "pictures": len(cards),
        "objects": len(kept),
        "folds": FOLDS,
        "mean_auc": float(aucs.mean()),
        "interval_over_objects": [low, high],
        "by_object": [
            {"object": name, "n": int(count), "auc": float(value)}
            for name, count, value in zip(kept, table.sum(0), aucs, strict=True)
        ],
        "shuffled_mean_auc": chance,
        "text_only_mean_auc": None if text is None else float(probe(text, table, seed).mean()),
    }


def _over_objects(values: Floats, seed: int, draws: int = 2000) -> tuple[float, float]:
    source = np.random.default_rng(seed)
    means = values[source.integers(len(values), size=(draws, len(values)))].mean(1)
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)


# Nearest neighbours


def nearest(cards: Floats, count: int = NEIGHBOURS) -> NDArray[np.int64]:
    """The nearest other pictures of each by cosine, (pictures, count), nearest first; equally near ones by order."""
    unit = units(cards)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -np.inf)
    found: NDArray[np.int64] = np.argsort(-cosines, axis=1, kind="stable")[:, :count]
    return found


def shared_objects(table: Bools) -> Floats:
    """Jaccard index of the object sets of all pairs of pictures; 0 for two empty sets."""
    both = table.astype(float) @ table.T.astype(float)
    counts = table.sum(1)
    either = counts[:, None] + counts[None] - both
    found: Floats = np.divide(both, either, out=np.zeros_like(both), where=either > 0)
    return found


def neighbour_evidence(
    cards: Floats, present: Sequence[Sequence[str]], seed: int, permutations: int = PERMUTATIONS
) -> dict[str, Any]:
    """How alike a picture's objects and those of its nearest neighbours are, against any other pictures.

    Raises:
        ValueError: There are too few pictures.
    """
    count = min(NEIGHBOURS, len(cards) // 4)
    if count < 1:
        raise ValueError(f"{len(cards)} pictures are too few for neighbours")
    overlap = shared_objects(object_table(present)[1])
    near = nearest(cards, count)
    rows = np.arange(len(cards))[:, None]
    observed = float(overlap[rows, near].mean())
    n = len(cards)
    chance = float((overlap.sum() - np.trace(overlap)) / (n * (n - 1)))
    source = np.random.default_rng(seed)
    dealt = []
    for _ in range(permutations):
        order = source.permutation(n)
        dealt.append(float(overlap[order[rows], order[near]].mean()))
    return {
        "pictures": n,
        "neighbours": count,
        "shared": observed,
        "chance": chance,
        "chance_interval": [float(end) for end in np.quantile(dealt, (0.025, 0.975))],
        "permutations": permutations,
        "p_value": (1 + sum(value >= observed - 1e-12 for value in dealt)) / (1 + permutations),
    }


# Clusters by category


def by_category(
    present: Sequence[Sequence[str]], categories: int = CATEGORIES, most: int = PER_CATEGORY
) -> tuple[list[str], NDArray[np.int64], NDArray[np.int64]]:
    """Pictures that have exactly one of the most frequent objects: the objects, the pictures, and which has which.

    Raises:
        ValueError: Fewer than two objects have enough such pictures.
    """
    counted = Counter(name for row in present for name in set(row))
    chosen = sorted(counted, key=lambda name: (-counted[name], name))[:categories]
    places: dict[str, list[int]] = {name: [] for name in chosen}
    for place, row in enumerate(present):
        inside = [name for name in chosen if name in row]
        if len(inside) == 1 and len(places[inside[0]]) < most:
            places[inside[0]].append(place)
    kept = [name for name in chosen if len(places[name]) >= LEAST_OF_CATEGORY]
    if len(kept) < 2:
        raise ValueError(
            f"fewer than two objects have {LEAST_OF_CATEGORY} pictures with them and no other frequent object"
        )
    rows = np.asarray([place for name in kept for place in places[name]], dtype=np.int64)
    labels = np.asarray([number for number, name in enumerate(kept) for _ in places[name]], dtype=np.int64)
    return kept, rows, labels


def semantic_evidence(
    cards: Floats, present: Sequence[Sequence[str]], seed: int, permutations: int = PERMUTATIONS
) -> dict[str, Any]:
    """Silhouette of CARD by category, by cosine distance in the original space, against dealt labels.

    Raises:
        ValueError: There are too few pictures of different categories.
    """
    names, rows, labels = by_category(present)
    unit = units(cards[rows])
    apart = np.maximum(1 - unit @ unit.T, 0)
    np.fill_diagonal(apart, 0)
    observed = silhouette(apart, labels)
    source = np.random.default_rng(seed)
    dealt = [silhouette(apart, source.permutation(labels)) for _ in range(permutations)]
    return {
        "categories": names,
        "n": [int((labels == number).sum()) for number in range(len(names))],
        "silhouette": observed,
        "chance": float(np.mean(dealt)),
        "chance_interval": [float(end) for end in np.quantile(dealt, (0.025, 0.975))],
        "permutations": permutations,
        "p_value": (1 + sum(value >= observed - 1e-12 for value in dealt)) / (1 + permutations),
        "rows": rows.tolist(),
        "labels": labels.tolist(),
    }
