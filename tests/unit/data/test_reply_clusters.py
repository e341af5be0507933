from __future__ import annotations

import numpy as np

from hamr.data import reply_clusters
from hamr.data.reply_clusters import ReplyClusters


def directions(*degrees: float) -> np.ndarray:
    angles = np.radians(degrees)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def test_near_replies_share_a_cluster_and_distant_ones_do_not() -> None:
    """Cosine distances: 0.06 within a pair, 1 between the pairs."""
    found = ReplyClusters.of(["Your name?", "Goodbye!", "Who are you?", "Bye."], directions(0, 90, 20, 110))
    assert found.names == ("cluster 1", "cluster 2", "cluster 1", "cluster 2")
    assert found.nearest(directions(5, 170)) == ["cluster 1", "cluster 2"]


def test_chain_of_neighbours_is_split_into_clusters() -> None:
    """Each reply is at a cosine distance of 0.23 from the next, and the ends are opposites."""
    found = ReplyClusters.of([f"Reply {i}." for i in range(5)], directions(0, 45, 80, 120, 180))
    assert found.names[0] != found.names[-1]


def test_languages_are_clustered_separately_with_own_thresholds() -> None:
    """At a cosine distance of 0.4, English replies share a cluster and Chinese ones do not."""
    found = ReplyClusters.of(["Yes.", "Sure.", "好的。", "不行。"], directions(0, 53, 0, 53))
    assert found.names == ("cluster 1", "cluster 1", "cluster 2", "cluster 3")


def test_replies_over_the_limit_join_the_nearest_cluster(monkeypatch) -> None:
    monkeypatch.setattr(reply_clusters, "MOST", 8)
    texts = [f"Reply {i}." for i in range(40)]
    found = ReplyClusters.of(texts, directions(*(90 * (i % 2) + i / 10 for i in range(40))))
    assert len(set(found.names[::2])) == len(set(found.names[1::2])) == 1
    assert found.names[0] != found.names[1]


def test_one_reply_is_one_cluster() -> None:
    assert ReplyClusters.of(["Yes."], directions(0)).names == ("cluster 1",)
