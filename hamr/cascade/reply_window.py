"""What a run has seen of its own replies: the reranker's scores of all, the judge's of some, and whom those stand for.

A reply that Eq. 4 put to the judge stands for itself. One that the reranker decided is heard only if it was audited, by
a draw of the share f, and stands for 1 / f of its kind (Horvitz and Thompson 1952): so weighted means over the window
are those of a judge for everybody, whatever interval was in force when a reply came.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hamr.calibration.ranks import Floats
from hamr.types import RewardRecord

_CASCADED = ("below", "inside", "above", "skipped")


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One reply. `low` and `high`: the lowest and the highest S_R over its references, which say for every interval
    whether the judge is asked. `s_r`, `s_j`: of the reference that decided; `s_j` is None where the judge did not
    speak. `weight`: how many replies the pair stands for; 0 without `s_j`."""

    low: float
    high: float
    s_r: float
    s_j: float | None = None
    weight: float = 0.0

    @classmethod
    def of(cls, record: RewardRecord, audit_frac: float) -> Seen | None:
        """None where the cascade had no part in the reward, or the reranker failed.

        With several references the deciding one speaks for the reply; another interval might let another one decide.
        An audit or a judge that failed leaves a reply of which only S_R is known.
        """
        scores = [s.s_r for s in record.reference_scores]
        known = [s_r for s_r in scores if s_r is not None]
        if record.band not in _CASCADED or record.s_r is None or len(known) < len(scores):
            return None
        low, high, s_r = min([record.s_r, *known]), max([record.s_r, *known]), record.s_r
        if record.band in ("below", "above") and record.s_j is not None:
            return cls(low=low, high=high, s_r=s_r, s_j=record.s_j, weight=1.0)
        if record.audit is not None and record.audit.s_j is not None:
            return cls(low=low, high=high, s_r=s_r, s_j=record.audit.s_j, weight=1.0 / audit_frac)
        return cls(low=low, high=high, s_r=s_r)


@dataclass(frozen=True, eq=False)
class ReplyWindow:
    """The window as columns of equal length n; `s_j` is NaN where `weight` is 0."""

    low: Floats
    high: Floats
    s_r: Floats
    s_j: Floats
    weight: Floats

    @classmethod
    def of(cls, rows: Sequence[Seen]) -> ReplyWindow:
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
        """One interval as the array (1, 2) that `hamr.cascade.adaptive_interval` takes."""
        return np.array([interval])

    @property
    def heard(self) -> npt.NDArray[np.bool_]:
        """Where the judge spoke."""
        return self.weight > 0.0

    def escalated(self, tau_a: Floats, tau_b: Floats) -> Floats:
        """Share of the replies with a reference outside [tau_a[i], tau_b[i]], for every i."""
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
    """Where the ends of an interval may lie: within `reach` of `start`, in [0, 1]; `max_move` apart from step to step.

    >>> Bounds(start=(0.5, 0.75), reach=0.25, max_move=0.125).towards((0.5, 0.75), (0.0, 1.0))
    (0.375, 0.875)
    """

    start: tuple[float, float]
    reach: float
    max_move: float

    def limits(self, end: int) -> tuple[float, float]:
        """Lowest and highest value of tau_a (0) or tau_b (1)."""
        return max(0.0, self.start[end] - self.reach), min(1.0, self.start[end] + self.reach)

    def clip(self, ends: tuple[float, float]) -> tuple[float, float]:
        a, b = (min(max(tau, self.limits(end)[0]), self.limits(end)[1]) for end, tau in enumerate(ends))
        return a, b

    def towards(self, now: tuple[float, float], goal: tuple[float, float]) -> tuple[float, float]:
        """The next interval on the way from `now` to `goal`: in order if both are, since both ends are cut alike."""
        a, b = (
            min(max(to, at - self.max_move), at + self.max_move)
            for at, to in zip(now, self.clip(goal), strict=True)
        )  # fmt: skip
        return a, b
