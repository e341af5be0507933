"""Which cascades to look at exactly: the second half of calibration's search (Eq. 5).

The grid gives every cascade's rho approximately; here the promising ones, over the whole range of judge calls, are
sorted and ranked exactly, and the best of them are followed uphill in steps of one cut and one hundredth.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
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
"""Correlations closer than this count as equal; fewer judge calls then win."""
_COARSE = 5
_PER_SHARE = 4
_FEWEST_CHOICES, _MOST_CHOICES, _ROWS_RANKED = 1, 16, 20_000
"""How many weights of a pair of cuts are ranked exactly: more where rows are few, as the ranking is then rough and
cheap."""


@dataclass(frozen=True, kw_only=True)
class CascadePoint:
    """A cascade with what it does on the fitting set: rho (NaN where R is constant) and the share of rows for which
    the judge is asked."""

    cascade: Cascade
    spearman: float
    escalated_frac: float


@dataclass(frozen=True, eq=False)
class Effort:
    """How far the search goes. `pairs`: pairs of cuts looked at closely; `shares`: ranges of the escalated share of
    which each gets a few more; `climbs`: starts, of `steps` evaluations each at most."""

    pairs: int = 96
    shares: int = 32
    climbs: int = 4
    steps: int = 60


@dataclass(frozen=True, eq=False)
class FittingSet:
    """Checked triples, and the cuts of S_R that the search tries: all that make a difference, or quantiles of them."""

    s_r: Floats
    s_j: Floats
    y: Floats
    most_cuts: int = MOST_CUTS
    also: tuple[Cascade, ...] = ()
    """Cascades whose own cuts are among those tried."""

    @cached_property
    def target(self) -> Target:
        return Target.of(self.y)

    @cached_property
    def _distinct(self) -> tuple[Floats, Ints, Ints]:
        """(distinct S_R, rows before each of them and n, which of them each row has)"""
        values, which, sizes = np.unique(self.s_r, return_inverse=True, return_counts=True)
        return values, np.concatenate([[0], np.cumsum(sizes)]), which

    @cached_property
    def places(self) -> Ints:
        """The cuts, as numbers of distinct scores that lie before them: 0 and all of them among these."""
        values, rows, _ = self._distinct
        m = values.size
        if m <= self.most_cuts:
            chosen = np.arange(m + 1)
        else:
            # A heap of equal scores counts as one step: it is one cut, and would else swallow those of many others.
            steps = np.cumsum(np.minimum(np.diff(rows), self.s_r.size / self.most_cuts))
            chosen = np.searchsorted(steps, np.linspace(0, steps[-1], self.most_cuts))
        own = [np.searchsorted(values, c.tau_a, side="left") for c in self.also]
        own += [np.searchsorted(values, c.tau_b, side="right") for c in self.also]
        return np.unique(np.concatenate([chosen, np.array(own, dtype=np.int64), [0, m]]))

    @cached_property
    def rows(self) -> Ints:
        """Rows before each cut."""
        return self._distinct[1][self.places]

    @cached_property
    def before(self) -> Ints:
        """For every row the number of rows with a lower S_R."""
        _, rows, which = self._distinct
        return rows[which]

    @cached_property
    def escalated(self) -> Floats:
        """Share of rows outside the interval, (cut a, cut b)."""
        return (self.rows[:, None] + self.s_r.size - self.rows[None, :]) / self.s_r.size

    def cuts_of(self, cascade: Cascade) -> tuple[int, int]:
        """The cuts that a cascade's interval makes. Only of one in `also` are they sure to be among those tried."""
        first = np.searchsorted(self._distinct[0], cascade.tau_a, side="left")
        last = np.searchsorted(self._distinct[0], cascade.tau_b, side="right")
        return int(np.searchsorted(self.places, first)), int(np.searchsorted(self.places, last))

    def taus(self, a: int, b: int) -> tuple[float, float] | None:
        """An interval that makes these bands, between the scores where there is room, else exactly at one (both ends
        are inside). None if no interval does: an empty one needs a number between two scores."""
        values = self._distinct[0]
        first, last = int(self.places[a]), int(self.places[b])
        if first == last:
            tau = self._between(first)
            return None if tau is None else (tau, tau)
        low = 0.0 if first == 0 else self._between(first)
        high = 1.0 if last == values.size else self._between(last)
        return float(values[first]) if low is None else low, float(values[last - 1]) if high is None else high

    def _between(self, place: int) -> float | None:
        """A short number between the last score before the cut and the first after it."""
        values = self._distinct[0]
        low = float(values[place - 1]) if place else 0.0
        high = float(values[place]) if place < values.size else 1.0
        middle = low + (high - low) / 2
        found = (x for digits in range(2, 17) if low < (x := round(middle, digits)) < high)
        inside = next(found, middle if low < middle < high else None)
        if inside is not None or low == high:
            return inside
        # Beyond the outermost scores the end of the scale itself will do.
        return 0.0 if place == 0 else 1.0 if place == values.size else None

    def evaluate(self, cascade: Cascade) -> CascadePoint:
        """The cascade's exact rho and share of judge calls."""
        asked = (self.s_r < cascade.tau_a) | (self.s_r > cascade.tau_b)
        return CascadePoint(
            cascade=cascade,
            spearman=self.target.spearman(mix_scores(cascade, self.s_r, self.s_j)),
            escalated_frac=float(np.count_nonzero(asked) / self.s_r.size),
        )


