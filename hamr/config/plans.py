"""Options of `hamr evaluate benchmark=plans` in addition to its files, policies and judge. Every default lives here."""

from __future__ import annotations

from typing import Literal

from hamr.config.section import NonNegative, PositiveFloat, PositiveInt, Section, Seed


class PlansConfig(Section):
    """Options of the evaluation of plans."""

    prompt: Literal["planning", "training"] = "planning"
    """`planning`: the first paper's planning prompt (D.3.1), for any model. `training`: the prompt that the items of
    `hamr data patm` are trained with."""
    temperature: NonNegative = 0.0
    """Sampling temperature of the policy."""
    max_new_tokens: PositiveInt = 1024
    """Maximum length of a plan in tokens."""
    seed: Seed = 0
    """Determines the sampling."""
    attempts: PositiveInt = 3
    """Attempts per question to a pool that temporarily refuses questions, and per answer of the judge that cannot be
    parsed."""
    longest_wait_s: PositiveFloat = 60.0
    """Maximum wait between two attempts, if the pool states a retry time."""
