"""Selection of the cascades to evaluate exactly: the second stage of the calibration search (Eq. 5).

The grid gives the approximate rho of every cascade. The promising ones, over the whole range of judge calls, are then
sorted and ranked exactly. Hill climbing from the best ones follows in steps of one cut and one hundredth. If the tried
cuts are quantiles, a second climb continues over all distinct scores.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np

from hamr.calibration.cascade import Cascade
from hamr.calibration.grid import WEIGHT_STEPS, Grid
from hamr.calibration.ranks import Floats, Ints, Target

Candidate: TypeAlias = tuple[int, int, int, int]
"""(cut a, cut b, step of w1, step of w2)"""

MOST_CUTS = 200
SAME = 1e-9
"""Correlations closer than this count as equal. Fewer judge calls then win."""
_COARSE = 5
_PER_SHARE = 4
_FEWEST_CHOICES, _MOST_CHOICES, _ROWS_RANKED = 1, 16, 20_000
"""Number of weights ranked exactly for a pair of cuts. Higher with few rows, where ranking is less precise and
cheaper. With more than `_ROWS_RANKED` rows the second climb is left out: quantiles are then close to each other."""
_STRIDES = (1, 2, 4, 8)
"""Steps of the second climb, in cuts and hundredths."""


@dataclass(frozen=True, kw_only=True)
class CascadePoint:
    """A cascade with its rho (NaN if R is constant) and its share of judged rows on the fitting set."""

    cascade: Cascade
    spearman: float
    escalated_frac: float


@dataclass(frozen=True, eq=False)
class Effort:
    """Extent of the search.

    `pairs`: number of pairs of cuts evaluated closely. `shares`: number of ranges of the escalated share, each of which
    gets a few more pairs. `climbs`: number of starts, with at most `steps` evaluations each.
    """

    pairs: int = 96
    shares: int = 32
    climbs: int = 4
    steps: int = 60


@dataclass(frozen=True, eq=False)
class FittingSet:
    """Validated triples, and the cuts of S_R that the search tries: all distinct ones, or quantiles of them."""

    s_r: Floats
    s_j: Floats
    y: Floats
    most_cuts: int = MOST_CUTS
    also: tuple[Cascade, ...] = ()
    """Cascades whose cuts are always among those tried."""
    over: Floats | None = None
    """Score that the interval is over, where it is not S_R."""

    @property
    def key(self) -> Floats:
        """Score [n] that the trust interval is over."""
        return self.s_r if self.over is None else self.over

    @cached_property
    def target(self) -> Target:
        """Ranks of the labels y, computed once."""
        return Target.of(self.y)

    @cached_property
    def _distinct(self) -> tuple[Floats, Ints, Ints]:
        """(distinct keys, rows before each of them and n, index of the distinct value of each row)"""
        values, which, sizes = np.unique(self.key, return_inverse=True, return_counts=True)
        return values, np.concatenate([[0], np.cumsum(sizes)]), which

    @cached_property
    def places(self) -> Ints:
        """Cuts, as numbers of distinct scores before them, including 0 and the total."""
        values, rows, _ = self._distinct
        m = values.size
        if m <= self.most_cuts:
            chosen = np.arange(m + 1)
        else:
            # A cluster of equal scores counts as one step: it is one cut, and would otherwise displace many others.
            steps = np.cumsum(np.minimum(np.diff(rows), self.s_r.size / self.most_cuts))
            chosen = np.searchsorted(steps, np.linspace(0, steps[-1], self.most_cuts))
        own = [np.searchsorted(values, c.tau_a, side="left") for c in self.also]
        own += [np.searchsorted(values, c.tau_b, side="right") for c in self.also]
        return np.unique(np.concatenate([chosen, np.array(own, dtype=np.int64), [0, m]]))

    @cached_property
    def rows(self) -> Ints:
        """Number of rows before each cut."""
        return self._distinct[1][self.places]

    @cached_property
    def before(self) -> Ints:
        """Number of rows with a lower key, for every row."""
        _, rows, which = self._distinct
        return rows[which]

    @cached_property
    def escalated_share(self) -> Floats:
        """Share of rows outside the interval, (cut a, cut b)."""
        return (self.rows[:, None] + self.s_r.size - self.rows[None, :]) / self.s_r.size

    def cuts_of(self, cascade: Cascade) -> tuple[int, int]:
        """Return the cuts of the interval of a cascade. They are certain to be among those tried only for a cascade in
        `also`."""
        first = np.searchsorted(self._distinct[0], cascade.tau_a, side="left")
        last = np.searchsorted(self._distinct[0], cascade.tau_b, side="right")
        return int(np.searchsorted(self.places, first)), int(np.searchsorted(self.places, last))

    def taus(self, a: int, b: int) -> tuple[float, float] | None:
        """Return an interval with these bands: between the scores if possible, else exactly at one (both ends are
        inside).

        None if no interval has them: an empty one needs a number between two scores.
        """
        values = self._distinct[0]
        first, last = int(self.places[a]), int(self.places[b])
        if first == last:
            tau = self._between(first)
            return None if tau is None else (tau, tau)
        low = 0.0 if first == 0 else self._between(first)
        high = 1.0 if last == values.size else self._between(last)
        return float(values[first]) if low is None else low, float(values[last - 1]) if high is None else high

    def _between(self, place: int) -> float | None:
        """Return a short number between the last score before the cut and the first after it."""
        values = self._distinct[0]
        low = float(values[place - 1]) if place else 0.0
        high = float(values[place]) if place < values.size else 1.0
        middle = low + (high - low) / 2
        found = (x for digits in range(2, 17) if low < (x := round(middle, digits)) < high)
        inside = next(found, middle if low < middle < high else None)
        if inside is not None or low == high:
            return inside
        # Beyond the outermost scores, use the end of the scale.
        return 0.0 if place == 0 else 1.0 if place == values.size else None

    def evaluate(self, cascade: Cascade) -> CascadePoint:
        """Return the exact rho and share of judge calls of the cascade."""
        asked = (self.key < cascade.tau_a) | (self.key > cascade.tau_b)
        return CascadePoint(
            cascade=cascade,
            spearman=self.target.spearman(mix_scores(cascade, self.s_r, self.s_j, self.key)),
            escalated_frac=float(np.count_nonzero(asked) / self.s_r.size),
        )


def mix_scores(cascade: Cascade, s_r: Floats, s_j: Floats, key: Floats | None = None) -> Floats:
    """Return R of every row (Eq. 4), bitwise equal to `Cascade.mix`. `key`: the score that the interval is over."""
    key = s_r if key is None else key
    below, above = key < cascade.tau_a, key > cascade.tau_b
    weight = np.where(below, cascade.w1, cascade.w2)
    return np.where(below | above, weight * s_r + (1.0 - weight) * s_j, s_r)


@dataclass(eq=False)
class _Exact:
    """Exact points, each candidate once."""

    data: FittingSet
    known: dict[Candidate, CascadePoint | None] = field(default_factory=dict)

    def point(self, candidate: Candidate) -> CascadePoint | None:
        """Return None for a candidate without an interval or with a constant R."""
        candidate = self._plain(candidate)
        if candidate not in self.known:
            a, b, w1, w2 = candidate
            taus = self.data.taus(a, b)
            point = None
            if taus is not None:
                point = self.data.evaluate(Cascade(*taus, w1 / WEIGHT_STEPS, w2 / WEIGHT_STEPS))
            self.known[candidate] = None if point is None or np.isnan(point.spearman) else point
        return self.known[candidate]

    def _plain(self, candidate: Candidate) -> Candidate:
        """Return the canonical candidate. The weight of an empty band has no effect: use the other's, or trust the
        reranker."""
        a, b, w1, w2 = candidate
        last = self.data.places.size - 1
        if a == 0:
            w1 = w2 if b < last else WEIGHT_STEPS
        return (a, b, w1, w1 if b == last else w2)


def search(data: FittingSet, effort: Effort, most_escalated: float) -> list[CascadePoint]:
    """Return exact points of interest, unordered.

    They contain the best points that judge at most `most_escalated` of the rows, and good points at every other share.
    Each scorer alone is always included if some interval has it, and so is every cascade of `data.also`, up to numbers
    with the same bands.
    """
    grid = Grid.build(data.s_r, data.s_j, data.target, data.before, data.rows)
    best = grid.best_of_every_pair(_COARSE)
    for cut in range(data.places.size):
        if data.taus(cut, cut) is None:
            best[cut, cut] = -np.inf
    exact = _Exact(data)
    for candidate in _named_candidates(data):
        exact.point(candidate)
    last = data.places.size - 1
    choices = min(_MOST_CHOICES, max(_FEWEST_CHOICES, _ROWS_RANKED // data.y.size))
    for a, b in _promising(best, data.escalated_share, effort, most_escalated):
        fine = grid.weights_of_pair(a, b)
        # The weight of an empty band has no effect: one is enough.
        fine = fine[: 1 if a == 0 else None, : 1 if b == last else None]
        most = min(choices, fine.size)
        for at in np.argpartition(fine.ravel(), -most)[-most:]:
            exact.point((a, b, *divmod(int(at), fine.shape[1])))
    affordable = [(p.spearman, c) for c, p in exact.known.items() if p and p.escalated_frac <= most_escalated]
    best_of_pair: dict[tuple[int, int], Candidate] = {}
    for _, candidate in sorted(affordable, reverse=True):
        best_of_pair.setdefault(candidate[:2], candidate)
    starts = list(best_of_pair.values())[: effort.climbs]
    ends = [_climb(exact, start, effort.steps, most_escalated) for start in starts]
    found = [point for point in exact.known.values() if point is not None]
    if data.places.size > data.most_cuts and data.y.size <= _ROWS_RANKED:
        every = _Exact(replace(data, most_cuts=data.y.size))
        for cascade in (end.cascade for end in ends if end is not None):
            at = *every.data.cuts_of(cascade), round(cascade.w1 * WEIGHT_STEPS), round(cascade.w2 * WEIGHT_STEPS)
            _climb(every, at, effort.steps, most_escalated, _STRIDES)
        found += [point for point in every.known.values() if point is not None]
    return found


def frontier(points: Iterable[CascadePoint]) -> tuple[CascadePoint, ...]:
    """Return the points that no other beats at the same or a lower share of judge calls. Both values increase along
    them."""
    kept: list[CascadePoint] = []
    for point in sorted(points, key=lambda p: (p.escalated_frac, -p.spearman)):
        if not kept or point.spearman > kept[-1].spearman + SAME:
            kept.append(point)
    return tuple(kept)


def _named_candidates(data: FittingSet) -> Iterator[Candidate]:
    last = data.places.size - 1
    yield 0, last, WEIGHT_STEPS, WEIGHT_STEPS
    never_inside = next((cut for cut in range(last + 1) if data.taus(cut, cut) is not None), None)
    if never_inside is not None:
        yield never_inside, never_inside, 0, 0
    for own in data.also:
        yield *data.cuts_of(own), round(own.w1 * WEIGHT_STEPS), round(own.w2 * WEIGHT_STEPS)


def _promising(best: np.ndarray, escalated: Floats, effort: Effort, most_escalated: float) -> Iterator[tuple[int, int]]:
    """Yield pairs of cuts: the best affordable ones, then the best of every range of the escalated share."""
    order = np.argsort(-best, axis=None)
    order = order[: np.count_nonzero(np.isfinite(best))]
    shares = escalated.ravel()[order]
    chosen = order[shares <= most_escalated][: effort.pairs]
    ranges = np.minimum((shares * effort.shares).astype(np.int64), effort.shares - 1) if effort.shares else shares
    by_range = [order[ranges == i][:_PER_SHARE] for i in range(effort.shares)]
    for at in dict.fromkeys(np.concatenate([chosen, *by_range]).tolist()):
        yield divmod(at, best.shape[1])


def _climb(
    exact: _Exact, start: Candidate, steps: int, most_escalated: float, strides: tuple[int, ...] = (1,)
) -> CascadePoint | None:
    """Move to the first better neighbour until there is none. Return the last point. Every visited point is cached."""
    here, at = start, exact.point(start)
    moves = [(i, sign * stride) for stride in strides for sign in (1, -1) for i in range(4)]
    left, cuts = steps, exact.data.places.size
    while left > 0 and at is not None:
        for i, by in moves:
            a, b, w1, w2 = (value + by * (i == j) for j, value in enumerate(here))
            if not (0 <= a <= b < cuts and 0 <= w1 <= WEIGHT_STEPS and 0 <= w2 <= WEIGHT_STEPS):
                continue
            left -= 1
            there = a, b, w1, w2
            point = exact.point(there)
            if point and point.escalated_frac <= most_escalated and point.spearman > at.spearman + SAME:
                here, at = there, point
                break
        else:
            break
    return at
