"""Serve request router that sends a hedged request to the next replica on the ring, not to the late one."""

from __future__ import annotations

from typing import Any

from ray.serve.experimental.consistent_hash_router import ConsistentHashRouter

from hamr.pools.client import SECOND


class HedgeRouter(ConsistentHashRouter):
    """Ray's consistent hashing of sessions; a session marked SECOND goes one replica further than its twin.

    Without it, a hedged request in a pool of two would go to the late replica half of the time. If only one replica is
    up, the hedged request goes to that one.
    """

    def _routing_key(self, pending_request: Any) -> str | None:
        key = super()._routing_key(pending_request)
        return None if key is None else key.removesuffix(SECOND)

    async def choose_replicas(self, candidate_replicas: list[Any], pending_request: Any = None) -> list[list[Any]]:
        ranks = await super().choose_replicas(candidate_replicas, pending_request)
        key = super()._routing_key(pending_request)
        return [*ranks[1:], *ranks[:1]] if key is not None and key.endswith(SECOND) else ranks
