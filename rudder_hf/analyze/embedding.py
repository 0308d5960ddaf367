"""PCA and then t-SNE, for the eye alone: no statistic is computed from these coordinates."""

from __future__ import annotations

import numpy as np

from .geometry import Floats

COMPONENTS = 50  # as in the paper
PERPLEXITY = 30.0  # scikit-learn's default
LEAST = 5


def tsne(vectors: Floats, seed: int = 0) -> Floats:
    """Two coordinates for each row, (rows, 2).

    Raises:
        ValueError: There are too few different rows.
    """
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    different = len(np.unique(vectors.round(9), axis=0))
    if different < LEAST:
        raise ValueError(f"{different} different vectors are too few for t-SNE")
    components = min(COMPONENTS, *vectors.shape)
    # The scale of the input does not matter to neighbours, but to the optimiser's start.
    reduced = PCA(components, random_state=seed).fit_transform(vectors)
    reduced = reduced / max(float(reduced.std()), 1e-30)
    perplexity = min(PERPLEXITY, (len(vectors) - 1) / 3)
    found: Floats = TSNE(2, perplexity=perplexity, init="pca", random_state=seed).fit_transform(reduced).astype(float)
    return found
