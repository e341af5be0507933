"""Groups in flight between the prompt stream and the training step.

Asynchronous training generates and scores while the trainer works: at most (max_policy_age + 1) x batch groups are in
flight, ready or in training. A step takes the oldest ready ones, so a group that starts under policy version v is
trained on by version v + max_policy_age, unless later groups overtake it. This is the capacity rule of AReaL (Fu et
al., "AReaL", 2025).

On-policy oversampling starts more groups than a step needs, takes the first that end, and aborts the others. If they
are kept instead, they are up to some versions old: `DynamicSamplingConfig.bounds`.
"""

from __future__ import annotations

import asyncio
import math
from bisect import insort
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from hamr.data.stream import PromptStream
from hamr.types import Failure, RolloutGroup, ServiceSample

ATTEMPTS = 2
"""Attempts that one draw may use: its own, and one for further samples of an all-wrong group."""


def whole_groups(batches: float, batch: int) -> int:
    """Return the number of groups of so many batches, rounded up.

    >>> whole_groups(1.1, 50)  # 1.1 * 50 is above 55 in floating point
    55
    """
    return math.ceil(batches * batch - 1e-9)


@dataclass(frozen=True, kw_only=True)
class Draw:
    """One draw of a prompt. `step` and `attempt` are those of its responses' keys. `dropped`: its group was scored and
    not kept, before the run was interrupted."""

    step: int
    sample: ServiceSample
    attempt: int
    dropped: bool = False


