"""Training order of a mix of sets: a pure function of their sizes, their weights and a seed."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

Place = tuple[int, int]
"""(set, item of it), both counted from 0."""
Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class MixOrder:
    """Order of a mix over epochs.

    A set of n items and weight w is passed w times per epoch. Its items come from consecutive permutations, so that
    none repeats before all others have been used. The epoch ends after about w * n of them (over e epochs exactly
    round(e * w * n)). Within an epoch the sets are shuffled together. The order is stateless: a resumed run requests
    the places after those that it has used.

    >>> order = MixOrder(sizes=(2, 4), weights=(2.0, 0.5), seed=0)
    >>> [len(order.epoch(e)) for e in range(2)]
    [6, 6]
    >>> order.take(4, 4) == (*order.epoch(0)[4:], *order.epoch(1)[:2])
    True
    """

    sizes: tuple[int, ...]
    weights: tuple[float, ...]
    seed: int

    def take(self, start: int, count: int) -> tuple[Place, ...]:
        """Return `count` places from number `start` on, over all epochs. Raise ValueError for an empty mix."""
        if not any(size * weight for size, weight in zip(self.sizes, self.weights, strict=True)):
            raise ValueError(f"a mix of sizes {self.sizes} with weights {self.weights} has no items")
        epoch, before = 0, 0
        while before + self.length(epoch) <= start:
            before += self.length(epoch)
            epoch += 1
        taken: list[Place] = []
        start -= before
        while len(taken) < count:
            taken += self.epoch(epoch)[start : start + count - len(taken)]
            start, epoch = 0, epoch + 1
        return tuple(taken)

    def length(self, epoch: int) -> int:
        return sum(self._until(i, epoch + 1) - self._until(i, epoch) for i in range(len(self.sizes)))

    def total(self, epochs: int) -> int:
        """Return the number of items in `epochs` epochs."""
        return sum(self._until(i, epochs) for i in range(len(self.sizes)))

    def epoch(self, epoch: int) -> tuple[Place, ...]:
        return _epoch(self, epoch)

    def _until(self, which: int, epochs: int) -> int:
        """Return the number of items of set `which` in the first `epochs` epochs."""
        return round(epochs * self.weights[which] * self.sizes[which])


@lru_cache(maxsize=4)
def _epoch(order: MixOrder, epoch: int) -> tuple[Place, ...]:
    places: list[Place] = []
    for which, size in enumerate(order.sizes):
        start, end = order._until(which, epoch), order._until(which, epoch + 1)
        if start == end:
            continue
        for pack in range(start // size, (end - 1) // size + 1):
            dealt = _shuffle(range(size), f"{order.seed}/{which}/{pack}")
            places += [(which, i) for i in dealt[max(start - pack * size, 0) : end - pack * size]]
    return tuple(_shuffle(places, f"{order.seed}/epoch/{epoch}"))


def _shuffle(items: Iterable[Item], seed: str) -> list[Item]:
    mixed = list(items)
    random.Random(seed).shuffle(mixed)
    return mixed


def held_out_dialogues(sets: Sequence[Sequence[str]], frac: float, seed: int) -> set[str]:
    """Return the dialogues to hold out: of each set ceil(frac * number) with the smallest hash, united over all sets.

    The hash depends only on the dialogue, so sets with common dialogues mostly hold out the same ones. A dialogue held
    out for one set is held out for all, so validation data are never trained on in any form.

    >>> len(held_out_dialogues([["a", "b", "a"], ["b", "a"]], 0.5, seed=0))
    1
    """
    held: set[str] = set()
    for dialogues in sets:
        order = sorted(set(dialogues), key=lambda d: hashlib.sha256(f"{seed}/{d}".encode()).digest())
        held.update(order[: math.ceil(frac * len(order))])
    return held
