"""Eq. 5 of the hybrid reward: fit the cascade whose reward ranks replies most like a teacher.

    theta* = argmax over theta = (tau_a, tau_b, w1, w2) of Spearman's rho( R_theta(S_R, S_J), Y )

over a set of held-out triples (S_R, S_J, Y). The share of judge calls can be bounded; the whole trade-off is the
frontier. Ties get average ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

import numpy as np
import numpy.typing as npt

from hamr.calibration.cascade import Cascade, confidence
from hamr.calibration.ranks import Floats, bootstrap_interval, spearman
from hamr.calibration.search import CascadePoint, Effort, FittingSet, frontier, mix_scores, search
from hamr.config.cascade_controller import CascadeConfig
from hamr.errors import BadInput, DataError

PAPER = Cascade.from_config(CascadeConfig())
"""tau = [0.68, 0.98], w1 = 0.05, w2 = 0.72 (Table 5 of the paper): the defaults of the schema."""
FEWEST_ROWS = 20
JUDGE_COST, RERANKER_COST = 10.0, 1.0
"""The judge of the paper takes about ten times as long as its reranker."""
FOLDS, RESAMPLES = 5, 300
LEVEL = 0.95
FOLD_ROWS, FOLD_CUTS = 20_000, 64
"""Maximum number of rows and cuts of S_R in the fit of a fold, to bound its time. The loss shows in the rho of the
folds."""
_FOLD_EFFORT = Effort(pairs=32, shares=0, climbs=2, steps=40)


@dataclass(frozen=True, kw_only=True)
class FitRow:
    """One reward method on the fitting set.

    `spearman` is None if its reward is constant. `cv_spearman` is that of held-out folds, and equals `spearman` for
    methods without a fit. `cost` is per row, in the unit of the two costs.
    """

    name: str
    spearman: float | None
    cv_spearman: float | None
    escalated_frac: float
    cost: float
    cascade: Cascade | None = None


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The fitted cascade, with its alternatives.

    `interval`: percentile bootstrap of rho over the rows with a fixed cascade; it does not include the selection of the
    cascade on the same rows. `cv_spearman`: rho of all rows, each rewarded by a cascade fitted without its fold; None
    if not requested, or if y is constant in a fold. `frontier`: increasing in both rho and judge calls, `cascade` is on
    it.
    """

    cascade: Cascade
    spearman: float
    escalated_frac: float
    interval: tuple[float, float] | None
    cv_spearman: float | None
    n: int
    most_escalated: float
    frontier: tuple[CascadePoint, ...]
    rows: Mapping[str, FitRow]

    @property
    def reranker_only(self) -> float:
        """rho of S_R."""
        return _or_nan(self.rows["reranker only"].spearman)

    @property
    def judge_only(self) -> float:
        """rho of S_J, the soft score."""
        return _or_nan(self.rows["soft judge"].spearman)

    @property
    def hard_judge(self) -> float | None:
        """rho of the verdicts 1, 0.5 and 0. None if all are equal."""
        return next(row.spearman for name, row in self.rows.items() if name.startswith("hard judge"))

    @property
    def paper(self) -> float | None:
        """rho of the parameters of the paper. None if their reward is constant."""
        return self.rows["paper's cascade"].spearman