class Experience:
    """Groups of one training run between the prompt stream and the training step.

    Args:
        produce: Generates and scores the group of a draw.
        keeps: Returns whether a scored group stays. Others are replaced immediately.
        prompts: Source of the draws.
        batch: Number of groups that a step trains on.
        max_policy_age: Bound on the number of policy versions between sampling and training. 0: the groups that a step
            does not take are aborted, and nothing starts during training.
        oversample: Groups in flight, ready or taken per group that a step trains on, besides `max_policy_age` of them.
        concurrent: Maximum number of groups that are being generated or scored. None: no bound of its own.
        steps: Last step. No group starts that no step can train on. None: unknown.
        unfinished: `state()` of an interrupted run. Its draws start first, with the same keys. Aborted ones get the new
            keys that they would have got.
    """

    def __init__(
        self,
        produce: Callable[[Draw], Awaitable[RolloutGroup]],
        keeps: Callable[[RolloutGroup], bool],
        prompts: PromptStream,
        *,
        batch: int,
        max_policy_age: int,
        oversample: float = 1.0,
        concurrent: int | None = None,
        steps: int | None = None,
        unfinished: Iterable[Mapping[str, Any]] = (),
    ) -> None:
        self.max_policy_age = max_policy_age
        self._produce, self._keeps, self._prompts = produce, keeps, prompts
        self._batch, self._oversample = batch, oversample
        self._concurrent, self._steps = concurrent or math.inf, steps or math.inf
        self._closed = False
        self._again: deque[Draw] = deque()
        self._aborted: deque[Draw] = deque()
        for entry in unfinished:
            sample = prompts.find(entry["prompt"])
            draw = Draw(step=entry["step"], sample=sample, attempt=entry["attempt"], dropped=entry["dropped"])
            (self._aborted if entry["aborted"] else self._again).append(draw)
        self._step = 0
        self._attempts: Counter[str] = Counter()
        self.redrawn: set[str] = set()
        """Prompts that this step has drawn because the one before had aborted them."""
        self._count = 0
        self._running: dict[asyncio.Task[tuple[RolloutGroup, bool]], tuple[int, Draw]] = {}
        self._ready: list[tuple[int, Draw, RolloutGroup]] = []
        self._dropped: list[tuple[Draw, RolloutGroup]] = []
        self._training = 0
        self._changed = asyncio.Event()
        self._error: BaseException | None = None

    @property
    def in_flight(self) -> int:
        """Number of groups that are being generated or scored."""
        return len(self._running)

    @property
    def open_draws(self) -> list[Draw]:
        """Draws whose groups no step has taken, oldest first, without aborted ones."""
        ended = [(number, draw) for number, draw, _ in self._ready]
        draws = [draw for _, draw in sorted([*self._running.values(), *ended], key=lambda pair: pair[0])]
        return [*(replace(draw, dropped=True) for draw, _ in self._dropped), *draws, *self._again]

    def take_dropped(self) -> list[RolloutGroup]:
        """Return the groups dropped since the last call of this or of `take`."""
        dropped, self._dropped = [group for _, group in self._dropped], []
        return dropped

    async def take(self, step: int, wanted: int, limit: int) -> tuple[list[RolloutGroup], list[RolloutGroup], int]:
        """Wait for `wanted` groups. Return the oldest ready ones, the groups dropped since the last call, and how many
        of the latter count for the limit: those that no interrupted run has dropped before.

        Returns fewer ready groups once `limit` groups, dropped ones included, have ended. Raises what `produce` or
        `keeps` raises.
        """
        if step != self._step:
            self._begin(step)
        self._closed = False
        self._fill()
        while self._error is None and len(self._ready) < wanted and len(self._ready) + self._newly_dropped < limit:
            self._changed.clear()
            await self._changed.wait()
        if self._error is not None:
            raise self._error
        ready, self._ready = [group for _, _, group in self._ready[:wanted]], self._ready[wanted:]
        self._training += len(ready)
        counted = self._newly_dropped
        return ready, self.take_dropped(), counted

    @property
    def _newly_dropped(self) -> int:
        return sum(not draw.dropped for draw, _ in self._dropped)

    def abort(self) -> tuple[list[RolloutGroup], int]:
        """Start nothing until `release`. Return the groups that are ready, and the number of those under way.

        The latter are cancelled. Their prompts, unlike those of the ready groups, come first in the next step, so that
        slow ones are not left out of training, under new keys: comparative judges may hold responses under the old
        ones.
        """
        self._closed = True
        self._finish_ended()
        ready, self._ready = [group for _, _, group in self._ready], []
        return ready, self._cancel()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Cancel the groups under way and start none inside the context. Then draw them again, under new keys.

        Ready groups with failed responses are drawn again too. For a change of the scorers: siblings would be scored by
        different ones.
        """
        closed, self._closed = self._closed, True
        self._finish_ended()
        self._cancel()
        failed = {n for n, _, group in self._ready if any(isinstance(r.total, Failure) for r in group.records)}
        self._aborted.extend(draw for number, draw, _ in self._ready if number in failed)
        self._ready = [entry for entry in self._ready if entry[0] not in failed]
        try:
            yield
        finally:
            self._closed = closed
        self._fill()

    def _cancel(self) -> int:
        cancelled = [task for task in self._running if task.cancel()]
        # Numbers increase in the order of insertion.
        self._aborted.extend(self._running.pop(task)[1] for task in cancelled)
        return len(cancelled)

    def reject(self, count: int) -> None:
        """Replace taken groups that are not trained on after all."""
        self._training -= count
        self._fill()

    def release(self) -> None:
        """Start the next groups: the taken ones were trained on, and the engines have the new policy version.

        Their keys have the next step, so that a run that resumes after this one finds no record of theirs.
        """
        self._begin(self._step + 1)
        self._closed = not self.max_policy_age
        self._fill()

    def state(self) -> list[dict[str, Any]]:
        """Return the draws whose groups no step has taken, oldest first, as JSON-like values."""
        return [
            {
                "step": draw.step,
                "prompt": draw.sample.id,
                "attempt": draw.attempt,
                "aborted": aborted,
                "dropped": draw.dropped,
            }
            for aborted, draws in ((False, self.open_draws), (True, self._aborted))
            for draw in draws
        ]

    async def close(self) -> None:
        """Cancel all groups in flight, and start no others."""
        self._closed = True
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    @property
    def _has_room(self) -> bool:
        ahead = min(self.max_policy_age + self._oversample, self._steps - self._step + max(1.0, self._oversample))
        held = len(self._running) + len(self._ready) + self._training
        bound = min(whole_groups(ahead, self._batch) - held, self._concurrent - len(self._running))
        return bound > 0 and not self._closed and self._error is None

    def _fill(self) -> None:
        while self._has_room:
            draw = self._again.popleft() if self._again else self._next()
            task = asyncio.ensure_future(self._make(draw))
            self._running[task] = self._count, draw
            self._count += 1
            task.add_done_callback(self._finish)

    async def _make(self, draw: Draw) -> tuple[RolloutGroup, bool]:
        group = await self._produce(draw)
        return group, self._keeps(group)

    def _begin(self, step: int) -> None:
        self._step, self._attempts, self._training, self.redrawn = step, Counter(), 0, set()
        for draw in (*self._again, *self._aborted):  # of a resumed run
            if draw.step == step:
                self._attempts[draw.sample.id] = max(self._attempts[draw.sample.id], draw.attempt + ATTEMPTS)

    def _next(self) -> Draw:
        if self._aborted:
            sample = self._aborted.popleft().sample
            self.redrawn.add(sample.id)
        else:
            [sample] = self._prompts.take(1)
        attempt = self._attempts[sample.id]
        self._attempts[sample.id] += ATTEMPTS
        return Draw(step=self._step, sample=sample, attempt=attempt)

    def _finish_ended(self) -> None:
        """Take over groups that have ended and whose callbacks have not run yet."""
        for task in [task for task in self._running if task.done()]:
            self._finish(task)

    def _finish(self, task: asyncio.Task[tuple[RolloutGroup, bool]]) -> None:
        entry = self._running.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if entry is None or (self._closed and task.cancelled()):  # aborted; the cancellation may have come too late
            return
        number, draw = entry
        if task.cancelled():
            error = RuntimeError(f"the group of prompt {draw.sample.id!r} was cancelled although it was not aborted")
        if error is not None:
            self._error = self._error or error
        else:
            group, kept = task.result()
            if kept:
                insort(self._ready, (number, draw, group), key=lambda entry: entry[0])
            else:
                self._dropped.append((draw, group))
            self._fill()
        self._changed.set()
