"""The order of a mix: weighted epochs, reproducible by seed and resumable at any position."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hamr.data.sft_mix import MixOrder, held_out_dialogues

orders = st.lists(st.tuples(st.integers(0, 7), st.sampled_from([0.0, 0.3, 0.5, 1.0, 1.7, 2.0])), min_size=1, max_size=3)


def mix(rows: list[tuple[int, float]], seed: int = 0) -> MixOrder:
    return MixOrder(sizes=tuple(size for size, _ in rows), weights=tuple(weight for _, weight in rows), seed=seed)


def test_weights_set_the_repetitions_per_epoch() -> None:
    order = mix([(3, 1.0), (2, 2.0), (4, 0.5), (5, 0.0)])
    first, second = Counter(order.epoch(0)), Counter(order.epoch(1))
    assert {place: n for place, n in first.items() if place[0] == 0} == {(0, 0): 1, (0, 1): 1, (0, 2): 1}
    assert {place: n for place, n in first.items() if place[0] == 1} == {(1, 0): 2, (1, 1): 2}
    halves = [{item for which, item in epoch if which == 2} for epoch in (first, second)]
    assert [len(half) for half in halves] == [2, 2] and halves[0] | halves[1] == {0, 1, 2, 3}
    assert not any(which == 3 for which, _ in first + second)
    assert order.total(2) == first.total() + second.total() == 18


@given(orders, st.integers(1, 5))
def test_no_item_repeats_before_all_others_of_its_set(rows: list[tuple[int, float]], epochs: int) -> None:
    order = mix(rows)
    seen = Counter(place for e in range(epochs) for place in order.epoch(e))
    assert seen.total() == order.total(epochs)
    for which, (size, weight) in enumerate(rows):
        counts = [seen[which, item] for item in range(size)]
        assert sum(counts) == round(epochs * weight * size)
        assert not counts or max(counts) - min(counts) <= 1


@given(orders, st.integers(0, 40), st.integers(1, 40))
def test_positions_can_be_taken_from_any_start(rows: list[tuple[int, float]], start: int, count: int) -> None:
    order = mix(rows)
    if not any(size * weight >= 1 for size, weight in rows):
        return
    whole = order.take(0, start + count)
    assert order.take(start, count) == whole[start:]
    assert mix(rows).take(start, count) == whole[start:], "the same in another process"


def test_sets_are_shuffled_jointly_and_epochs_separately() -> None:
    order = mix([(20, 1.0), (20, 1.0)])
    first = order.epoch(0)
    assert {which for which, _ in first[:10]} == {0, 1}
    assert first != order.epoch(1) and sorted(first) == sorted(order.epoch(1))
    assert first != mix([(20, 1.0), (20, 1.0)], seed=1).epoch(0)


def test_empty_mix_raises_an_error() -> None:
    with pytest.raises(ValueError, match="no items"):
        mix([(4, 0.0), (0, 1.0)]).take(0, 1)


def test_held_out_dialogues_are_the_same_ones_in_every_set() -> None:
    names = [f"d{i}" for i in range(40)]
    alone = held_out_dialogues([names], 0.25, seed=0)
    assert len(alone) == 10
    assert held_out_dialogues([names, names[::-1], names * 2], 0.25, seed=0) == alone
    assert held_out_dialogues([names], 0.25, seed=1) != alone
    assert held_out_dialogues([names], 0.0, seed=0) == set()


def test_a_small_set_holds_out_one_dialogue_at_least() -> None:
    assert len(held_out_dialogues([["a", "b", "c"], []], 0.01, seed=0)) == 1
