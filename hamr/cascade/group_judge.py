"""Collect the responses of a group for a comparative judge or a batched function, with a bounded wait.

The first response of a group opens a round. The round closes when all siblings have arrived or declined, or after
`wait_s`. The responses present are then judged. A later response opens another round: it is shown together with the
responses already judged, whose verdicts are final.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from hamr.cascade.cached_pool import unpaid
from hamr.types import Failure, JudgeTimeout, SampleKey, ScorerCall, ServiceSample

Response = TypeVar("Response", bound=Hashable)
"""A response as the judge sees it. Equal ones are judged once."""
Result = TypeVar("Result")
"""A judgement, or what a function returns."""

LATE = JudgeTimeout(detail="the response's deadline passed before its group was judged")
KEEP_S = 3600.0
"""A group whose siblings never arrive is dropped after this time."""


@dataclass(frozen=True, kw_only=True)
class GroupVerdict(Generic[Result]):
    """Verdict or failure of one response, with its calls."""

    result: Result | Failure
    calls: tuple[ScorerCall, ...] = ()


@dataclass(frozen=True, kw_only=True)
class GroupAnswers(Generic[Result]):
    """Verdicts or failures of the responses in one prompt, in their order. `calls` are shared by all of them."""

    results: tuple[Result | Failure, ...]
    calls: tuple[ScorerCall, ...] = ()


GroupKey = tuple[object, ...]
Compare = Callable[[ServiceSample, GroupKey, Sequence[Response], float], Awaitable[GroupAnswers[Result]]]
"""(sample, group, distinct responses, deadline in event loop time) -> a result per response."""


@dataclass(eq=False)
class _Round(Generic[Response, Result]):
    """Members that wait for one judgement. `until` is the latest of their deadlines."""

    members: dict[int, Response] = field(default_factory=dict)
    until: float = 0.0
    task: asyncio.Task[dict[int, GroupVerdict[Result]]] | None = None


@dataclass(eq=False)
class _Group(Generic[Response, Result]):
    """`came`: response by sample, None for a sibling that does not participate."""

    size: int
    came: dict[int, Response | None] = field(default_factory=dict)
    complete: asyncio.Event = field(default_factory=asyncio.Event)
    open: _Round[Response, Result] | None = None
    end: asyncio.TimerHandle | None = None

    def enter(self, member: int, response: Response | None) -> None:
        self.came[member] = response
        if len(self.came) >= self.size:
            self.complete.set()


def group_of(key: SampleKey) -> GroupKey:
    """Return the part of the key that siblings share: all but the sample."""
    return key.run, key.step, key.prompt, key.attempt


class GroupJudge(Generic[Response, Result]):
    """One comparative judge or batched function and its groups. Bound to one event loop."""

    def __init__(
        self,
        compare: Compare[Response, Result],
        *,
        wait_s: float,
        most: int,
        late: Failure = LATE,
    ) -> None:
        """Compare at most `most` (>= 2) distinct responses in one prompt. More are split evenly. `late` is the result
        of a response whose deadline passes."""
        self._compare, self._wait_s, self._most, self._late = compare, wait_s, most, late
        self._groups: dict[GroupKey, _Group[Response, Result]] = {}
        self._tasks: set[asyncio.Task[dict[int, GroupVerdict[Result]]]] = set()

    async def judge(
        self, sample: ServiceSample, key: SampleKey, siblings: int, response: Response, until: float
    ) -> GroupVerdict[Result]:
        """Return the verdict on one response of a group of `siblings`, compared with those that arrive in time."""
        group = self._group(key, siblings)
        # Open the round before the group can complete, so that the last member finds it.
        current = group.open
        if current is None:
            current = group.open = _Round()
            current.task = asyncio.create_task(self._run(group_of(key), group, current, sample))
            self._tasks.add(current.task)
            current.task.add_done_callback(self._tasks.discard)
        current.members[key.sample] = response
        current.until = max(current.until, until)
        group.enter(key.sample, response)
        assert current.task is not None
        try:
            async with asyncio.timeout_at(until):
                verdicts = await asyncio.shield(current.task)
        except TimeoutError:
            return GroupVerdict(result=self._late)
        return verdicts[key.sample]

    def decline(self, key: SampleKey, siblings: int) -> None:
        """Record that this response will not be judged here. Its siblings do not wait for it."""
        group = self._group(key, siblings)
        group.enter(key.sample, None)
        if group.open is None and group.complete.is_set():
            self._forget(group_of(key), group)

    async def close(self) -> None:
        """Cancel the rounds in progress."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for name, group in list(self._groups.items()):
            self._forget(name, group)

    def _group(self, key: SampleKey, siblings: int) -> _Group[Response, Result]:
        name = group_of(key)
        if name not in self._groups:
            self._groups[name] = group = _Group[Response, Result](size=siblings)
            group.end = asyncio.get_running_loop().call_later(KEEP_S, self._forget, name, group)
        return self._groups[name]

    def _forget(self, name: GroupKey, group: _Group[Response, Result]) -> None:
        # The timer holds a reference to the texts of the group, so cancel it too.
        if group.end is not None:
            group.end.cancel()
        if self._groups.get(name) is group:
            del self._groups[name]

    async def _run(
        self, name: GroupKey, group: _Group[Response, Result], mine: _Round[Response, Result], sample: ServiceSample
    ) -> dict[int, GroupVerdict[Result]]:
        try:
            async with asyncio.timeout(self._wait_s):
                await group.complete.wait()
        except TimeoutError:
            pass  # the members present are judged
        group.open = None
        if group.complete.is_set():
            self._forget(name, group)
        # By sample, not by arrival: the same responses give the same prompt.
        came = [response for _, response in sorted({**group.came, **mine.members}.items()) if response is not None]
        waiting = set(mine.members.values())
        chunks = [c for c in deal(list(dict.fromkeys(came)), self._most, name) if waiting.intersection(c)]
        answers = await asyncio.gather(*(self._compare(sample, name, chunk, mine.until) for chunk in chunks))
        verdicts: dict[int, GroupVerdict[Result]] = {}
        for chunk, asked in zip(chunks, answers, strict=True):
            verdicts |= _share_out(chunk, asked, mine.members)
        return verdicts


