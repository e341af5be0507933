"""Window of the replies of a run: reranker scores of all, judge scores of some, and sampling weights.

A reply that Eq. 4 sent to the judge has weight 1. A reply that the reranker decided is judged only if it was audited,
by a draw with probability f, and has weight 1 / f (Horvitz and Thompson 1952). Weighted means over the window therefore
estimate those of a judge that scores all replies, regardless of the interval in force for each reply.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hamr.calibration.ranks import Floats
from hamr.types import CASCADE_BANDS, RewardRecord


@dataclass(frozen=True, kw_only=True)
class WindowReply:
    """One reply.

    `low` and `high`: the lowest and the highest S_R over its references; they determine for every interval whether the
    judge is called. `s_r`, `s_j`: scores of the decisive reference; `s_j` is None without a judge score. `weight`:
    number of replies that the pair represents; 0 without `s_j`.
    """

    low: float
    high: float
    s_r: float
    s_j: float | None = None
    weight: float = 0.0

    @classmethod
    def of(cls, record: RewardRecord, audit_frac: float) -> WindowReply | None:
        """Return None if the cascade was not used for the reward, or the reranker failed.

        With several references the decisive one represents the reply, although another interval could have another
        decisive reference. If an audit or a judge failed, only S_R is known.
        """
        scores = [s.s_r for s in record.reference_scores]
        known = [s_r for s_r in scores if s_r is not None]
        if record.band not in CASCADE_BANDS or record.s_r is None or len(known) < len(scores):
            return None
        low, high, s_r = min([record.s_r, *known]), max([record.s_r, *known]), record.s_r
        if record.band in ("below", "above") and record.s_j is not None:
            return cls(low=low, high=high, s_r=s_r, s_j=record.s_j, weight=1.0)
        if record.audit is not None and record.audit.s_j is not None:
            return cls(low=low, high=high, s_r=s_r, s_j=record.audit.s_j, weight=1.0 / audit_frac)
        return cls(low=low, high=high, s_r=s_r)


@dataclass(frozen=True, eq=False)
class ReplyWindow:
    """Window as columns of equal length n. `s_j` is NaN where `weight` is 0."""

    low: Floats
    high: Floats
    s_r: Floats
    s_j: Floats
    weight: Floats

    @classmethod
    def of(cls, rows: Sequence[WindowReply]) -> ReplyWindow:
        def column(values: Sequence[float | None]) -> Floats:
            return np.array(values, dtype=np.float64)  # None becomes NaN

        return cls(
            low=column([row.low for row in rows]),
            high=column([row.high for row in rows]),
            s_r=column([row.s_r for row in rows]),
            s_j=column([row.s_j for row in rows]),
            weight=column([row.weight for row in rows]),
        )

    @staticmethod
    def ends(interval: tuple[float, float]) -> Floats:
        """Return one interval as the (1, 2) array that `hamr.cascade.adaptive_interval` takes."""
        return np.array([interval])

    @property
    def heard(self) -> npt.NDArray[np.bool_]:
        """Mask of the replies with a judge score."""
        return self.weight > 0.0

    def escalated_share(self, tau_a: Floats, tau_b: Floats) -> Floats:
        """Return the share of the replies with a reference outside [tau_a[i], tau_b[i]], for every i."""
        n = self.low.size
        below = np.searchsorted(np.sort(self.low), tau_a)
        above = n - np.searchsorted(np.sort(self.high), tau_b, "right")
        if np.array_equal(self.low, self.high):
            return (below + above) / n
        # A reply with several references may have one below and one above; it counts once.
        both = (self.low < tau_a[:, None]) & (self.high > tau_b[:, None])
        return (below + above - both.sum(axis=1)) / n


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Bounds of the ends of an interval: within `reach` of `start`, in [0, 1], and at most `max_move` per step.

    >>> Bounds(start=(0.5, 0.75), reach=0.25, max_move=0.125).towards((0.5, 0.75), (0.0, 1.0))
    (0.375, 0.875)
    """

    start: tuple[float, float]
    reach: float
    max_move: float

    def limits(self, end: int) -> tuple[float, float]:
        """Return the lowest and highest value of tau_a (0) or tau_b (1)."""
        return max(0.0, self.start[end] - self.reach), min(1.0, self.start[end] + self.reach)

    def clip(self, ends: tuple[float, float]) -> tuple[float, float]:
        a, b = (min(max(tau, self.limits(end)[0]), self.limits(end)[1]) for end, tau in enumerate(ends))
        return a, b

    def towards(self, now: tuple[float, float], goal: tuple[float, float]) -> tuple[float, float]:
        """Return the next interval on the way from `now` to `goal`. Both ends are clipped alike, so their order is
        kept."""
        a, b = (
            min(max(to, at - self.max_move), at + self.max_move)
            for at, to in zip(now, self.clip(goal), strict=True)
        )  # fmt: skip
        return a, b
