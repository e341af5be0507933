"""Keys, seeds and log-probabilities of rollouts."""

from __future__ import annotations

import math

from hamr.types import derive_seed
from hamr.types.rollouts import mean_logprob


def test_seeds_differ_by_sample_and_repeat_by_key() -> None:
    seeds = {derive_seed(0, step, "p", 0, i) for step in range(3) for i in range(4)}
    assert len(seeds) == 12 and derive_seed(0, 1, "p", 0, 2) == derive_seed(0, 1, "p", 0, 2)


def test_mean_logprob_needs_finite_tokens() -> None:
    assert mean_logprob((-1.0, -3.0)) == -2.0
    assert mean_logprob(()) is mean_logprob((-1.0, -math.inf)) is None
