"""Clusters of references by meaning, with the real embedding model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hamr.apps.shared import reply_clusters
from hamr.apps.shared.reply_clusters import with_reply_clusters
from hamr.config.schema import SageDataConfig
from hamr.data.contrasts import contrasts, replies_of
from hamr.data.sage_samples import generate_samples
from hamr.data.splits import Splits


def without_acts(splits: Splits) -> Splits:
    def bare(samples):
        return tuple(replace(sample, meta={}) for sample in samples)

    return Splits(train=bare(splits.train), validation=bare(splits.validation), test=bare(splits.test))


def test_clusters_replace_missing_acts() -> None:
    notes: list[str] = []
    named = generate_samples(SageDataConfig(train=120, validation=20, test=40))
    splits, clusters = with_reply_clusters(without_acts(named), notes.append)
    assert clusters is not None and len(notes) == 1 and "clusters, which stand for acts" in notes[0]
    act = {s.id: s.meta["act"] for s in (*named.train, *named.validation, *named.test)}
    of_name: dict[str, set[str]] = {}
    for sample in (*splits.train, *splits.validation, *splits.test):
        for name in sample.meta["reply_clusters"]:
            of_name.setdefault(name, set()).add(act[sample.id])
        assert len(sample.meta["reply_clusters"]) == len(replies_of(sample))
    assert len(of_name) >= 4 and all(len(acts) == 1 for acts in of_name.values()), "no cluster has two acts"
    by_text = {text: act[s.id] for s in splits.train for text in replies_of(s)}
    drawn = [
        (by_text[c.reference], by_text[w.text])
        for c in contrasts(splits.train, 200, 0)
        for w in c.wrong
        if w.kind == "act"
    ]
    assert sum(due == other for due, other in drawn) / len(drawn) < 0.15


def test_data_with_acts_need_no_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply_clusters, "child_process", lambda killed: pytest.fail("embeddings were asked for"))
    splits = generate_samples(SageDataConfig(train=40, validation=10, test=10))
    assert with_reply_clusters(splits, pytest.fail) == (splits, None)


def test_samples_stay_unclustered_without_the_embedding_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hamr.models.bundled.MINILM_MODULE", "no_such_module")
    notes: list[str] = []
    splits = without_acts(generate_samples(SageDataConfig(train=40, validation=10, test=10)))
    assert with_reply_clusters(splits, notes.append) == (splits, None)
    assert len(notes) == 1 and "pip install" in notes[0]
