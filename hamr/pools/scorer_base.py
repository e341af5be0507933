"""Interface of a scorer, and the record of its calls."""

from __future__ import annotations

import time
from collections.abc import Sequence

from hamr.config.pools import PoolConfig
from hamr.types import Answer, Question, ScorerCall


class Scorer:
    """Interface of a scorer, run by each replica of a pool."""

    async def score(self, questions: Sequence[Question]) -> list[Answer]:
        """Return one answer per question, in order. An invalid model output is a failure in its answer.

        Raises EngineDied if the questions have to be sent to another replica.
        """
        raise NotImplementedError

    async def check(self) -> None:
        """Raise EngineDied if this scorer cannot answer any more. By default it always can."""

    def close(self) -> None:
        """Free what does not end with the process. By default nothing."""


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
