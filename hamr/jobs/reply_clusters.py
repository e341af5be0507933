"""Clusters of references by meaning, as acts of data that name none."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hamr.backends.embedding import EMBEDDING_MODEL, embed
from hamr.backends.models import resolve_model
from hamr.config.schema import Config
from hamr.data.contrasts import replies_of
from hamr.data.sage_acts import SageActs
from hamr.data.splits import Splits
from hamr.errors import BadInput
from hamr.evaluation.reply_clusters import ReplyClusters
from hamr.jobs.child_process import CHILD_ENV, child_process, environment
from hamr.jobs.preparation import load_splits
from hamr.types import ServiceSample

DECLARED = {"act", "cluster"}
"""Keys of `meta` by which a sample says itself what it asks for."""
KILLED = "the process that embeds replies was killed, probably for memory; free some"


def with_reply_clusters(splits: Splits, note: Callable[[str], None]) -> tuple[Splits, ReplyClusters | None]:
    """Return the splits with `meta["reply_clusters"]`, the cluster of each reply, in every sample, and the clusters.

    Where every sample with a reply is generated or names its act or cluster, nothing is done. Where the embedding model
    is missing, a note says so, and every sample counts as an act of its own.
    """
    parts = {"train": splits.train, "validation": splits.validation, "test": splits.test}
    every = [sample for part in parts.values() for sample in part if replies_of(sample)]
    unnamed = sum(SageActs.of(sample) is None and not DECLARED & sample.meta.keys() for sample in every)
    if not unnamed:
        return splits, None
    try:
        resolve_model(EMBEDDING_MODEL)
    except BadInput as error:
        note(f"data: {unnamed} samples name no act, and each counts as an act of its own: {error}")
        return splits, None
    texts = tuple(dict.fromkeys(text for sample in every for text in replies_of(sample)))
    with environment(CHILD_ENV), child_process(KILLED) as call:
        clusters: ReplyClusters = call(_clustered, texts, os.cpu_count() or 1)
    cluster = dict(zip(texts, clusters.names, strict=True))
    note(
        f"data: {unnamed} samples name no act; the meanings of {len(texts)} different replies ({EMBEDDING_MODEL}) make "
        f"{len(set(clusters.names))} clusters, which stand for acts"
    )

    def marked(sample: ServiceSample) -> ServiceSample:
        return replace(sample, meta={**sample.meta, "reply_clusters": [cluster[text] for text in replies_of(sample)]})

    return replace(splits, **{name: tuple(map(marked, part)) for name, part in parts.items()}), clusters


def scorer_splits(config: Config, note: Callable[[str], None]) -> Splits:
    """Return the splits that scorers are trained on and checked with."""
    return with_reply_clusters(load_splits(config.data, config.experiment.seed), note)[0]


def embedded(texts: Sequence[str]) -> NDArray[np.float32]:
    """Return the texts' embeddings, computed by one thread of another process."""
    with environment(CHILD_ENV), child_process(KILLED) as call:
        return call(_embedded, texts, 1)


def _clustered(texts: Sequence[str], threads: int) -> ReplyClusters:
    return ReplyClusters.of(texts, _embedded(texts, threads))


def _embedded(texts: Sequence[str], threads: int) -> NDArray[np.float32]:
    return embed(texts, threads=threads)
