"""Barrier that collects the reranker scores of a whole group before its first judge call.

A response that needs the judge waits until the slowest sibling is generated and reranked, at most `wait_s` from the
first such response. If the group is incomplete by then, Eq. 4 applies to all of it, and also to later responses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from hamr.cascade.consistency import to_judge
from hamr.cascade.group_aware import Span, skippable, value_span
from hamr.cascade.group_judge import KEEP_S, GroupKey, group_of
from hamr.config.cascade_controller import GroupAwareConfig
from hamr.config.schema import ConsistencyConfig
from hamr.types import ReferenceScore, SampleKey


@dataclass(eq=False)
class _Group:
    """`spared`: the samples that need no judge, once decided."""

    size: int
    spared: asyncio.Future[frozenset[int]]
    spans: dict[int, Span] = field(default_factory=dict)
    timers: list[asyncio.TimerHandle] = field(default_factory=list)


class GroupBarriers:
    """Barriers of the groups in progress. Bound to one event loop."""

    def __init__(self, config: GroupAwareConfig, *, wait_s: float) -> None:
        self._config, self._wait_s = config, wait_s
        self._groups: dict[GroupKey, _Group] = {}

    def settle(self, key: SampleKey, siblings: int, span: Span) -> None:
        """Record a response that needs no judge. Its siblings may be waiting for its total."""
        self._enter(key, siblings, span)

    async def can_skip_judge(self, key: SampleKey, siblings: int, span: Span, until: float) -> bool:
        """Return True if this response, which Eq. 4 sends to the judge, may be skipped. Waits for its siblings."""
        group = self._enter(key, siblings, span)
        if not group.spared.done() and len(group.timers) < 2:
            timer = asyncio.get_running_loop().call_later(self._wait_s, _settle, group, frozenset())
            group.timers.append(timer)
        try:
            async with asyncio.timeout_at(until):
                # Shielded: a cancelled sibling must not cancel the result of the others.
                return key.sample in await asyncio.shield(group.spared)
        except TimeoutError:
            return False

    def close(self) -> None:
        """Release all waiting responses. They are judged."""
        for name in list(self._groups):
            self._forget(name)

    def _enter(self, key: SampleKey, siblings: int, span: Span) -> _Group:
        name, loop = group_of(key), asyncio.get_running_loop()
        if name not in self._groups:
            self._groups[name] = _Group(size=siblings, spared=loop.create_future())
            self._groups[name].timers.append(loop.call_later(KEEP_S, self._forget, name))
        group = self._groups[name]
        group.spans[key.sample] = span
        if len(group.spans) >= group.size:
            # By sample, not by arrival: the same group has the same result.
            samples = sorted(group.spans)
            rules = self._config
            chosen = skippable(
                [group.spans[i] for i in samples], tolerance=rules.tolerance, equal_within=rules.equal_within
            )
            _settle(group, frozenset(samples[i] for i in chosen))
            self._forget(name)
        return group

    def _forget(self, name: GroupKey) -> None:
        group = self._groups.pop(name)
        _settle(group, frozenset())
        for timer in group.timers:
            timer.cancel()


@dataclass(frozen=True, kw_only=True)
class GroupBarrier:
    """Barrier of one response. `offset`: the sum of its other components. `until`: end of the wait."""

    gathering: GroupBarriers
    key: SampleKey
    siblings: int
    offset: float
    until: float

    def settle(self, value: float, config: ConsistencyConfig) -> None:
        """Record a consistency reward that is known without a scorer."""
        total = self.offset + config.weight * value
        self.gathering.settle(self.key, self.siblings, Span(low=total, high=total))

    async def can_skip_judge(self, scores: Sequence[ReferenceScore], config: ConsistencyConfig) -> bool:
        """Return True if the judge may be skipped, given the reranker scores. False if the reranker failed."""
        failed = any(score.s_r is None for score in scores)
        low, high = (0.0, 1.0) if failed else value_span(scores, config)
        wanted = not failed and bool(to_judge(scores, config))
        span = Span(low=self.offset + config.weight * low, high=self.offset + config.weight * high, open=wanted)
        if wanted:
            return await self.gathering.can_skip_judge(self.key, self.siblings, span, self.until)
        self.gathering.settle(self.key, self.siblings, span)
        return False


def _settle(group: _Group, spared: frozenset[int]) -> None:
    if not group.spared.done():
        group.spared.set_result(spared)