def mix_scores(cascade: Cascade, s_r: Floats, s_j: Floats) -> Floats:
    """R of every row (Eq. 4): the numbers of `Cascade.mix`, to the last bit."""
    below, above = s_r < cascade.tau_a, s_r > cascade.tau_b
    weight = np.where(below, cascade.w1, cascade.w2)
    return np.where(below | above, weight * s_r + (1.0 - weight) * s_j, s_r)


@dataclass(eq=False)
class _Exact:
    """Exact points, each candidate once."""

    data: FittingSet
    known: dict[Candidate, CascadePoint | None] = field(default_factory=dict)

    def point(self, candidate: Candidate) -> CascadePoint | None:
        """None for a candidate that no interval makes or whose R is constant."""
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
        """The weight of an empty band changes nothing here; it takes the other's, or trusts the reranker."""
        a, b, w1, w2 = candidate
        last = self.data.places.size - 1
        if a == 0:
            w1 = w2 if b < last else WEIGHT_STEPS
        return (a, b, w1, w1 if b == last else w2)


def search(data: FittingSet, effort: Effort, most_escalated: float) -> list[CascadePoint]:
    """Points of interest, exact, in no order: the best that ask the judge for at most `most_escalated` of the rows
    first of all, and good ones at every other share. Trusting either scorer alone is always among them, where some
    interval says so, and so is every cascade of `data.also`, up to numbers that make the same bands."""
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
    for a, b in _promising(best, data.escalated, effort, most_escalated):
        fine = grid.weights_of_pair(a, b)
        # The weight of an empty band makes no difference: one will do.
        fine = fine[: 1 if a == 0 else None, : 1 if b == last else None]
        most = min(choices, fine.size)
        for at in np.argpartition(fine.ravel(), -most)[-most:]:
            exact.point((a, b, *divmod(int(at), fine.shape[1])))
    affordable = [(p.spearman, c) for c, p in exact.known.items() if p and p.escalated_frac <= most_escalated]
    best_of_pair: dict[tuple[int, int], Candidate] = {}
    for _, candidate in sorted(affordable, reverse=True):
        best_of_pair.setdefault(candidate[:2], candidate)
    for start in list(best_of_pair.values())[: effort.climbs]:
        _climb(exact, start, effort.steps, most_escalated)
    return [point for point in exact.known.values() if point is not None]


def frontier(points: Iterable[CascadePoint]) -> tuple[CascadePoint, ...]:
    """The points that no other beats at the same or a lower share of judge calls: both figures rise along them."""
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
    """Pairs of cuts: the best that may be had, then the best of every range of the escalated share."""
    order = np.argsort(-best, axis=None)
    order = order[: np.count_nonzero(np.isfinite(best))]
    shares = escalated.ravel()[order]
    chosen = order[shares <= most_escalated][: effort.pairs]
    ranges = np.minimum((shares * effort.shares).astype(np.int64), effort.shares - 1) if effort.shares else shares
    by_range = [order[ranges == i][:_PER_SHARE] for i in range(effort.shares)]
    for at in dict.fromkeys(np.concatenate([chosen, *by_range]).tolist()):
        yield divmod(at, best.shape[1])


def _climb(exact: _Exact, start: Candidate, steps: int, most_escalated: float) -> None:
    """Goes to the first better neighbour until there is none; every point on the way stays known."""
    here, at = start, exact.point(start)
    moves = [(i, by) for by in (1, -1) for i in range(4)]
    left = steps
    while left > 0 and at is not None:
        for i, by in moves:
            moved = [value + by * (i == j) for j, value in enumerate(here)]
            there: Candidate = (moved[0], moved[1], moved[2], moved[3])
            if not _on_grid(there, exact.data.places.size):
                continue
            left -= 1
            point = exact.point(there)
            if point and point.escalated_frac <= most_escalated and point.spearman > at.spearman + SAME:
                here, at = there, point
                break
        else:
            return


def _on_grid(candidate: Candidate, cuts: int) -> bool:
    a, b, w1, w2 = candidate
    return 0 <= a <= b < cuts and 0 <= w1 <= WEIGHT_STEPS and 0 <= w2 <= WEIGHT_STEPS
