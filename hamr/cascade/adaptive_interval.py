"""Adaptive cascade: selection of the trust interval during training.

The first paper leaves the adaptive cascade to future work. Eq. 5 fits (tau_a, tau_b, w1, w2) to a teacher on held-out
replies, once, before training. There is no teacher during a run; the best available signal is the soft score S_J of the
judge. Weights cannot be fitted to it: where Eq. 4 mixes, the mix that agrees most with S_J is S_J alone. The judge can
show where it is not needed, so the interval moves and the weights stay fixed. The paper does not give a criterion. hamr
has two (`measure`), each with a limit:

    gap     mean |S_R - S_J| of the replies in [tau_a, tau_b]                          at most `limit`
    rank    Spearman's rho( R_theta(S_R, S_J), S_J ) of all judged replies             at least `limit`

The gap is the default. Rewards inside the interval are compared with rewards outside, which follow S_J. An offset
between the scorers therefore changes the rank of a reply among its siblings, even if the order within the interval is
correct. Among the intervals within the limit, the one with the fewest judge calls is selected. The default limit is the
initial value of the starting interval: the fast pass stays as reliable as at calibration.
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
"""Minimum number of judged replies inside an interval for its gap to be used."""
SAVED = 0.01
"""Smallest reduction of the share of judge calls that justifies a move."""
GAINED = 0.005
"""Smallest reduction of the loss (gap, or 1 - rho) that justifies a move."""
_ENDS: dict[Measure, int] = {"gap": 32, "rank": 12}
"""Candidates for each end. A rho requires a sort, a gap only a lookup."""


def loss(evidence: ReplyWindow, ends: Floats, cascade: Cascade, measure: Measure) -> Floats:
    """Return the loss of each interval of `ends` (n, 2): its gap, or 1 - rho under the weights of `cascade`.

    The loss is infinite if it cannot be estimated: fewer than FEWEST judged replies inside (gap), a constant score
    (rank).
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


def most_trusted(
    evidence: ReplyWindow, now: Ends, bounds: Bounds, *, cascade: Cascade, measure: Measure, limit: float
) -> Ends:
    """Return the next interval on the way to the one with the fewest judge calls whose loss is at most `limit`.

    If no interval is within the limit, the target is the interval with the smallest loss. The interval does not move
    for less than SAVED, nor to an interval that exceeds both the limit and the present loss. It also stays if no loss
    is known.
    """
    pairs = candidates(evidence, now, bounds, _ENDS[measure])
    lost, share = loss(evidence, pairs, cascade, measure), evidence.escalated_share(pairs[:, 0], pairs[:, 1])
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
        # The way leads through a larger loss. Keep an interval within the limit.
        return _least(pairs, np.where(near & kept & (share < share[0] - SAVED), share, np.inf), now)
    return _least(pairs, np.where(near & (lost < lost[0]), lost, np.inf), now)


def candidates(evidence: ReplyWindow, now: Ends, bounds: Bounds, most: int) -> Floats:
    """Return candidate intervals within bounds, (n, 2), `now` first. Ends are at most `most` observed scores each, and
    the present ones."""
    ends = []
    for end, scores in enumerate((evidence.low, evidence.high)):
        least, highest = bounds.limits(end)
        seen = np.unique(scores[(scores >= least) & (scores <= highest)])
        if seen.size > most:
            # Select by distinct values, not by replies: many replies at 1.0 are one candidate.
            seen = seen[np.linspace(0, seen.size - 1, most).round().astype(int)]
        ends.append(np.concatenate([[now[end]], seen, [least, highest]]))
    pairs = np.array(np.meshgrid(*ends, indexing="ij")).reshape(2, -1).T
    return np.concatenate([[now], pairs[pairs[:, 0] <= pairs[:, 1]]])


def _least(pairs: Floats, lost: Floats, now: Ends) -> Ends:
    """Return the interval with the smallest loss, the nearest on a tie. Return `now` if no loss is known."""
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
    """Pearson correlation of two centred columns. NaN if one is constant."""
    scale = float(weight @ x**2) * float(weight @ y**2)
    return float(weight @ (x * y)) / scale**0.5 if scale > 0.0 else float("nan")


def _centred_ranks(values: Floats, weight: Floats) -> Floats:
    _, group = np.unique(values, return_inverse=True)
    sizes = np.bincount(group, weights=weight)
    centred: Floats = (np.cumsum(sizes) - sizes / 2.0)[group] - weight.sum() / 2.0
    return centred
