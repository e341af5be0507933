"""Options of `hamr evaluate benchmark=olabench` in addition to its files, policies and judges. Every default lives
here."""

from __future__ import annotations

from typing import Literal

from hamr.config.agents import AnswerConfig
from hamr.config.section import NonNegative, NonNegativeInt, PositiveFloat, PositiveInt, SampleCount, Seed


class OlabenchConfig(AnswerConfig):
    """Options of OlaBench."""

    cot: Literal["none", "pre", "post"] = "none"
    """Response format of the policies: the response alone, reasoning first, or the answer first. In post-CoT,
    generation stops at the end of the answer, as in a deployment, and latency is measured to there."""
    judged: Literal["subset", "all"] = "subset"
    """Judges of an item: those of its subset (core: dialogue, policy, tools; risk; hallucination), or all five, for
    data without subsets."""
    temperature: NonNegative = 0.0
    """Sampling temperature of the policies."""
    max_new_tokens: PositiveInt = 512
    """Maximum length of a response in tokens."""
    limit: PositiveInt | None = None
    """Maximum number of items and of labelled responses, for a quick check: the first of each file."""
    latency_items: NonNegativeInt = 50
    """Number of items that are asked first, one after the other: the reported latency is theirs. The latency of the
    others, under load, is reported separately. 0: none."""
    at_once: PositiveInt | None = None
    """Concurrent responses to the other items. null: the capacity of the policy's pool."""
    seed: Seed = 0
    """Determines the sampling and the resampling."""
    resamples: SampleCount = 1000
    """Resamples of the bootstrap intervals."""
    attempts: PositiveInt = 3
    """Attempts per question to a pool that temporarily refuses questions."""
    longest_wait_s: PositiveFloat = 60.0
    """Maximum wait between two attempts, if the pool states a retry time."""
