"""The correction by audits: what it estimates, shrinks and forgets, and that it is the same after a resume."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hamr.calibration.audit_correction import AuditCorrection, Residual, strata

FOOLED = strata(0.9, (0.5, 1.0), {"length": 3, "markup": 1})
HONEST = strata(0.9, (0.5, 1.0), {"length": 1, "markup": 0})


def audit(names, residual, step=0):
    return Residual(step=step, strata=names, residual=residual)


def test_score_bins_divide_the_interval():
    assert [strata(s, (0.5, 1.0), {})[0][-1] for s in (0.5, 0.61, 0.75, 0.85, 1.0)] == ["0", "1", "2", "3", "4"]
    assert strata(0.7, (0.7, 0.7), {"length": 2}) == ("score=0", "length=2", "score=0 length=2")


def test_correction_without_audits_is_exactly_zero():
    model = AuditCorrection()
    model.update(3, [])
    assert model.shift(FOOLED) == 0.0


def test_correction_of_a_style_spares_other_replies_of_the_same_score():
    model = AuditCorrection()
    rng = random.Random(0)
    drawn = [FOOLED if rng.random() < 0.2 else HONEST for _ in range(300)]
    model.update(1, [audit(names, (-0.6 if names is FOOLED else 0.0) + rng.gauss(0, 0.1)) for names in drawn])
    assert model.shift(FOOLED) == pytest.approx(-0.6, abs=0.06)
    assert model.shift(HONEST) == pytest.approx(0.0, abs=0.06)


def test_style_that_only_words_show_has_a_level_of_its_own():
    """Word 7 marks the style among words that all replies draw from. No visible feature differs."""
    model, rng = AuditCorrection(), random.Random(0)

    def drawn(word):
        return tuple(sorted({word, *rng.sample(range(20, 60), 6)}))

    audits = [Residual(step=0, strata=HONEST, residual=-0.5, words=drawn(7)) for _ in range(20)]
    audits += [Residual(step=0, strata=HONEST, residual=rng.gauss(0.0, 0.1), words=drawn(8)) for _ in range(80)]
    assert model.word_level(audits[0].words) == model.word_level(()) == 3, "predicts 0 before any audit"
    model.update(1, audits)
    assert {model.word_level(drawn(7)) for _ in range(20)} <= {0, 1}
    assert {model.word_level(drawn(8)) for _ in range(20)} <= {2, 3}
    resumed = AuditCorrection()
    resumed.restore(1, json.loads(json.dumps(model.state())))
    assert resumed.word_level(audits[0].words) == model.word_level(audits[0].words)


@pytest.mark.parametrize("count", [1, 3, 10, 100])
def test_single_stratum_is_a_shrunk_mean(count):
    """With one stratum per reply the equations are solved by hand: the mean first, then the stratum."""
    model = AuditCorrection(prior_audits=5.0, half_life=10.0)
    model.update(0, [audit(("a",), -0.5)] * count)
    mean = -0.5 * count / (count + 5.0)
    assert model.shift(("a",)) == pytest.approx(mean + (-0.5 - mean) * count / (count + 5.0))
    assert model.shift(("unseen",)) == pytest.approx(mean)


def test_audits_lose_weight_with_age_and_are_removed():
    model = AuditCorrection(prior_audits=0.001, half_life=10.0)
    model.update(1, [audit(("a",), 1.0, step=0)] * 10)
    model.update(11, [audit(("a",), 0.0, step=10)] * 10)
    assert model.shift(("a",)) == pytest.approx(1 / 3, abs=0.01)
    model.update(100, [])
    assert (model.audits, model.shift(("a",))) == (0, 0.0)


residuals = st.lists(
    st.tuples(st.sampled_from([FOOLED, HONEST]), st.floats(-1, 1), st.integers(0, 5)), max_size=30
).map(lambda rows: [audit(names, own, step) for names, own, step in sorted(rows, key=lambda row: row[2])])


@given(residuals)
def test_corrections_are_bounded_and_identical_after_a_resume(audits):
    model, resumed = AuditCorrection(), AuditCorrection()
    model.update(6, audits)
    resumed.restore(6, json.loads(json.dumps(model.state())))
    for names in (FOOLED, HONEST, ("other",)):
        assert resumed.shift(names) == model.shift(names)
        assert abs(model.shift(names)) <= 1.5
