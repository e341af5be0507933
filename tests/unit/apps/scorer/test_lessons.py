"""What a scorer learns from."""

from __future__ import annotations

from hamr.apps.scorer.lessons import contrast_examples
from hamr.config.schema import SageDataConfig
from hamr.data.sage_samples import generate_samples


def test_half_right_replies_have_the_configured_target() -> None:
    train = generate_samples(SageDataConfig(train=60, validation=12, test=12)).train
    half, none = (contrast_examples(train, 200, part=part) for part in (0.5, 0.0))
    assert [(pair.a, pair.b) for pair in half] == [(pair.a, pair.b) for pair in none]
    changed = [(h, n) for h, n in zip(half, none, strict=True) if h != n]
    assert changed and {(h.target, n.target) for h, n in changed} == {(0.5, 0.0)}
    assert {pair.target for pair in none} == {0.0, 1.0}
