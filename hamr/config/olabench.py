"""What `hamr evaluate benchmark=olabench` takes beside its files, policies and judges. Every default lives here."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveFloat, PositiveInt

from hamr.config.section import NonNegative, Section


class OlabenchConfig(Section):
    """OlaBench's numbers."""

    cot: Literal["none", "pre", "post"] = "none"
    """How policies are asked to answer: the response alone, thinking first, or the answer first. In post-CoT generation
    stops at the answer's end, as it does in a deployment, and latency is measured to there."""
    judged: Literal["subset", "all"] = "subset"
    """Which judges see an item: those of its subset (core: dialogue, policy, tools; risk; hallucination), or all five,
    for data that has no subsets of its own."""
    temperature: NonNegative = 0.0
    max_new_tokens: PositiveInt = 512
    limit: PositiveInt | None = None
    """At most so many items, and so many labelled responses, for a look: the first of each file."""
    at_once: PositiveInt | None = None
    """Responses under way at a time; null: what the policy's pool can work on. Latency is measured under this load."""
    seed: int = 0
    resamples: PositiveInt = 1000
    """Of the bootstrap behind the intervals."""
    attempts: PositiveInt = 3
    """How often a question is put to a pool that takes none for a while."""
    longest_wait_s: PositiveFloat = 60.0
    """Between two of those attempts, where the pool says how long to leave it alone."""