def calibrate(
    s_r: npt.ArrayLike,
    s_j: npt.ArrayLike,
    y: npt.ArrayLike,
    *,
    hard: npt.ArrayLike | None = None,
    max_escalated_frac: float | None = None,
    max_cost: float | None = None,
    judge_cost: float = JUDGE_COST,
    reranker_cost: float = RERANKER_COST,
    folds: int = FOLDS,
    resamples: int = RESAMPLES,
    seed: int = 0,
    over: Literal["score", "confidence"] = "score",
) -> Calibration:
    """Fit the cascade to triples of reranker, judge and teacher scores, all in [0, 1] and in the same order.

    The search covers weights in steps of 0.01 and every distinct cut of S_R, including "never judge" and "always
    judge". If there are more than 200, it covers about 200 quantiles of them, and the others near the best cascades.
    For equal rho, fewer judge calls win.

    Args:
        s_r: Reranker scores.
        s_j: Soft judge scores.
        y: Teacher scores.
        hard: Verdicts of the judge as 1, 0.5 and 0, for comparison. By default S_J is rounded to the nearest of these,
            which may differ from the most likely label of the judge.
        max_escalated_frac: Maximum share of the rows for which the judge is called.
        max_cost: Maximum mean cost of a row.
        judge_cost: Additional cost of an escalated row.
        reranker_cost: Cost of every row.
        folds: Folds of cross-validation, 0 for none.
        resamples: Bootstrap resamples for the interval, 0 for none.
        seed: Seed of the folds and resamples.
        over: Scale of the interval: S_R, or its distance from one half (`confidence`), for rubric items.

    Raises:
        DataError: Too few rows, unequal lengths, NaN, numbers outside [0, 1] or constant scores.
        BadInput: A bound that cannot be met.

    >>> s_r = [i / 40 for i in range(40)]
    >>> fit = calibrate(s_r, [(i * 7 % 40) / 40 for i in range(40)], s_r)
    >>> fit.spearman, fit.escalated_frac
    (1.0, 0.0)
    """
    limit = most_escalated(max_escalated_frac, max_cost, judge_cost, reranker_cost)
    check_effort(folds, resamples)
    given = {"s_r": _check_scores("s_r", s_r), "s_j": _check_scores("s_j", s_j), "y": _check_scores("y", y)}
    _check_alike(given)
    data = _fitting_set(given["s_r"], given["s_j"], given["y"], over)
    verdicts = _verdicts(hard, data)

    front = frontier(search(data, Effort(), limit))
    fit = [point for point in front if point.escalated_frac <= limit][-1]
    interval = None
    if resamples:
        values = mix_scores(fit.cascade, data.s_r, data.s_j, data.key)
        interval = bootstrap_interval(values, data.y, resamples=resamples, level=LEVEL, seed=seed)
    cross_validated = cross_validate(data, folds, limit, seed) if folds else None

    rows = [
        _fixed_row("reranker only", data.s_r, data.y, 0.0, reranker_cost),
        _fixed_row("hard judge" if hard is not None else "hard judge (S_J rounded)", verdicts, data.y, 1.0, judge_cost),
        _fixed_row("soft judge", data.s_j, data.y, 1.0, judge_cost),
        _cascade_row("paper's cascade", data.evaluate(PAPER), judge_cost, reranker_cost),
    ]
    fitted = _cascade_row("fit", fit, judge_cost, reranker_cost)
    rows.append(replace(fitted, cv_spearman=cross_validated))
    return Calibration(
        cascade=fit.cascade,
        spearman=fit.spearman,
        escalated_frac=fit.escalated_frac,
        interval=interval,
        cv_spearman=cross_validated,
        n=data.y.size,
        most_escalated=limit,
        frontier=front,
        rows=MappingProxyType({row.name: row for row in rows}),
    )


def _fitting_set(s_r: Floats, s_j: Floats, y: Floats, over: Literal["score", "confidence"]) -> FittingSet:
    return FittingSet(s_r, s_j, y, also=(PAPER,), over=confidence(s_r) if over == "confidence" else None)


