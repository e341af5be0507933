"""Eq. 5: exact ranks, an exhaustive search, and fit figures that match the cascade."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import rankdata, spearmanr

from hamr.calibration.cascade import Cascade
from hamr.calibration.fit import PAPER, calibrate, tau_profiles
from hamr.calibration.grid import Grid
from hamr.calibration.ranks import bootstrap_interval, spearman
from hamr.calibration.search import Effort, FittingSet, mix_scores, search
from hamr.errors import BadInput, DataError

EXACT = 1e-12


def fitted(s_r, s_j, y, **options):
    return calibrate(s_r, s_j, y, **{"folds": 0, "resamples": 0} | options)


def noisy(n, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.random(n)
    return np.clip(y + rng.normal(0, 0.4, n), 0, 1), np.clip(y + rng.normal(0, 0.2, n), 0, 1), y


def middling(n=41):
    """A reranker that is right in [0.4, 0.8] and upside down elsewhere; a judge that is always right."""
    s_r = np.linspace(0, 1, n)
    y = np.where((s_r >= 0.4) & (s_r <= 0.8), s_r, 1 - s_r)
    return s_r, y, y


# --- ranks -------------------------------------------------------------------------------------


def test_spearman_with_ties_matches_hand_computed_values():
    # ranks 1, 2.5, 2.5, 4 against 1, 3.5, 2, 3.5; centred products 2.25 + 1.5, both spreads 4.5
    assert spearman(np.array([0.1, 0.2, 0.2, 0.3]), np.array([0, 1, 0.5, 1])) == pytest.approx(3.75 / 4.5, abs=EXACT)


def test_spearman_of_a_constant_is_nan():
    assert math.isnan(spearman(np.ones(4), np.array([0, 1, 2, 3.0])))
    assert math.isnan(spearman(np.array([0, 1, 2, 3.0]), np.ones(4)))


steps = st.sampled_from([2, 4, 10, 1000])


@given(steps.flatmap(lambda k: st.lists(st.tuples(st.integers(0, k), st.integers(0, 6)), min_size=2, max_size=60)))
def test_spearman_equals_scipy(pairs):
    x, y = (np.array(column, dtype=float) for column in zip(*pairs, strict=True))
    assume(np.ptp(x) > 0 and np.ptp(y) > 0)
    assert spearman(x, y) == pytest.approx(spearmanr(x, y).statistic, abs=EXACT)


def test_bootstrap_interval_contains_rho_and_narrows_with_rows():
    widths = []
    for n in (40, 4000):
        s_r, _, y = noisy(n)
        low, high = bootstrap_interval(s_r, y, resamples=200, level=0.95, seed=3)
        assert low < spearman(s_r, y) < high
        widths.append(high - low)
    assert widths[1] < widths[0] / 5


@pytest.mark.parametrize(("resamples", "level", "ends"), [(2, 1.0, (0.0, 1.0)), (60, 0.9, (0.05, 0.95))])
def test_bootstrap_interval_equals_quantiles_of_resampled_rhos(resamples, level, ends):
    s_r, _, y = (np.round(column, 1) for column in noisy(50))
    rng = np.random.default_rng(8)
    draws = [rng.integers(50, size=50) for _ in range(resamples)]
    rhos = [spearmanr(s_r[d], y[d]).statistic for d in draws]
    found = bootstrap_interval(s_r, y, resamples=resamples, level=level, seed=8)
    assert found == pytest.approx(np.quantile(rhos, ends), abs=EXACT)


# --- the grid ----------------------------------------------------------------------------------


def test_grid_is_exact_if_bins_separate_all_values():
    """Scores in few steps and weights 0 and 1: only ties share a bin, so single precision is the only error."""
    s_r, s_j, y = (np.round(column * 4) / 4 for column in noisy(60))
    data = FittingSet(s_r, s_j, y)
    grid = Grid.build(s_r, s_j, data.target, data.before, data.rows)
    for a, b in itertools.combinations_with_replacement(range(data.places.size), 2):
        rho = grid.weights_of_pair(a, b)
        below, above = data.before < data.rows[a], data.before >= data.rows[b]
        for w1, w2 in itertools.product((0, 100), repeat=2):
            r = np.where(below, s_r if w1 else s_j, np.where(above, s_r if w2 else s_j, s_r))
            exact = spearman(r, y)
            assert rho[w1, w2] == pytest.approx(exact, abs=1e-4) or math.isnan(exact)


def test_grid_is_approximately_correct_everywhere():
    data = FittingSet(*noisy(400))
    grid = Grid.build(data.s_r, data.s_j, data.target, data.before, data.rows)
    rng = np.random.default_rng(5)
    for _ in range(60):
        a, b = sorted(rng.integers(data.places.size, size=2))
        w1, w2 = rng.integers(101, size=2)
        taus = data.taus(a, b)
        exact = data.evaluate(Cascade(*taus, w1 / 100, w2 / 100)).spearman
        assert grid.weights_of_pair(a, b)[w1, w2] == pytest.approx(exact, abs=2e-3)


def test_best_of_every_pair_is_the_maximum_over_coarse_weights():
    data = FittingSet(*noisy(25))
    grid = Grid.build(data.s_r, data.s_j, data.target, data.before, data.rows)
    best = grid.best_of_every_pair(10)
    last = data.places.size - 1
    for a, b in [(0, 0), (0, last), (3, 9), (7, 7), (last, last)]:
        assert best[a, b] == pytest.approx(grid.weights_of_pair(a, b)[::10, ::10].max(), abs=1e-5)
    assert best[9, 3] == -np.inf


# --- taus --------------------------------------------------------------------------------------

awkward = st.sampled_from([0.0, 5e-324, 0.1, 0.5, math.nextafter(0.5, 1), 0.68, 0.98, math.nextafter(1, 0), 1.0])


@given(st.lists(st.one_of(awkward, st.floats(0, 1)), min_size=2, max_size=12))
def test_taus_reproduce_the_bands_of_their_cuts(scores):
    s_r = np.array(scores)
    data = FittingSet(s_r, s_r, s_r)
    for a, b in itertools.combinations_with_replacement(range(data.places.size), 2):
        taus = data.taus(a, b)
        if taus is None:
            low = 0.0 if a == 0 else np.unique(s_r)[data.places[a] - 1]
            high = 1.0 if a == data.places.size - 1 else np.unique(s_r)[data.places[a]]
            assert a == b and high <= math.nextafter(low, 1), "only an interval without room for a number is impossible"
            continue
        bands = [Cascade(*taus, 0.5, 0.5).band(x) for x in scores]
        rank = data.before
        wanted = ["below" if r < data.rows[a] else "above" if r >= data.rows[b] else "inside" for r in rank]
        assert bands == wanted


def test_taus_are_short_numbers_between_the_scores():
    data = FittingSet(np.array([0.1, 0.3333333, 0.71, 0.9]), np.zeros(4), np.zeros(4))
    assert data.taus(1, 3) == (0.22, 0.8)
    assert data.taus(0, 4) == (0.0, 1.0)


def test_many_scores_are_cut_at_quantiles():
    data = FittingSet(*noisy(3000), also=(PAPER,))
    assert 195 <= data.places.size <= 203
    assert data.rows[0] == 0 and data.rows[-1] == 3000
    assert np.diff(data.rows)[1:-1].max() < 2 * 3000 / 200, "but for the heaps of equal scores at 0 and 1"
    assert np.count_nonzero(data.s_r < 0.68) in data.rows
    assert np.count_nonzero(data.s_r <= 0.98) in data.rows


@pytest.mark.parametrize("seed", range(4))
def test_cuts_between_the_quantiles_are_found(seed):
    """A reranker that is right in a narrow interval, whose ends lie between the quantiles."""
    rng = np.random.default_rng(seed)
    s_r = rng.random(300)
    y = np.where((s_r > 0.52) & (s_r < 0.61), s_r, rng.random(300))
    data = FittingSet(s_r, np.clip(y + rng.normal(0, 0.3, 300), 0, 1), y, most_cuts=20)
    best = max(search(data, Effort(pairs=24, shares=0), 1.0), key=lambda point: point.spearman)
    low, high = (np.sort(s_r[np.abs(s_r - tau) < 0.05]) for tau in (best.cascade.tau_a, best.cascade.tau_b))
    others = (Cascade(a, b, best.cascade.w1, best.cascade.w2) for a in low for b in high if a <= b)
    assert max(data.evaluate(cascade).spearman for cascade in others) <= best.spearman + 1e-3


# --- the fit -----------------------------------------------------------------------------------


def test_fitted_interval_is_where_the_reranker_is_right():
    s_r, s_j, y = middling()
    fit = fitted(s_r, s_j, y)
    assert fit.spearman == pytest.approx(1.0, abs=EXACT)
    asked = (s_r < 0.4) | (s_r > 0.8)
    assert [fit.cascade.needs_judge(x) for x in s_r] == asked.tolist()
    assert fit.escalated_frac == asked.mean()


@pytest.mark.slow
def test_perfect_reranker_never_escalates_and_random_one_always_does():
    _, s_j, y = noisy(60)
    noise = np.random.default_rng(1).random(60)
    never = fitted(y, noise, y)
    assert (never.escalated_frac, never.spearman) == (0.0, pytest.approx(1.0))
    always = fitted(noise, y, y)
    assert always.spearman == pytest.approx(1.0)
    assert always.escalated_frac > 0.9


def test_equal_rho_prefers_fewer_judge_calls():
    _, _, y = noisy(40)
    assert fitted(y, y, y).escalated_frac == 0.0


def by_hand(s_r, s_j, y, weights):
    """The highest rho over every pair of cuts and the weights, one cascade and one reply at a time."""
    values = sorted(set(s_r))
    between = [-1.0, *((a + b) / 2 for a, b in itertools.pairwise(values)), 2.0]
    ranks_y = rankdata(y)
    best = -1.0
    for a, b in itertools.combinations_with_replacement(between, 2):
        for w1, w2 in itertools.product(weights, repeat=2):
            r = [
                w1 * x + (1 - w1) * z if x < a else w2 * x + (1 - w2) * z if x > b else x
                for x, z in zip(s_r, s_j, strict=True)
            ]
            if len(set(r)) > 1:
                best = max(best, np.corrcoef(rankdata(r), ranks_y)[0, 1])
    return best


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("r_steps", "j_steps"), [(5, 2), (4, 40)])
def test_fit_is_at_least_as_good_as_a_coarser_grid(seed, r_steps, j_steps):
    s_r, s_j, y = noisy(24, seed)
    s_r, s_j = np.round(s_r * r_steps) / r_steps * 0.98 + 0.01, np.round(s_j * j_steps) / j_steps
    best = by_hand(s_r.tolist(), s_j.tolist(), y.tolist(), [i / 10 for i in range(11)])
    assert fitted(s_r, s_j, y).spearman >= best - 1e-3


scores = st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.5, 1.0]), st.integers(0, 20).map(lambda i: i / 20), awkward)
rows = st.lists(st.tuples(scores, scores, scores), min_size=20, max_size=32)


@pytest.mark.slow
@settings(max_examples=20)
@given(rows, st.sampled_from([None, 0.0, 0.2, 0.6]))
def test_reported_fit_figures_match_its_cascade(triples, most):
    s_r, s_j, y = (np.array(column) for column in zip(*triples, strict=True))
    assume(min(np.ptp(s_r), np.ptp(s_j), np.ptp(y)) > 0)
    fit = fitted(s_r, s_j, y, max_escalated_frac=most)
    limit = 1.0 if most is None else most

    # applied by the router's own code it gives the same figures again
    applied = [fit.cascade.mix(r, j if fit.cascade.needs_judge(r) else None) for r, j in triples_of(s_r, s_j)]
    assert spearmanr(applied, y).statistic == pytest.approx(fit.spearman, abs=1e-9)
    assert np.mean([fit.cascade.needs_judge(r) for r in s_r]) == pytest.approx(fit.escalated_frac, abs=EXACT)
    assert fit.escalated_frac <= limit

    # never worse than what it competes with, where that may be had
    assert fit.spearman >= fit.reranker_only - 1e-9
    paper = fit.rows["paper's cascade"]
    if paper.spearman is not None and paper.escalated_frac <= limit:
        assert fit.spearman >= paper.spearman - 1e-9
    gaps = np.diff(np.unique(np.concatenate([[0.0], s_r, [1.0]])))
    if limit == 1.0 and gaps.max() > 1e-9:
        assert fit.spearman >= fit.judge_only - 1e-9

    # the frontier rises in both, none of its points is beaten, and the fit is its last affordable one
    shares, rhos = [p.escalated_frac for p in fit.frontier], [p.spearman for p in fit.frontier]
    assert shares == sorted(set(shares)) and rhos == sorted(set(rhos))
    affordable = [p for p in fit.frontier if p.escalated_frac <= limit]
    assert (affordable[-1].cascade, affordable[-1].spearman) == (fit.cascade, fit.spearman)
    for point in fit.frontier:
        assert spearman(mix_scores(point.cascade, s_r, s_j), y) == pytest.approx(point.spearman, abs=EXACT)


def triples_of(s_r, s_j):
    return list(zip(s_r.tolist(), s_j.tolist(), strict=True))


@given(rows, st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_array_mix_equals_the_scalar_mix_bitwise(triples, a, b, w1, w2):
    s_r, s_j, _ = (np.array(column) for column in zip(*triples, strict=True))
    cascade = Cascade(min(a, b), max(a, b), w1, w2)
    assert mix_scores(cascade, s_r, s_j).tolist() == [cascade.mix(r, j) for r, j in triples_of(s_r, s_j)]


# --- bounds, rows, validation ------------------------------------------------------------------


@pytest.mark.slow
def test_cost_bound_limits_judge_calls():
    data = noisy(120)
    dear = fitted(*data, max_cost=4.0, judge_cost=10.0, reranker_cost=1.0)
    share = fitted(*data, max_escalated_frac=0.3)
    assert (dear.cascade, dear.most_escalated) == (share.cascade, pytest.approx(0.3))
    row = dear.rows["fit"]
    assert row.cost == pytest.approx(1.0 + 10.0 * dear.escalated_frac)
    assert row.cost <= 4.0
    both = fitted(*data, max_cost=4.0, max_escalated_frac=0.1)
    assert both.escalated_frac <= 0.1


@pytest.mark.slow
def test_table_rows_match_their_labels():
    s_r, s_j, y = noisy(80)
    fit = fitted(s_r, s_j, y)
    assert fit.reranker_only == pytest.approx(spearmanr(s_r, y).statistic, abs=EXACT)
    assert fit.judge_only == pytest.approx(spearmanr(s_j, y).statistic, abs=EXACT)
    nearest = [min((0.0, 0.5, 1.0), key=lambda v: abs(v - s)) for s in s_j]
    assert fit.hard_judge == pytest.approx(spearmanr(nearest, y).statistic, abs=EXACT)
    paper = [PAPER.mix(r, j) for r, j in triples_of(s_r, s_j)]
    assert fit.paper == pytest.approx(spearmanr(paper, y).statistic, abs=EXACT)
    assert (PAPER.tau_a, PAPER.tau_b, PAPER.w1, PAPER.w2) == (0.68, 0.98, 0.05, 0.72)
    asked = {name: (row.escalated_frac, row.cost) for name, row in fit.rows.items() if row.cascade is None}
    assert asked == {
        "reranker only": (0.0, 1.0),
        "hard judge (S_J rounded)": (1.0, 10.0),
        "soft judge": (1.0, 10.0),
    }


@pytest.mark.slow
def test_given_verdicts_are_used_and_constant_verdicts_have_no_rho():
    s_r, s_j, y = noisy(40)
    hard = np.where(y > 0.5, 1.0, 0.0)
    assert fitted(s_r, s_j, y, hard=hard).hard_judge == pytest.approx(spearmanr(hard, y).statistic, abs=EXACT)
    assert fitted(s_r, s_j, y, hard=np.full(40, 0.5)).hard_judge is None


@pytest.mark.slow
def test_cross_validation_rejects_noise_and_keeps_signal():
    lucky = [calibrate(*np.random.default_rng(i).random((3, 30)), folds=3, resamples=0) for i in range(4)]
    assert np.mean([fit.spearman for fit in lucky]) > 0.25
    assert np.mean([fit.cv_spearman for fit in lucky]) < np.mean([fit.spearman for fit in lucky]) - 0.2
    sound = calibrate(*middling(201), folds=4, resamples=0)
    assert sound.cv_spearman > 0.98
    assert fitted(*middling()).cv_spearman is None


@pytest.mark.slow
def test_interval_is_reproducible_and_contains_the_rho():
    data = noisy(60)
    first, again = (calibrate(*data, folds=0, resamples=40, seed=4) for _ in range(2))
    assert first.interval == again.interval
    assert first.interval[0] < first.spearman < first.interval[1]
    assert fitted(*data).interval is None


@pytest.mark.slow
def test_profiles_include_the_fitted_point():
    data = noisy(80)
    fit = fitted(*data)
    for profile, tau in zip(tau_profiles(*data, fit.cascade), (fit.cascade.tau_a, fit.cascade.tau_b), strict=True):
        assert dict(profile)[tau] == pytest.approx(fit.spearman, abs=EXACT)
        assert [t for t, _ in profile] == sorted({t for t, _ in profile})
        assert len(profile) > 5


R, J, Y = (column.tolist() for column in noisy(30))


@pytest.mark.parametrize(
    ("triples", "says"),
    [
        ((R[:19], J[:19], Y[:19]), "19 rows.*at least 20"),
        (([], [], []), "0 rows"),
        ((R, J[:29], Y), "unequal lengths"),
        (([*R[:29], math.nan], J, Y), r"s_r\[29\]: nan: is not a score"),
        ((R, [1.5, *J[1:]], Y), r"s_j\[0\]: 1.5: is not a score"),
        ((R, J, [*Y[:3], -0.1, *Y[4:]]), r"y\[3\]: -0.1: is not a score"),
        ((R, J, [*Y[:29], math.inf]), r"y\[29\]: inf"),
        (([0.4] * 30, J, Y), "s_r: 0.4: is the same in all 30 rows"),
        ((R, [0.5] * 30, Y), "s_j: 0.5: is the same"),
        ((R, J, [1.0] * 30), "y: 1.0: is the same"),
        ((R, J, ["high"] * 30), "y: .*list of numbers"),
        (([R, R], J, Y), "plain list"),
    ],
)
def test_invalid_triples_are_reported_in_one_line(triples, says):
    with pytest.raises(DataError, match=says) as error:
        calibrate(*triples)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_escalated_frac": 1.2}, r"max_escalated_frac: 1.2: must be a share"),
        ({"max_escalated_frac": math.nan}, "max_escalated_frac: nan"),
        ({"max_cost": 0.5}, "max_cost: 0.5: every row already costs reranker_cost=1"),
        ({"judge_cost": -1.0}, "judge_cost: -1.0: must be"),
        ({"reranker_cost": math.inf}, "reranker_cost: inf"),
        ({"folds": 1}, "folds: 1: must be 0 .* or at least 2"),
        ({"resamples": -5}, "resamples: -5"),
        ({"hard": [0.5] * 29}, "hard: '29 verdicts'"),
        ({"hard": [0.3] * 30}, r"hard\[0\]: 0.3: is not a verdict"),
    ],
)
def test_invalid_options_are_reported_in_one_line(options, says):
    with pytest.raises(BadInput, match=says):
        calibrate(R, J, Y, **options)


def test_interval_over_confidence_trusts_both_ends():
    """Scores near 0 and 1 are right, those in the middle say nothing: an interval over the score itself has to pay."""
    rng = np.random.default_rng(0)
    y = (rng.random(400) < 0.5).astype(float)
    sure = rng.random(400) < 0.7
    s_r = np.where(sure, 0.05 + 0.9 * y, 0.3 + 0.4 * rng.random(400)) + rng.uniform(-0.04, 0.04, 400)
    fit = calibrate(s_r, y, y, max_escalated_frac=0.35, folds=3, resamples=0, over="confidence")
    asked = np.abs(2.0 * s_r - 1.0)
    asked = (asked < fit.cascade.tau_a) | (asked > fit.cascade.tau_b)
    assert fit.escalated_frac == asked.mean() <= 0.35
    assert asked[~sure].all()
    mixed = [fit.cascade.mix(r, j, key=abs(2.0 * r - 1.0)) for r, j in zip(s_r, y, strict=True)]
    assert fit.spearman == pytest.approx(spearman(np.array(mixed), y))
    assert fit.cv_spearman > 0.8
    assert fit.spearman > calibrate(s_r, y, y, max_escalated_frac=0.35, folds=0, resamples=0).spearman + 0.02
