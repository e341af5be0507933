"""The best of all cascades over 1,000 distinct reranker scores: every pair of cuts, every pair of weights.

With rows in the order of S_R, a cascade is (a, b, w1, w2): the rows before a are mixed by w1, those from b on by w2.
The numerator of Spearman's rho is half the sum of D_ij sign(R_i - R_j) over all pairs of rows, with D_ij the difference
of their ranks of y. From a to a + 1 only the reward of row a changes, and its pairs with the rows above b are a
cumulative sum for all b at once. So each cascade costs a few additions instead of a sort: the 5e9 cascades over 1,000
rows take half a minute.
"""

from __future__ import annotations

import numpy as np

from hamr.calibration.grid import WEIGHT_STEPS
from hamr.calibration.ranks import Target

Triples = tuple[np.ndarray, np.ndarray, np.ndarray]


def best_of_every_cascade(triples: Triples, bounds: tuple[float, ...] = (1.0,)) -> tuple[int, list[float]]:
    """Return the number of cascades, and the highest rho of those that judge at most each share of the rows.

    S_R needs distinct values. Ties of the other scores have average ranks.
    """
    s_r, s_j, y = (values[np.argsort(triples[0])] for values in triples)
    n, target = s_r.size, Target.of(y)
    assert np.unique(s_r).size == n, "S_R has equal scores"
    ranks = np.rint(2 * target.centred).astype(np.int32)
    diff = ranks[:, None] - ranks[None, :]
    weights = np.arange(WEIGHT_STEPS + 1)[:, None] / WEIGHT_STEPS
    mixed = weights * s_r + (1.0 - weights) * s_j
    # Rows with each tied value of S_J, among the first and among the last rows. They are tied in R at weight 0 only.
    values, counts = np.unique(s_j, return_counts=True)
    same = s_j == values[counts > 1, None]
    first, last = (np.pad(np.cumsum(rows, axis=1), ((0, 0), (1, 0))) for rows in (same, same[:, ::-1]))

    sums = np.broadcast_to(_sums_without_lower_band(s_r, mixed, diff), (len(weights), len(weights), n + 1)).copy()
    best, count = [-1.0] * len(bounds), 0
    for a in range(n + 1):
        found = _rho_of_best_weights(sums[:, :, : n - a + 1], first[:, a, None], last[:, : n - a + 1], n, target)
        count += len(weights) ** 2 * found.size
        for i, bound in enumerate(bounds):
            above = int(bound * n + 1e-9) - a
            if above >= 0:
                best[i] = max(best[i], float(found[: above + 1].max()))
        if a < n:
            _mix_row(sums, a, s_r, mixed, diff)
    return count, best


def _sums_without_lower_band(s_r: np.ndarray, mixed: np.ndarray, diff: np.ndarray) -> np.ndarray:
    """Return the sums of D_ij sign(R_i - R_j) with no row below, (w2, number of rows above)."""
    n = s_r.size
    sums = np.full((len(mixed), n + 1), -np.triu(diff).sum(), np.int32)
    for k in range(n - 1, -1, -1):
        inside = diff[k, :k] * (np.sign(mixed[:, k, None] - s_r[:k]) - 1)
        others = mixed[:, k + 1 :]
        above = diff[k, k + 1 :] * (np.sign(mixed[:, k, None] - others) - np.sign(s_r[k] - others))
        sums[:, n - k] = sums[:, n - k - 1] + inside.sum(1) + above.sum(1)
    return sums


def _mix_row(sums: np.ndarray, a: int, s_r: np.ndarray, mixed: np.ndarray, diff: np.ndarray) -> None:
    """Move row a from the interval into the lower band: sums (w1, w2, number of rows above), for every b > a."""
    n, own = s_r.size, mixed[:, a, None]
    below = diff[a, :a] * (np.sign(own - mixed[:, :a]) - np.sign(s_r[a] - mixed[:, :a]))
    inside = np.cumsum(diff[a, a + 1 :] * (np.sign(own - s_r[a + 1 :]) + 1), axis=1)
    change = below.sum(1)[:, None] + np.pad(inside, ((0, 0), (1, 0)))[:, ::-1]
    others, d = mixed[:, :a:-1], diff[a, :a:-1]
    now = d * np.sign(s_r[a] - others).astype(np.int32)
    higher, lower = d - now, -d - now
    for w1, row in enumerate(own[:, 0]):
        # At two weights of 0 equal scores S_J stay equal.
        moved = np.where(others < row, higher, lower) if w1 else d * np.sign(row - others).astype(np.int32) - now
        part = sums[w1, :, : n - a]
        part += change[w1].astype(np.int32)
        part[:, 1:] += np.cumsum(moved, axis=1, dtype=np.int32)


def _rho_of_best_weights(sums: np.ndarray, first: np.ndarray, last: np.ndarray, n: int, target: Target) -> np.ndarray:
    """Return the highest rho over both weights, by number of rows above. Ties reduce the variance of the ranks."""
    parts = (
        (sums[1:, 1:].max(axis=(0, 1)), 0 * last),
        (sums[0, 1:].max(axis=0), first + 0 * last),
        (sums[1:, 0].max(axis=0), last),
        (sums[0, 0], first + last),
    )
    found = [-np.ones(sums.shape[-1])]
    for total, tied in parts:
        variance = (n**3 - n - (tied**3 - tied).sum(0)) / 12
        rho = total / (4 * target.norm * np.sqrt(np.maximum(variance, 1.0)))
        found.append(np.where(variance > 0, rho, -1.0))
    return np.max(found, axis=0)
