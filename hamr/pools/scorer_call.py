"""What a scorer's answer cost, as it is recorded."""

from __future__ import annotations

import time

from hamr.config.pools import PoolConfig
from hamr.types import ScorerCall


def bill(
    pool: str,
    config: PoolConfig,
    model: str,
    prompt_version: str,
    started: float,
    prompt_tokens: int,
    output_tokens: int = 0,
    cached_tokens: int = 0,
) -> ScorerCall:
    """A call that began at `started` (monotonic seconds) and ends now, at the pool's price. Which replica it was, and
    how long the question waited for it, is added by the pool."""
    return ScorerCall(
        pool=pool,
        model=model,
        prompt_version=prompt_version,
        replica="",
        queue_s=0.0,
        service_s=time.monotonic() - started,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        cost=config.price_per_1k_tokens * (prompt_tokens + output_tokens) / 1000,
        cached_tokens=cached_tokens,
    )