def order(count: int, *key: object) -> list[int]:
    """Return a shuffle of range(count) that depends only on `key`.

    Judges have a position bias, so the position of a response must neither depend on its arrival nor be the same in
    every prompt.
    """
    seed = hashlib.sha256("/".join(map(str, key)).encode("utf-8", "surrogatepass")).digest()
    places = list(range(count))
    random.Random(seed).shuffle(places)
    return places


def deal(responses: Sequence[Response], most: int, name: GroupKey) -> list[list[Response]]:
    """Split distinct responses into as few prompts of at most `most` as possible, with sizes that differ by at most
    one."""
    prompts = -(-len(responses) // most)
    if prompts <= 1:
        return [list(responses)] if responses else []
    shuffled = [responses[i] for i in order(len(responses), *name, "deal")]
    return [shuffled[i::prompts] for i in range(prompts)]


def _share_out(
    chunk: Sequence[Response], asked: GroupAnswers[Result], members: dict[int, Response]
) -> dict[int, GroupVerdict[Result]]:
    """Return the verdict of each member. Time and cost of the shared calls are recorded once, for the first member."""
    results = dict(zip(chunk, asked.results, strict=True))
    verdicts: dict[int, GroupVerdict[Result]] = {}
    for member, response in sorted(members.items()):
        if response in results:
            calls = tuple(unpaid(c) for c in asked.calls) if verdicts else asked.calls
            verdicts[member] = GroupVerdict(result=results[response], calls=calls)
    return verdicts
