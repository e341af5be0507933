"""Cost of a scorer's answer, as recorded."""

from __future__ import annotations

import time

from hamr.config.pools import PoolConfig
from hamr.types import ScorerCall


def record_call(
    pool: str,
    config: PoolConfig,
    model: str,
    prompt_version: str,
    started: float,
    prompt_tokens: int,
    output_tokens: int = 0,
    cached_tokens: int = 0,
) -> ScorerCall:
    """Return the record of a call that began at `started` (monotonic seconds) and ends now, at the pool's price.

    The pool adds the replica and the queueing time.
    """
    return ScorerCall(
        pool=pool,
        model=model,
        prompt_version=prompt_version,
        service_s=time.monotonic() - started,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        cost=config.price_per_1k_tokens * (prompt_tokens + output_tokens) / 1000,
        cached_tokens=cached_tokens,
    )
