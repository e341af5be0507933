"""Which trust interval deserves its name: the adaptive cascade, which the first paper leaves to future work.

Eq. 5 fits (tau_a, tau_b, w1, w2) to a teacher on held-out replies, once, before training. During a run there is no
teacher; the best that there is is the judge's soft score S_J. Weights fitted to it would mean nothing: where Eq. 4
mixes, the mix that agrees most with S_J is S_J alone. What the judge can say is where it is not needed, so the interval
moves and the weights stay. The paper is silent on the criterion; hamr has two (`measure`), each with a limit:

    gap     mean |S_R - S_J| of the replies in [tau_a, tau_b]                          at most `limit`
    rank    Spearman's rho( R_theta(S_R, S_J), S_J ) of all replies that were heard    at least `limit`

The gap is the default: a reward from inside the interval stands beside those from outside, which lean on S_J, so that
an offset between the scorers moves a reply among its siblings although it ranks nobody falsely within the interval.
Among the intervals that keep the limit, the one that asks the judge least is taken. Without a limit of the user's own
it is what the starting interval has at first: the fast pass is to stay as trustworthy as it was when it was calibrated.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from hamr.calibration.cascade import Cascade
from hamr.calibration.ranks import Floats
from hamr.cascade.reply_window import Bounds, ReplyWindow

Ends = tuple[float, float]
Measure = Literal["gap", "rank"]

FEWEST = 20
"""Replies inside an interval that the judge was heard about, before its gap is believed."""
SAVED = 0.01
"""A share of judge calls too small to move for."""
GAINED = 0.005
"""A loss (gap, or 1 - rho) too small to move for."""
_ENDS: dict[Measure, int] = {"gap": 32, "rank": 12}
"""Candidates for each end: a rho takes a sort, a gap a lookup."""


def loss(evidence: ReplyWindow, ends: Floats, cascade: Cascade, measure: Measure) -> Floats:
    """What each interval of `ends` (n, 2) loses: its gap, or 1 - rho under the weights of `cascade`.

    Infinite where nothing can be said: fewer than FEWEST replies heard inside (gap), a constant score (rank).
    """
    heard = evidence.heard
    s_r, s_j, weight = evidence.s_r[heard], evidence.s_j[heard], evidence.weight[heard]
    if measure == "rank":
        ranks = _centred_ranks(s_j, weight) if s_j.size else s_j
        return np.array([1.0 - _rank(s_r, s_j, ranks, weight, a, b, cascade) for a, b in ends])
    order = np.argsort(s_r)
    counts, weights, gaps = (
        np.concatenate([[0.0], np.cumsum(values[order])])
        for values in (np.ones_like(weight), weight, weight * np.abs(s_r - s_j))
    )
    first, past = np.searchsorted(s_r[order], ends[:, 0]), np.searchsorted(s_r[order], ends[:, 1], "right")
    inside = counts[past] - counts[first]
    mean = (gaps[past] - gaps[first]) / np.maximum(weights[past] - weights[first], 1e-300)
    return np.where(inside >= FEWEST, mean, np.inf)


def weighted_spearman(x: Floats, y: Floats, weight: Floats) -> float:
    """rho of x and y where row i counts `weight[i]` times, ties by their average rank; NaN where one is constant."""
    return _correlation(_centred_ranks(x, weight), _centred_ranks(y, weight), weight)


def most_trusted(
    evidence: ReplyWindow, now: Ends, bounds: Bounds, *, cascade: Cascade, measure: Measure, limit: float
) -> Ends:
    """The next interval on the way to the one with fewest judge calls whose loss is at most `limit`.

    Where none keeps the limit, the one that loses least. Does not move for less than SAVED, nor to an interval that
    both breaks the limit and loses more than the present one; nothing known, nothing moved.
    """
    pairs = candidates(evidence, now, bounds, _ENDS[measure])
    lost, share = loss(evidence, pairs, cascade, measure), evidence.escalated(pairs[:, 0], pairs[:, 1])
    kept = lost <= limit
    if kept.any():
        fewest = share[kept].min()
        if kept[0] and share[0] <= fewest + SAVED:
            return now
        goal = _least(pairs, np.where(kept & (share <= fewest + SAVED / 2), lost, np.inf), now)
    else:
        goal = _least(pairs, lost, now)
    step = bounds.towards(now, goal)
    if loss(evidence, np.array([step]), cascade, measure)[0] <= max(limit, lost[0]):
        return step
    near = np.abs(pairs - now).max(axis=1) <= bounds.max_move
    if kept[0]:
        # A ridge on the way: what is trusted is not given up for it.
        return _least(pairs, np.where(near & kept & (share < share[0] - SAVED), share, np.inf), now)
    return _least(pairs, np.where(near & (lost < lost[0]), lost, np.inf), now)


def candidates(evidence: ReplyWindow, now: Ends, bounds: Bounds, most: int) -> Floats:
    """Intervals within bounds, (n, 2), `now` first: ends at scores that have been seen, `most` of each, and as they
    are."""
    ends = []
    for end, scores in enumerate((evidence.low, evidence.high)):
        least, highest = bounds.limits(end)
        seen = np.unique(scores[(scores >= least) & (scores <= highest)])
        if seen.size > most:
            # By distinct values, not by replies: a heap at 1.0 is one candidate.
            seen = seen[np.linspace(0, seen.size - 1, most).round().astype(int)]
        ends.append(np.concatenate([[now[end]], seen, [least, highest]]))
    pairs = np.array(np.meshgrid(*ends, indexing="ij")).reshape(2, -1).T
    return np.concatenate([[now], pairs[pairs[:, 0] <= pairs[:, 1]]])


def _least(pairs: Floats, lost: Floats, now: Ends) -> Ends:
    """The interval that loses least, the nearest of those on a tie; `now` where nothing is known of any."""
    best = lost.min()
    if not np.isfinite(best):
        return now
    equal = pairs[lost <= best]
    a, b = equal[np.abs(equal - now).sum(axis=1).argmin()]
    return float(a), float(b)


def _rank(s_r: Floats, s_j: Floats, ranks: Floats, weight: Floats, a: float, b: float, cascade: Cascade) -> float:
    if not s_r.size:
        return -np.inf
    share = np.where(s_r < a, cascade.w1, np.where(s_r > b, cascade.w2, 1.0))
    rho = _correlation(_centred_ranks(share * s_r + (1.0 - share) * s_j, weight), ranks, weight)
    return -np.inf if np.isnan(rho) else rho


def _correlation(x: Floats, y: Floats, weight: Floats) -> float:
    """Pearson's of two centred columns; NaN where one is constant."""
    scale = float(weight @ x**2) * float(weight @ y**2)
    return float(weight @ (x * y)) / scale**0.5 if scale > 0.0 else float("nan")


def _centred_ranks(values: Floats, weight: Floats) -> Floats:
    _, group = np.unique(values, return_inverse=True)
    sizes = np.bincount(group, weights=weight)
    centred: Floats = (np.cumsum(sizes) - sizes / 2.0)[group] - weight.sum() / 2.0
    return centred