def cross_validate(data: FittingSet, folds: int, limit: float, seed: int) -> float | None:
    """Return rho of y with the rewards of held-out rows, pooled over random folds (one fold may have too few rows to
    rank).

    None if y is constant in a training part, or the pooled rewards are constant.
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(data.y.size)
    rewards = np.empty(data.y.size)
    for fold in range(min(folds, data.y.size)):
        held_out = order[fold::folds]
        rest = np.delete(order, np.s_[fold::folds])[:FOLD_ROWS]
        part = FittingSet(data.s_r[rest], data.s_j[rest], data.y[rest], FOLD_CUTS, data.also, data.key[rest])
        if part.target.norm == 0.0:
            return None
        affordable = [p for p in search(part, _FOLD_EFFORT, limit) if p.escalated_frac <= limit]
        # If S_R is constant in a part, no affordable cascade has a rho. Use the one that never calls the judge.
        cascade = frontier(affordable)[-1].cascade if affordable else Cascade(0.0, 1.0, 1.0, 1.0)
        rewards[held_out] = mix_scores(cascade, data.s_r[held_out], data.s_j[held_out], data.key[held_out])
    return _or_none(spearman(rewards, data.y))


def tau_profiles(
    s_r: npt.ArrayLike,
    s_j: npt.ArrayLike,
    y: npt.ArrayLike,
    cascade: Cascade,
    *,
    points: int = 60,
    over: Literal["score", "confidence"] = "score",
) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """Return (tau, rho) for different tau_a with the rest of `cascade` fixed, and the same for tau_b: how sharp the
    optimum is.

    Each covers its possible values at quantiles of the scores, including its own. Points without a rho are omitted.
    """
    data = _fitting_set(np.asarray(s_r, float), np.asarray(s_j, float), np.asarray(y, float), over)
    spread = np.unique(np.quantile(data.key, np.linspace(0.0, 1.0, points)))

    def profile(moved: Iterator[Cascade]) -> Iterator[CascadePoint]:
        return (p for p in map(data.evaluate, moved) if not math.isnan(p.spearman))

    low = sorted({0.0, cascade.tau_a, *(float(t) for t in spread if t <= cascade.tau_b)})
    high = sorted({1.0, cascade.tau_b, *(float(t) for t in spread if t >= cascade.tau_a)})
    lows = profile(Cascade(tau, cascade.tau_b, cascade.w1, cascade.w2) for tau in low)
    highs = profile(Cascade(cascade.tau_a, tau, cascade.w1, cascade.w2) for tau in high)
    return [(p.cascade.tau_a, p.spearman) for p in lows], [(p.cascade.tau_b, p.spearman) for p in highs]


def most_escalated(
    max_escalated_frac: float | None = None,
    max_cost: float | None = None,
    judge_cost: float = JUDGE_COST,
    reranker_cost: float = RERANKER_COST,
) -> float:
    """Return the largest share of rows for which the judge may be called under both bounds. Raise BadInput."""
    for name, cost in (("judge_cost", judge_cost), ("reranker_cost", reranker_cost), ("max_cost", max_cost)):
        if cost is not None and not (math.isfinite(cost) and cost >= 0.0):
            raise BadInput(name, cost, "must be a number of at least 0")
    if max_escalated_frac is not None and not 0.0 <= max_escalated_frac <= 1.0:
        raise BadInput("max_escalated_frac", max_escalated_frac, "must be a share in [0, 1]")
    limit = 1.0 if max_escalated_frac is None else max_escalated_frac
    if max_cost is not None:
        if max_cost < reranker_cost:
            raise BadInput(
                "max_cost", max_cost, f"every row already costs reranker_cost={reranker_cost:g}; raise max_cost"
            )
        if judge_cost > 0.0:
            # Rounding errors of the division must not exclude a share that just fits.
            limit = min(limit, (max_cost - reranker_cost) / judge_cost + 1e-12)
    return limit


def check_effort(folds: int = FOLDS, resamples: int = RESAMPLES) -> None:
    """Raise BadInput for an invalid number of folds or resamples."""
    for name, value in (("folds", folds), ("resamples", resamples)):
        if value < 0 or value == 1:
            raise BadInput(name, value, "must be 0 (disabled) or at least 2")


# --- input checks ------------------------------------------------------------------------------


def _check_scores(name: str, given: npt.ArrayLike) -> Floats:
    try:
        values = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise DataError(name, given, "must be a list of numbers") from None
    if values.ndim != 1:
        raise DataError(name, f"shape {values.shape}", "must be a plain list of numbers")
    bad = np.flatnonzero(~((values >= 0.0) & (values <= 1.0)))
    if bad.size:
        raise DataError(f"{name}[{bad[0]}]", float(values[bad[0]]), "is not a score; scores lie in [0, 1]")
    return values


def _check_alike(given: Mapping[str, Floats]) -> None:
    sizes = {name: values.size for name, values in given.items()}
    if len(set(sizes.values())) > 1:
        raise DataError("scores", sizes, "have unequal lengths; give one of each for every row")
    n = next(iter(sizes.values()))
    if n < FEWEST_ROWS:
        raise DataError("scores", f"{n} rows", f"too few to fit four numbers; give at least {FEWEST_ROWS}")
    for name, values in given.items():
        if values.min() == values.max():
            raise DataError(name, float(values[0]), f"is the same in all {n} rows, so nothing can be ranked by it")


def _verdicts(hard: npt.ArrayLike | None, data: FittingSet) -> Floats:
    if hard is None:
        return np.floor(2.0 * data.s_j + 0.5) / 2.0
    verdicts = _check_scores("hard", hard)
    if verdicts.size != data.y.size:
        raise DataError("hard", f"{verdicts.size} verdicts", f"there are {data.y.size} rows; give one verdict for each")
    bad = np.flatnonzero(~np.isin(verdicts, (0.0, 0.5, 1.0)))
    if bad.size:
        raise DataError(f"hard[{bad[0]}]", float(verdicts[bad[0]]), "is not a verdict; use 0, 0.5 or 1")
    return verdicts


def _fixed_row(name: str, values: Floats, y: Floats, share: float, cost: float) -> FitRow:
    rho = _or_none(spearman(values, y))
    return FitRow(name=name, spearman=rho, cv_spearman=rho, escalated_frac=share, cost=cost)


def _cascade_row(name: str, point: CascadePoint, judge_cost: float, reranker_cost: float) -> FitRow:
    rho, share = _or_none(point.spearman), point.escalated_frac
    cost = reranker_cost + share * judge_cost
    return FitRow(name=name, spearman=rho, cv_spearman=rho, escalated_frac=share, cost=cost, cascade=point.cascade)


def _or_none(rho: float) -> float | None:
    return None if math.isnan(rho) else rho


def _or_nan(rho: float | None) -> float:
    assert rho is not None, "constant scores are rejected"
    return rho
