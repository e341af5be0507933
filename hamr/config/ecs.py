"""Options of `hamr evaluate benchmark=ecs` in addition to its files and judges. Every default lives here."""

from __future__ import annotations

from typing import Literal

from hamr.config.agents import AnswerConfig
from hamr.config.section import NonNegative, PositiveFloat, PositiveInt, SampleCount, Seed


class EcsConfig(AnswerConfig):
    """Options of the Ensemble-Consistency Score."""

    scores: Literal["hard", "soft"] = "hard"
    """`hard`: the label of a judge as 1, 0.5 or 0. `soft`: P(yes) + 0.5 P(part) of the labels, if the judge returns
    probabilities. The votes are stored with both, so the other is available without new calls."""
    stage: str = "rl"
    """Stage of a run folder whose responses to the test split are scored (base, sft, rl)."""
    temperature: NonNegative = 0.0
    """Sampling temperature of the policy."""
    max_new_tokens: PositiveInt = 512
    """Maximum length of a response of the policy in tokens."""
    seed: Seed = 0
    """Determines the sampling and the resampling."""
    resamples: SampleCount = 1000
    """Resamples of the bootstrap intervals and of the permutation test."""
    attempts: PositiveInt = 3
    """Attempts per question to a pool that temporarily refuses questions."""
    longest_wait_s: PositiveFloat = 60.0
    """Maximum wait between two attempts, if the pool states a retry time."""
