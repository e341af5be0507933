"""Groups of replies that mean the same, for data whose samples name no act.

Agglomerative clustering of sentence embeddings: two groups are merged while the average cosine distance between their
replies is below a threshold. The average, since single links chain unlike replies together and complete ones split
what one act says in unlike words. Replies of two clusters count as different acts, and a false "different" calls a
right reply wrong, so a threshold is as high as it can be before most of the data become one cluster.
`benchmarks/reference_clusters.py` measures both for other thresholds.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hamr.data.language import language_of
from hamr.types import Language

THRESHOLDS: dict[Language, float] = {"en": 0.6, "zh": 0.2}
"""Largest average cosine distance within a cluster. The model has few Chinese characters, so that Chinese sentences are
close to each other."""
MOST = 2000
"""Replies of a language that are clustered; memory grows with the square. Others join their nearest of these."""
_SEED = 37


@dataclass(frozen=True, kw_only=True)
class ReplyClusters:
    """`names`: the cluster of each of `texts`, whose embeddings are `vectors`, (n, d), of unit length."""

    texts: tuple[str, ...]
    names: tuple[str, ...]
    vectors: NDArray[np.float32]

    @classmethod
    def of(cls, texts: Sequence[str], vectors: NDArray[np.float32]) -> ReplyClusters:
        """Cluster different texts, each language by itself. Clusters are numbered as they first appear."""
        found: list[tuple[str, int]] = [("", 0)] * len(texts)
        for language, threshold in THRESHOLDS.items():
            own = [i for i, text in enumerate(texts) if language_of(text) == language]
            for i, label in zip(own, _labels(vectors[own], threshold), strict=True):
                found[i] = (language, label)
        numbers = {key: number for number, key in enumerate(dict.fromkeys(found), start=1)}
        return cls(texts=tuple(texts), names=tuple(f"cluster {numbers[key]}" for key in found), vectors=vectors)

    def nearest(self, vectors: NDArray[np.float32]) -> list[str]:
        """Return the cluster of the known reply that is nearest to each vector, (m, d)."""
        return [self.names[i] for i in np.argmax(vectors @ self.vectors.T, axis=1)]


def _labels(vectors: NDArray[np.float32], threshold: float) -> list[int]:
    if len(vectors) < 2:
        return [0] * len(vectors)
    from sklearn.cluster import AgglomerativeClustering

    drawn = sorted(random.Random(_SEED).sample(range(len(vectors)), min(MOST, len(vectors))))
    clustering = AgglomerativeClustering(
        n_clusters=None, distance_threshold=threshold, metric="cosine", linkage="average"
    )
    labels = clustering.fit_predict(vectors[drawn])
    return [int(label) for label in labels[np.argmax(vectors @ vectors[drawn].T, axis=1)]]
