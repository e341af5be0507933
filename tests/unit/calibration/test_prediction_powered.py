"""Means corrected by audits are unbiased and their intervals hold, for copies and rare residuals too."""

import numpy as np
import pytest

from hamr.calibration.prediction_powered import FEWEST, DebiasedMean

RUNS = 400


def estimates(rng, *, prompts, copies, fooled, share, grouped):
    """Estimates and the true mean: each of `prompts` has `copies` responses, which are equal if `grouped`. `fooled` of
    the prompts or responses lose 0.8 of their value by the auditor."""
    shape = (prompts, 1) if grouped else (prompts, copies)
    value = np.broadcast_to(rng.beta(4.0, 1.5, shape), (prompts, copies))
    loss = np.broadcast_to(0.8 * value[:, : shape[1]] * (rng.random(shape) < fooled), (prompts, copies))
    audited = rng.random((prompts, copies)) < share
    means = DebiasedMean()
    for i, j in np.ndindex(prompts, copies):
        means.add(value[i, j], residual=-loss[i, j] if audited[i, j] else None, cluster=i if copies > 1 else None)
    return means.estimate()


@pytest.mark.parametrize("fooled", [0.0, 0.02, 0.15])
@pytest.mark.parametrize(
    ("prompts", "copies", "grouped"), [(600, 1, False), (100, 6, True)], ids=["independent", "copies"]
)
def test_interval_covers_the_mean_of_the_auditor(fooled, prompts, copies, grouped):
    rng = np.random.default_rng(0)
    true = 4.0 / 5.5 * (1.0 - 0.8 * fooled)
    found = [
        estimates(rng, prompts=prompts, copies=copies, fooled=fooled, share=0.15, grouped=grouped) for _ in range(RUNS)
    ]
    assert np.mean([f["low"] <= true <= f["high"] for f in found]) >= 0.93
    means = [f["mean"] for f in found]
    assert np.mean(means) == pytest.approx(true, abs=3.0 * np.std(means) / RUNS**0.5)


def test_agreeing_audits_leave_an_interval():
    means = DebiasedMean()
    for _ in range(FEWEST):
        means.add(0.5, residual=0.0)
    found = means.estimate()
    assert found["mean"] == 0.5
    assert found["high"] - found["low"] == pytest.approx(2 * 2.093 * 0.5 / 21, abs=1e-3)


def test_copies_in_too_few_clusters_give_no_interval():
    means = DebiasedMean()
    for i in range(200):
        means.add(0.5, residual=0.1, cluster=i % (FEWEST - 1))
    assert means.estimate() == {}


def test_limits_bound_the_interval():
    grades = DebiasedMean(limits=(1.0, 5.0), unseen=2.0)
    for i in range(FEWEST):
        grades.add(4.9, residual=0.3 * (i % 2))
    assert grades.estimate()["high"] == 5.0
    assert grades.estimate()["low"] >= 1.0
