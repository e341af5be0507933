"""What `hamr evaluate benchmark=ecs` takes beside its files and judges. Every default lives here."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveFloat, PositiveInt

from hamr.config.section import Section


class EcsConfig(Section):
    """The Ensemble-Consistency Score's numbers."""

    scores: Literal["hard", "soft"] = "hard"
    """`hard`: a judge's label as 1, 0.5 or 0. `soft`: P(yes) + 0.5 P(part) of the labels, where the judge gives
    probabilities. The votes are kept with both, so that the other can be had without asking again."""
    stage: str = "rl"
    """Of a run folder: whose responses to the test split are taken (base, sft, rl)."""
    seed: int = 0
    resamples: PositiveInt = 1000
    """Of the bootstrap behind the intervals, and of the permutation test."""
    attempts: PositiveInt = 3
    """How often a question is put to a pool that takes none for a while."""
    longest_wait_s: PositiveFloat = 60.0
    """Between two of those attempts, where the pool says how long to leave it alone."""
