"""Customers of `env=sage` that pools of the run word and read."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from hamr.bench.sage.pool_customers import PoolCustomers
from hamr.cascade.cached_pool import CachedPool
from hamr.cascade.retry import patient
from hamr.config.schema import Config
from hamr.protocols import Ask
from hamr.types import Answer, Question


def pool_customers(config: Config, pools: Mapping[str, Ask]) -> PoolCustomers | None:
    """Return the customers of the pools `env.simulator` and `env.reader`; None if the template speaks for them."""
    writer, reader, options = config.env.simulator, config.env.reader, config.experiment.sage
    if reader is None:
        return None
    deadline_s = config.rollout.deadline_s
    write = _share_answers(patient(pools[writer], options), deadline_s)
    return PoolCustomers(write=write, read=_share_answers(pools[reader], deadline_s), options=options)


def _share_answers(ask: Ask, deadline_s: float) -> Ask:
    """Return an `Ask` that the dialogues of a group share: each distinct question is sent once."""
    cached = CachedPool(ask, deadline_s=deadline_s)

    async def ask_once(question: Question) -> Answer:
        reply = await cached.ask(question, until=asyncio.get_running_loop().time() + deadline_s)
        return reply.answer

    return ask_once
