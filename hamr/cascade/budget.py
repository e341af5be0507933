"""Holds the judge's share of replies at a target by moving the trust interval.

The reranker speaks about every reply, so the share that any interval would have sent to the judge is known from a
window of its scores; nothing has to be tried out, and there is no controller that could swing. What is left open is
where an interval of the wanted mass lies. Alone, the budget keeps the balance between the two ends: of the replies that
go to the judge, the same part lies below the interval as did at the start (half where none lay outside). With
`adaptive`, the interval of that mass with the smallest loss is taken (`hamr.cascade.adaptive_interval`).

Scores that tie go to the judge together or not at all, so not every share can be had. The nearest is taken, and the
interval moves only if that brings the share nearer by more than the tolerance: a target in the middle between two
reachable shares does not make it flap.
"""

from __future__ import annotations

import numpy as np

from hamr.calibration.cascade import Cascade
from hamr.calibration.ranks import Floats
from hamr.cascade.adaptive_interval import GAINED, Ends, Measure, loss
from hamr.cascade.reply_window import Bounds, ReplyWindow

_SHARES, _PLACES = 101, 33


def without_audits(judge_frac: float, audit_frac: float) -> float:
    """Share e that Eq. 4 may send to the judge where of the rest `audit_frac` is audited: e + (1 - e) f = judge_frac.

    >>> without_audits(0.5, 0.0), without_audits(0.5, 0.5), round(without_audits(0.3, 0.1), 4)
    (0.5, 0.0, 0.2222)
    """
    return max(0.0, (judge_frac - audit_frac) / (1.0 - audit_frac)) if audit_frac < 1.0 else 0.0


def balance(evidence: ReplyWindow, ends: Ends) -> float:
    """Of the replies that leave the interval, the part that lies below it; 0.5 where none does."""
    below, above = float((evidence.low < ends[0]).mean()), float((evidence.high > ends[1]).mean())
    return below / (below + above) if below + above > 0.0 else 0.5


def balance_interval(
    evidence: ReplyWindow, now: Ends, bounds: Bounds, *, share: float, below: float, tolerance: float
) -> Ends:
    """The next interval on the way to one that sends `share` of the replies to the judge, `below` of them from below.

    Stays where it is unless that is worse by more than `tolerance` than the nearest share that can be had.
    """
    pairs = _intervals(evidence, now, bounds, np.array([below]), np.linspace(0.0, 1.0, _SHARES))
    off = np.abs(evidence.escalated(pairs[:, 0], pairs[:, 1]) - share)
    if off[0] <= off.min() + tolerance:
        return now
    return bounds.towards(now, _nearest(pairs[off <= off.min() + tolerance / 2], now))


def place_interval(
    evidence: ReplyWindow,
    now: Ends,
    bounds: Bounds,
    *,
    share: float,
    tolerance: float,
    cascade: Cascade,
    measure: Measure,
) -> Ends:
    """The same at the place where the loss is smallest, whatever the balance between the ends; at the nearest place
    where nothing is known of any."""
    pairs = _intervals(evidence, now, bounds, np.linspace(0.0, 1.0, _PLACES), np.array([0.0, share, 1.0]))
    off = np.abs(evidence.escalated(pairs[:, 0], pairs[:, 1]) - share)
    right = pairs[off <= off.min() + tolerance / 2]
    # The present interval stands first wherever it is right, and is measured in any case.
    lost = loss(evidence, np.concatenate([[now], right]), cascade, measure)
    best = lost[1:].min()
    if off[0] <= off.min() + tolerance and (lost[0] <= best + GAINED or not np.isfinite(best)):
        return now
    return bounds.towards(now, _nearest(right[lost[1:] <= best], now))


def _nearest(pairs: Floats, now: Ends) -> Ends:
    a, b = pairs[np.abs(pairs - now).sum(axis=1).argmin()]
    return float(a), float(b)


def _intervals(evidence: ReplyWindow, now: Ends, bounds: Bounds, below: Floats, shares: Floats) -> Floats:
    """Intervals within bounds for `shares`, of which each of `below` lies below them: (n, 2), `now` first."""
    first = (below[:, None] * shares).ravel()
    second = ((1.0 - below[:, None]) * shares).ravel()
    found = []
    for a in _cuts(np.sort(evidence.low), first, now[0]):
        for b in (-cut for cut in _cuts(np.sort(-evidence.high), second, -now[1])):
            # Where the ends cross, nearly all is outside: a point on either side of what lies between.
            found += [np.stack([a, np.maximum(a, b)], axis=1), np.stack([np.minimum(a, b), b], axis=1)]
    pairs = np.concatenate([[now], *found])
    for end in (0, 1):
        pairs[1:, end] = np.clip(pairs[1:, end], *bounds.limits(end))
    return pairs


def _cuts(scores: Floats, shares: Floats, now: float) -> tuple[Floats, Floats]:
    """Per share two values with that share of the sorted `scores` strictly below: both the same, and of all such the
    nearest to `now`, so that an end that has its share is not drawn to the last score that was seen. Where ties forbid
    the share, one with fewer below it and one with more."""
    edges = np.concatenate([[-2.0], scores, [2.0]])
    wanted = np.round(shares * scores.size).astype(int)
    least, most = np.nextafter(edges[wanted], 2.0), edges[wanted + 1]
    near = np.clip(now, np.minimum(least, most), np.maximum(least, most))
    free = least <= most
    return np.where(free, near, most), np.where(free, near, least)
