"""Customers of paths on which the policy fails come up more often, also after a resumption."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hamr.data.curriculum import FLOOR, LEVEL, Curriculum, customer_path
from hamr.types import ServiceSample
from tests.unit.data.test_stream import samples as plain


def samples(n: int) -> list[ServiceSample]:
    """Return samples on two paths in turn."""
    cases = [{"path": ["stage1", f"stage{2 + i % 2}"], "action": "Refund"} for i in range(n)]
    return [
        replace(s, privileged={"case": case}, meta={"scenario": "shop"})
        for s, case in zip(plain(n), cases, strict=True)
    ]


def test_failed_paths_come_up_more_often() -> None:
    stream = Curriculum(samples(40), seed=0)
    easy, hard = dict.fromkeys(map(customer_path, stream.take(40)))
    assert set(stream.weights.values()) == {1.0}
    for sample in samples(40):
        stream.learn(sample, float(customer_path(sample) == easy))
    assert stream.weights == {easy: FLOOR, hard: 1.0}
    drawn = Counter(map(customer_path, stream.take(400)))
    assert 0.05 < drawn[easy] / 400 < 0.15


def test_customers_of_a_path_take_turns() -> None:
    drawn = Counter(s.id for s in Curriculum(samples(10), seed=1).take(200))
    of_path = [drawn[f"s{i}"] for i in range(0, 10, 2)]
    assert max(of_path) - min(of_path) <= 1


def test_resumed_curriculum_continues_exactly() -> None:
    first = Curriculum(samples(20), seed=3)
    for sample in first.take(9):
        first.learn(sample, 0.75)
    resumed = Curriculum(samples(20), seed=3, state=first.state())
    assert resumed.weights == first.weights
    assert [s.id for s in resumed.take(30)] == [s.id for s in first.take(30)]


def test_levels_of_a_path_have_their_own_scores() -> None:
    customers = [
        replace(s, meta={**s.meta, LEVEL: "weak" if i % 4 < 2 else "strong"}) for i, s in enumerate(samples(8))
    ]
    stream = Curriculum(customers, seed=0)
    for sample in customers:
        stream.learn(sample, float(sample.meta[LEVEL] == "weak"))
    assert len(stream.weights) == 4
    assert all(weight == (FLOOR if path.endswith("/weak") else 1.0) for path, weight in stream.weights.items())
