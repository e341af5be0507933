"""Judge budget: keep the judge's share of replies at a target by moving the trust interval.

The reranker scores every reply, so a window of its scores gives the share that any interval would send to the judge. No
trial steps are needed, and there is no feedback controller that could oscillate. The position of an interval with the
target share remains a choice. The budget keeps the balance between the two ends: of the judged replies, the share below
the interval stays as at the start (half if none lay outside).

Replies with equal scores are judged together or not at all, so not every share is reachable. The nearest reachable
share is selected. The interval moves only if that brings the share nearer by more than the tolerance, so a target
between two reachable shares does not make it alternate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hamr.calibration.ranks import Floats
from hamr.cascade.certificate import Ends
from hamr.types import CASCADE_BANDS, RewardRecord

_SHARES = 101


def score_range(record: RewardRecord) -> tuple[float, float] | None:
    """Return the lowest and highest S_R of one reply over its references. They determine for every interval whether the
    judge is called. None if the cascade was not used for the reward, or the reranker failed."""
    scores = [s.s_r for s in record.reference_scores]
    known = [s_r for s_r in scores if s_r is not None]
    if record.band not in CASCADE_BANDS or record.s_r is None or len(known) < len(scores):
        return None
    return min([record.s_r, *known]), max([record.s_r, *known])


@dataclass(frozen=True, eq=False)
class ReplyWindow:
    """Score ranges of a run's last replies, as columns of equal length."""

    low: Floats
    high: Floats

    @classmethod
    def of(cls, ranges: Sequence[tuple[float, float]]) -> ReplyWindow:
        """Return the window of these replies."""
        low, high = np.array(ranges).T
        return cls(low, high)

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


def without_audits(judge_frac: float, audit_frac: float) -> float:
    """Return the share e that Eq. 4 may send to the judge if `audit_frac` of the rest is audited: e + (1 - e) f =
    judge_frac.

    >>> without_audits(0.5, 0.0), without_audits(0.5, 0.5), round(without_audits(0.3, 0.1), 4)
    (0.5, 0.0, 0.2222)
    """
    return max(0.0, (judge_frac - audit_frac) / (1.0 - audit_frac)) if audit_frac < 1.0 else 0.0


def balance(evidence: ReplyWindow, ends: Ends) -> float:
    """Return the share of the replies outside the interval that lies below it. 0.5 if none lies outside."""
    below, above = float((evidence.low < ends[0]).mean()), float((evidence.high > ends[1]).mean())
    return below / (below + above) if below + above > 0.0 else 0.5


def balance_interval(
    evidence: ReplyWindow, now: Ends, *, share: float, below: float, tolerance: float, max_move: float
) -> Ends:
    """Return the next interval on the way to one that sends `share` of the replies to the judge, `below` of them from
    below. No end moves by more than `max_move`.

    The interval stays unless its share is worse than the nearest reachable share by more than `tolerance`.
    """
    pairs = _intervals(evidence, now, below)
    off = np.abs(evidence.escalated_share(pairs[:, 0], pairs[:, 1]) - share)
    if off[0] <= off.min() + tolerance:
        return now
    near = pairs[off <= off.min() + tolerance / 2]
    goal = near[np.abs(near - now).sum(axis=1).argmin()]
    a, b = (min(max(float(to), at - max_move), at + max_move) for at, to in zip(now, goal, strict=True))
    return a, b


def _intervals(evidence: ReplyWindow, now: Ends, below: float) -> Floats:
    """Intervals in [0, 1] for _SHARES shares outside them, `below` of each share below them: (n, 2), `now` first."""
    shares = np.linspace(0.0, 1.0, _SHARES)
    found = []
    for a in _cuts(np.sort(evidence.low), below * shares, now[0]):
        for b in (-cut for cut in _cuts(np.sort(-evidence.high), (1.0 - below) * shares, -now[1])):
            # If the ends cross, nearly all replies are outside: use a point on either side of the crossing.
            found += [np.stack([a, np.maximum(a, b)], axis=1), np.stack([np.minimum(a, b), b], axis=1)]
    pairs = np.concatenate([[now], *found])
    pairs[1:] = pairs[1:].clip(0.0, 1.0)
    return pairs


def _cuts(scores: Floats, shares: Floats, now: float) -> tuple[Floats, Floats]:
    """Return two cuts per share with that share of the sorted `scores` strictly below.

    Both are the nearest valid cut to `now`, so an end with the right share does not move to an observed score. If ties
    make the share unreachable, one cut has fewer scores below it and the other has more.
    """
    edges = np.concatenate([[-2.0], scores, [2.0]])
    wanted = np.round(shares * scores.size).astype(int)
    least, most = np.nextafter(edges[wanted], 2.0), edges[wanted + 1]
    near = np.clip(now, np.minimum(least, most), np.maximum(least, most))
    free = least <= most
    return np.where(free, near, most), np.where(free, near, least)
