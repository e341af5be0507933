"""Where Serve sends a hedged request's second try: to the next replica on the ring, not to the one that is late."""

from __future__ import annotations

from typing import Any

from ray.serve.experimental.consistent_hash_router import ConsistentHashRouter

from hamr.pools.client import SECOND


class SecondChoiceRouter(ConsistentHashRouter):
    """Ray's consistent hashing of sessions, where a session marked as SECOND is its twin's, one replica further on.

    Without it a second try would meet the first one's replica half of the time in a pool of two. Where only one
    replica is up there is no other, and the second try goes there.
    """

    def _routing_key(self, pending_request: Any) -> str | None:
        key = super()._routing_key(pending_request)
        return None if key is None else key.removesuffix(SECOND)

    async def choose_replicas(self, candidate_replicas: list[Any], pending_request: Any = None) -> list[list[Any]]:
        ranks = await super().choose_replicas(candidate_replicas, pending_request)
        key = super()._routing_key(pending_request)
        return [*ranks[1:], *ranks[:1]] if key is not None and key.endswith(SECOND) else ranks
