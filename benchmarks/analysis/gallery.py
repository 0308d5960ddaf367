"""The paper's further figures of CARD, from the folder of a `rudder analyze` on annotated images.

    rudder analyze --limit 500 --batch-size 50 --out analysis
    python benchmarks/analysis/gallery.py analysis --out gallery

Asks what CARD contains of the image, each time beside chance: a linear probe for objects, the objects of nearest
neighbours, silhouettes by category, clusters of KMeans. And asks whether RUDDER's similarity, or the place in the
answer, tells hallucinated mentions from grounded ones. Writes gallery.json and gallery.png. Statistics are of the
original space; t-SNE is for the eye alone. Needs matplotlib and scikit-learn (the extra `test`).
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.manifold import TSNE
from sklearn.metrics import roc_auc_score, silhouette_score
from sklearn.model_selection import StratifiedKFold

from rudder_hf.analyze.report import BLUE, DARK, LIGHT, SKY, new_figure, save_figure, styled
from rudder_hf.analyze.run import units, unpacked
from rudder_hf.analyze.tokens import TracedAnswer, answer_mentions
from rudder_hf.metrics.statistics import percentile_interval
from rudder_hf.runtime.store import Store, to_json

COLOURS = (BLUE, "#E69F00", DARK, SKY)
FOLDS, PROBE_SHUFFLES = 5, 5
NEIGHBOURS = 5
CATEGORIES, PER_CATEGORY, LEAST_OF_CATEGORY = 4, 50, 5
LARGEST_K, CLOUDS = 10, 5
SHUFFLES = 999
DRAWS = 2000

Floats = Any
"""An array of numpy."""


def against_chance(observed: float, shuffled: list[float]) -> dict[str, Any]:
    """An observation beside what shuffling gives, with the p-value of being larger than most."""
    return {
        "observed": observed,
        "chance": float(np.mean(shuffled)),
        "chance_interval": list(percentile_interval(np.asarray(shuffled))),
        "p_value": (1 + sum(value >= observed - 1e-12 for value in shuffled)) / (1 + len(shuffled)),
    }


def probe(cards: Floats, table: Floats, seed: int) -> Floats:
    """AUC on held-out images of a logistic regression for each object (column), averaged over folds."""
    # At most as many coordinates as images; distances stay, and the common scale is what the penalty sees.
    left, lengths, _ = np.linalg.svd(cards - cards.mean(0), full_matrices=False)
    points = left * lengths
    points = points / (points.std() or 1.0)
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    found = []
    for label in table.T:
        parts = []
        for train, test in folds.split(points, label):
            model = LogisticRegression(max_iter=1000).fit(points[train], label[train])
            parts.append(roc_auc_score(label[test], model.decision_function(points[test])))
        found.append(float(np.mean(parts)))
    return np.asarray(found)


def probe_numbers(cards: Floats, present: list[list[str]], seed: int) -> dict[str, Any] | None:
    """The probe on CARD and on CARDs shuffled over the images; None if no object is in enough images."""
    counted = Counter(name for row in present for name in row)
    least = 2 * FOLDS
    names = sorted(name for name, count in counted.items() if least <= count <= len(cards) - least)
    if not names:
        return None
    table = np.asarray([[name in row for name in names] for row in present])
    aucs = probe(cards, table, seed)
    source = np.random.default_rng(seed)
    shuffled = [float(probe(source.permutation(cards), table, seed).mean()) for _ in range(PROBE_SHUFFLES)]
    by_object = [
        {"object": name, "n": int(count), "auc": float(value)}
        for name, count, value in zip(names, table.sum(0), aucs, strict=True)
    ]
    return {"mean_auc": float(aucs.mean()), "shuffled_mean_auc": shuffled, "by_object": by_object}


def neighbour_numbers(cards: Floats, present: list[list[str]], seed: int) -> dict[str, Any] | None:
    """The share of objects (Jaccard index) that an image has in common with its nearest images by CARD."""
    count, unit = min(NEIGHBOURS, len(cards) // 4), units(cards)
    if not count:
        return None
    overlap = np.asarray([[len(a & b) / (len(a | b) or 1) for b in map(set, present)] for a in map(set, present)])
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -np.inf)
    near, rows = np.argsort(-cosines, axis=1, kind="stable")[:, :count], np.arange(len(cards))[:, None]
    source = np.random.default_rng(seed)
    orders = [source.permutation(len(cards)) for _ in range(SHUFFLES)]
    shuffled = [float(overlap[order[rows], order[near]].mean()) for order in orders]
    return {"neighbours": count, **against_chance(float(overlap[rows, near].mean()), shuffled)}


def category_numbers(cards: Floats, present: list[list[str]], seed: int) -> dict[str, Any] | None:
    """The silhouette of images with exactly one of the most frequent objects, by the cosine of their CARDs."""
    counted = Counter(name for row in present for name in row)
    frequent = sorted(counted, key=lambda name: (-counted[name], name))[:CATEGORIES]
    only = [[name for name in frequent if name in row] for row in present]
    places = {name: [at for at, row in enumerate(only) if row == [name]][:PER_CATEGORY] for name in frequent}
    places = {name: found for name, found in places.items() if len(found) >= LEAST_OF_CATEGORY}
    if len(places) < 2:
        return None
    rows = np.concatenate(list(places.values()))
    labels = np.repeat(np.arange(len(places)), [len(found) for found in places.values()])
    unit = units(cards[rows])
    distances = np.maximum(1 - unit @ unit.T, 0)
    np.fill_diagonal(distances, 0)
    source = np.random.default_rng(seed)
    orders = [source.permutation(labels) for _ in range(SHUFFLES)]
    observed, *shuffled = (
        float(silhouette_score(distances, order, metric="precomputed")) for order in (labels, *orders)
    )
    reduced = PCA(min(50, *unit.shape), random_state=seed).fit_transform(cards[rows])
    perplexity = min(30.0, (len(rows) - 1) / 3)
    points = TSNE(2, perplexity=perplexity, init="pca", random_state=seed).fit_transform(reduced / reduced.std())
    marked = {"categories": list(places), "labels": labels.tolist(), "map": points.round(3).tolist()}
    return {**marked, **against_chance(observed, shuffled)}


def cluster_numbers(cards: Floats, seed: int) -> dict[str, Any] | None:
    """Silhouettes of KMeans over K, beside the best in normal clouds of the same spread, which have no clusters."""
    left, lengths, _ = np.linalg.svd(cards - cards.mean(0), full_matrices=False)
    points = left * lengths
    ks = range(2, min(LARGEST_K, len(points) - 2) + 1)

    def silhouettes(places: Floats) -> dict[int, float]:
        labels = {k: KMeans(k, n_init=4, random_state=seed).fit_predict(places) for k in ks}
        return {k: float(silhouette_score(places, found)) for k, found in labels.items()}

    if not ks:
        return None
    sources = [np.random.default_rng([seed, number]) for number in range(CLOUDS)]
    clouds = [max(silhouettes(source.normal(size=points.shape) * points.std(0)).values()) for source in sources]
    found = silhouettes(points)
    return {"silhouettes": found, "k": max(found, key=lambda k: found[k]), "without_clusters": clouds}


def detector_numbers(answers: list[dict[str, Any]], present: list[list[str]], seed: int) -> dict[str, Any] | None:
    """AUC of telling grounded from hallucinated mentions, with intervals over images, for each score."""
    rows: list[tuple[int, bool, float, float]] = []
    for image, (stored, inside) in enumerate(zip(answers, present, strict=True)):
        answer = TracedAnswer(**stored)
        for mention in answer_mentions(answer, inside):
            similarity = float(np.asarray(answer.trace["similarity"])[mention.tokens].mean())
            rows.append((image, not mention.absent, similarity, -float(mention.tokens[0])))
    images, grounded = (np.asarray([row[at] for row in rows]) for at in (0, 1))
    if grounded.all() or not grounded.any():
        return None
    source = np.random.default_rng(seed)
    by_image = [np.flatnonzero(images == image) for image in range(len(answers))]
    draws = [
        np.concatenate([by_image[i] for i in source.integers(0, len(answers), len(answers))]) for _ in range(DRAWS)
    ]
    draws = [drawn for drawn in draws if 0 < grounded[drawn].sum() < len(drawn)]
    found: dict[str, Any] = {"grounded": int(grounded.sum()), "hallucinated": int((~grounded).sum()), "auc": {}}
    for at, name in enumerate(("similarity", "place in the answer"), start=2):
        values = np.asarray([row[at] for row in rows])
        drawn = np.asarray([roc_auc_score(grounded[places], values[places]) for places in draws])
        found["auc"][name] = [float(roc_auc_score(grounded, values)), *percentile_interval(drawn)]
    return found


def gather_numbers(folder: Path, seed: int) -> dict[str, Any]:
    """All numbers of the gallery; what there are too few images for is None.

    Raises:
        SystemExit: The folder holds no finished analysis of annotated images.
    """
    path = folder / "numbers.json"
    numbers = json.loads(path.read_text()) if path.exists() else {}
    if "present" not in numbers:
        raise SystemExit(f"{folder} holds no finished `rudder analyze` of annotated images; run one of these first.")
    stored = {row["sample"]: row for batch in Store(folder, "analyze").batches() for row in batch["answers"]}
    present = list(numbers["present"].values())
    traces = [stored[sample] for sample in numbers["present"]]
    cards = unpacked(row["card"] for row in traces)
    return {
        "analysis": {name: numbers[name] for name in ("model", "settings", "data", "images", "versions")},
        "probe": probe_numbers(cards, present, seed),
        "neighbours": neighbour_numbers(cards, present, seed),
        "categories": category_numbers(cards, present, seed),
        "clusters": cluster_numbers(cards, seed),
        "detector": detector_numbers([row["vanilla"] for row in traces], present, seed),
    }


def draw(numbers: dict[str, Any]) -> Any:
    """One figure with a panel for each kind of evidence; a panel without numbers stays empty."""
    figure, (probed, near, mapped, clustered, detected, _) = new_figure(13.0, 8.0, 2, 3)
    if found := numbers["probe"]:
        probed.hist([row["auc"] for row in found["by_object"]], 15, color=BLUE)
        probed.axvline(float(np.mean(found["shuffled_mean_auc"])), color=DARK, linestyle="--")
        probed.set(xlabel="AUC on held-out images (dashed: shuffled)", ylabel="number of objects")
        probed.set_title(f"Linear probe for {len(found['by_object'])} objects, mean {found['mean_auc']:.2f}")
    if found := numbers["neighbours"]:
        near.bar(["nearest by CARD", "shuffled"], [found["observed"], found["chance"]], color=[BLUE, LIGHT])
        near.set(ylabel="objects in common (Jaccard index)", title=f"Neighbours, p = {found['p_value']:.3f}")
    if found := numbers["categories"]:
        points, labels = np.asarray(found["map"]), np.asarray(found["labels"])
        for place, name in enumerate(found["categories"]):
            mapped.scatter(*points[labels == place].T, s=18, marker="os^D"[place], color=COLOURS[place], label=name)
        low, high = found["chance_interval"]
        mapped.legend()
        mapped.set(xticks=[], yticks=[], xlabel="t-SNE (no unit)")
        mapped.set_title(f"By category: silhouette {found['observed']:.2f} (chance {low:.2f} to {high:.2f})")
    if found := numbers["clusters"]:
        clustered.plot(list(found["silhouettes"]), list(found["silhouettes"].values()), "o-", color=BLUE)
        clustered.axhspan(min(found["without_clusters"]), max(found["without_clusters"]), color=LIGHT)
        clustered.set(xlabel="K (grey: clouds without clusters)", ylabel="silhouette", title="KMeans")
    if found := numbers["detector"]:
        for place, (value, low, high) in enumerate(found["auc"].values()):
            detected.plot([low, high], [place, place], color="#8A8A8A", linewidth=3)
            detected.plot(value, place, "o", color=BLUE)
        detected.axvline(0.5, color=DARK, linestyle="--")
        detected.set_yticks(range(len(found["auc"])), list(found["auc"]))
        detected.set(xlabel="AUC, 95 % intervals over images", title="Hallucinated mentions")
    for axes in figure.axes:
        axes.set_visible(axes.has_data())
    return figure


def main() -> None:
    """Read the analysis, write gallery.json and gallery.png."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("analysis", type=Path, help="folder of a finished rudder analyze")
    parser.add_argument("--out", type=Path, required=True, help="folder for gallery.json and gallery.png")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    numbers = gather_numbers(given.analysis, given.seed)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "gallery.json").write_text(to_json(numbers))
    with styled():
        save_figure(draw(numbers), given.out / "gallery")
    missing = [name for name, found in numbers.items() if found is None]
    print(f"Written to {given.out}." + (f" Too few images for: {', '.join(missing)}." if missing else ""))


if __name__ == "__main__":
    main()
