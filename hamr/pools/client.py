"""The router's side of a pool: questions in, answers out, failures typed.

Questions that arrive within `batch_wait_ms` travel together, because a Serve call costs about 2 ms however much it
carries. With several replicas only questions of one group share a request, so that a group's common prompt prefix is
computed on one replica.

When to ask a second replica beside the first, and when to ask nobody, is decided in `hamr.pools.hedging` and
`hamr.pools.circuit_breaker`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, Literal

from hamr.config.pools import PoolConfig
from hamr.pools.circuit_breaker import Breaker
from hamr.pools.hedging import Hedger
from hamr.pools.rate_limit import pace_of
from hamr.pools.resizable_limiter import ResizableLimiter
from hamr.pools.tally import PoolTally
from hamr.types import Answer, Question, ScorerCall

log = logging.getLogger(__name__)

DEPLOYMENT = "scorer"
"""Name of the one deployment in a pool's application."""
FIRST_BACKOFF_S = 0.2
LONGEST_BACKOFF_S = 5.0
STATUS_TIMEOUT_S = 5.0
SECOND = "\x1f2"
"""At the end of a session's name: to the replica after the one that the session belongs to."""


def app_name(run: str, pool: str) -> str:
    """Serve application of a pool; runs that share a cluster do not collide."""
    return f"hamr-{run}--{pool}"


def split_app_name(app: str) -> tuple[str, str]:
    """(run, pool) of an application; ("", "") if it is not one of hamr's pools."""
    run, mark, pool = app.removeprefix("hamr-").rpartition("--")
    return (run, pool) if mark and app.startswith("hamr-") else ("", "")


def import_serve() -> ModuleType:
    """Ray Serve, fit for busy machines and without its chatter, which is turned on for every process that imports it.

    Before it sends, Serve asks a replica how long its queue is, and passes over one that does not say so within
    0.1 s. An engine that shares two cores with others often takes longer, and would idle although work is waiting.
    """
    os.environ.setdefault("RAY_SERVE_QUEUE_LENGTH_RESPONSE_DEADLINE_S", "1.0")
    from ray import serve

    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    return serve


@dataclass(kw_only=True, eq=False)
class _Waiting:
    """One asked question, until its future has an answer. Times are of the event loop's clock, in seconds."""

    question: Question
    answer: asyncio.Future[Answer]
    asked: float
    attempts: int = 0
    hedges: int = 0


class _Again(Exception):
    """Some questions of a request got no answer; another try may."""


class PoolClient:
    """Asks one pool. Lives in one event loop. `ask` never raises for a scorer's failure and never invents a score."""

    def __init__(self, name: str, config: PoolConfig, run: str, *, handle: Any = None) -> None:
        """`handle`: what to send requests through, by default that of the pool's deployment."""
        self.name, self.config, self.run = name, config, run
        # A pool that is not there (yet) is a failure of its questions, not of the router.
        self._handle = handle or import_serve().get_deployment_handle(
            DEPLOYMENT, app_name=app_name(run, name), _check_exists=False
        )
        self._by_group = config.most_replicas > 1
        self._gate = ResizableLimiter(config.places)
        self._breaker = Breaker(config.breaker, time.monotonic) if config.breaker else None
        self._hedger = Hedger(config.hedge, time.monotonic) if config.hedge else None
        self._tally = PoolTally(breaker=self._breaker, hedger=self._hedger)
        self._closed = False
        self._gathering: dict[str, list[_Waiting]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._sending: set[asyncio.Task[None]] = set()
        self._status: asyncio.Task[int] | None = None

    async def ask(self, question: Question) -> Answer:
        """The pool's answer within `deadline_s`, else a failure: `timeout` or, when no replica runs, `unavailable`.

        While the breaker is open that is said at once, and when asking again may help. No more questions are put than
        the pool works on at a time: the others stand in line, where their deadline does not run. A pool that has more
        to do than it can is slow, not sick.
        """
        with self._tally.waiting_one():
            async with self._gate:
                return await self._admit(question)

    async def _admit(self, question: Question) -> Answer:
        if self._breaker is None:
            return await self._ask(question)
        ticket = self._breaker.admit()
        if ticket is None:
            self._tally.count_refusal()
            wait_s = self._breaker.retry_in_s()
            detail = f"pool {self.name!r} has mostly failed of late and is left alone for another {wait_s:.0f} s"
            return Answer(failure="unavailable", detail=detail, retry_in_s=wait_s)
        answered: bool | None = None
        try:
            answer = await self._ask(question)
            answered = answer.failure not in ("timeout", "unavailable")
            return answer
        except asyncio.CancelledError:
            # The response's own deadline passed: for whoever asked, that was a timeout. A close says nothing.
            answered = None if self._closed else False
            raise
        finally:
            self._breaker.settle(ticket, answered)

    async def _ask(self, question: Question) -> Answer:
        loop = asyncio.get_running_loop()
        waiting = _Waiting(question=question, answer=loop.create_future(), asked=loop.time())
        group = question.affinity if self._by_group else ""
        gathering = self._gathering.setdefault(group, [])
        gathering.append(waiting)
        if len(gathering) >= self.config.batch_size:
            self._flush(group)
        elif len(gathering) == 1:
            self._timers[group] = loop.call_later(self.config.batch_wait_ms / 1000, self._flush, group)
        if self._hedger:
            self._hedger.asked(1)
        answer = await waiting.answer
        self._tally.count_answer(answer, retried=waiting.attempts > 1, seconds=loop.time() - waiting.asked)
        return answer

    def resize(self, replicas: int) -> None:
        """The pool has (at most) so many replicas now: with several, a group's questions keep to one of them."""
        self._by_group = replicas > 1
        self._gate.resize(self.config.places_of(replicas))

    def metrics(self) -> dict[str, float]:
        """Figures since the start: `PoolTally.metrics`."""
        return self._tally.metrics()

    def describe(self) -> dict[str, Any]:
        """The pool's state as this client sees it now: `PoolTally.describe`."""
        return self._tally.describe()

    async def close(self) -> None:
        """Give up on what is under way; whoever still waits is cancelled."""
        self._closed = True
        self._gate.turn_away()
        for timer in self._timers.values():
            timer.cancel()
        for task in tuple(self._sending):
            task.cancel()
        for waiting in (w for batch in self._gathering.values() for w in batch):
            waiting.answer.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)

    # --- one request -----------------------------------------------------------------------

    def _flush(self, group: str) -> None:
        batch = self._gathering.pop(group)
        if timer := self._timers.pop(group, None):
            timer.cancel()
        task = asyncio.get_running_loop().create_task(self._serve(batch, group))
        self._sending.add(task)
        task.add_done_callback(lambda done: self._finish_send(done, batch))

    def _finish_send(self, task: asyncio.Task[None], batch: Sequence[_Waiting]) -> None:
        """A bug in here must reach whoever asked, not leave them waiting for ever."""
        self._sending.discard(task)
        bug = None if task.cancelled() else task.exception()
        for waiting in batch:
            if waiting.answer.done():
                continue
            if bug is None:
                waiting.answer.cancel()
            else:
                waiting.answer.set_exception(bug)

    async def _serve(self, batch: list[_Waiting], group: str) -> None:
        """Bring every question of a batch to an answer: retries within the first one's deadline, then failures."""
        from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

        left = list(batch)
        tries = AsyncRetrying(
            stop=stop_after_attempt(self.config.attempts),
            wait=wait_random_exponential(multiplier=FIRST_BACKOFF_S, max=LONGEST_BACKOFF_S),
            retry=retry_if_exception_type(_Again),
            reraise=True,
        )
        try:
            async with asyncio.timeout_at(batch[0].asked + self.config.deadline_s) as limit:
                async for attempt in tries:
                    with attempt:
                        await self._try(left, group, limit, first=attempt.retry_state.attempt_number == 1)
        except TimeoutError:
            failure, detail = await self._why_late()
            self._fail(left, failure, detail)
        except _Again as e:
            self._fail(left, "unavailable", str(e))

    async def _try(self, left: list[_Waiting], group: str, limit: asyncio.Timeout, *, first: bool) -> None:
        """One request with the questions in `left`, or several where their endpoint limits how many it takes; the
        answered ones leave the list. Raises _Again if some stay. What is spent in an endpoint's line moves the deadline
        `limit`."""
        # A second try drops the affinity: the replica it points to is dead or full.
        session = group if first and self._by_group else ""
        again, untried = [], left
        # Whoever has given up by the time that an endpoint's line is through need not be asked for.
        while untried := [one for one in untried if not one.answer.done()]:
            batch, answers = await self._take(untried, session, limit)
            untried = untried[len(batch) :]
            for waiting, answer in zip(batch, answers, strict=True):
                if answer.retry_in_s is not None:
                    untried.append(waiting)
                elif answer.failure == "unavailable" and waiting.attempts < self.config.attempts:
                    again.append(answer.detail)
                else:
                    left.remove(waiting)
                    self._resolve(waiting, answer)
        if again:
            raise _Again(again[0])

    async def _take(
        self, waiting: list[_Waiting], session: str, limit: asyncio.Timeout
    ) -> tuple[list[_Waiting], list[Answer]]:
        """The first of these questions, as many as may be asked now, with their answers; one that the endpoint refused,
        and may take later, has `retry_in_s`."""
        if self.config.endpoint is None:
            return waiting, await self._request(waiting, session)
        pace, loop = pace_of(self.config.endpoint), asyncio.get_running_loop()
        came, ends = loop.time(), limit.when() or loop.time()
        limit.reschedule(None)
        batch = waiting[: await pace.admit(len(waiting))]
        limit.reschedule(ends + loop.time() - came)
        if not batch:
            raise _Again(f"{self.config.endpoint} has refused {pace.in_a_row} times in a row (HTTP 429)")
        answers: list[Answer] = []
        try:
            answers = await self._request(batch, session)
        finally:
            refused = [a.retry_in_s for a in answers if a.retry_in_s is not None]
            answered = sum(a.failure not in ("timeout", "unavailable") for a in answers)
            pace.settle(len(batch), answered=answered, retry_in_s=max(refused, default=None))
        if pace.exhausted:
            answers = [dataclasses.replace(a, retry_in_s=None) for a in answers]
        else:
            for one, answer in zip(batch, answers, strict=True):
                one.attempts -= answer.retry_in_s is not None
        return batch, answers

    async def _request(self, waiting: Sequence[_Waiting], session: str) -> list[Answer]:
        """One request. Raises _Again where nobody took it."""
        from ray.exceptions import RayError
        from ray.serve.exceptions import RayServeException

        for one in waiting:
            one.attempts += 1
        try:
            return await self._answers(waiting, session)
        except (RayError, RayServeException) as e:
            reason = _reason(e)
            log.warning("pool %s: attempt %d failed: %s", self.name, waiting[0].attempts, reason)
            raise _Again(reason) from e

    async def _answers(self, left: Sequence[_Waiting], session: str) -> list[Answer]:
        """What a replica says to these questions; a late request may go to a second one too."""
        questions = [w.question for w in left]
        if self._hedger is None:
            return await self._send(questions, session)
        # Who is second follows from whose session it is, so there has to be one.
        session = session or uuid.uuid4().hex
        raced = await self._hedger.first(
            partial(self._send, questions, session), partial(self._send, questions, session + SECOND), len(questions)
        )
        if not raced.hedged:
            return raced.answer
        for waiting in left:
            waiting.hedges += 1
        self._tally.count_hedge(raced.answer, second=raced.second)
        return [
            dataclasses.replace(a, call=dataclasses.replace(a.call, cost=2 * a.call.cost)) if a.call else a
            for a in raced.answer
        ]

    async def _send(self, questions: Sequence[Question], session: str) -> list[Answer]:
        response = self._handle.options(session_id=session).score.remote(list(questions))
        try:
            return await response
        except asyncio.CancelledError:
            response.cancel()
            raise

    # --- answers ---------------------------------------------------------------------------

    def _resolve(self, waiting: _Waiting, answer: Answer) -> None:
        if waiting.answer.done():  # whoever asked has been cancelled
            return
        elapsed = asyncio.get_running_loop().time() - waiting.asked
        call = answer.call or ScorerCall(
            pool=self.name,
            model=self.config.model,
            prompt_version="",
            replica="",
            queue_s=0.0,
            service_s=0.0,
            prompt_tokens=0,
            output_tokens=0,
        )
        call = dataclasses.replace(
            call, queue_s=max(0.0, elapsed - call.service_s), attempts=max(1, waiting.attempts) + waiting.hedges
        )
        waiting.answer.set_result(dataclasses.replace(answer, call=call))

    def _fail(self, left: Sequence[_Waiting], failure: Literal["timeout", "unavailable"], detail: str) -> None:
        for waiting in left:
            self._resolve(waiting, Answer(failure=failure, detail=f"pool {self.name!r}: {detail}"))

    async def _why_late(self) -> tuple[Literal["timeout", "unavailable"], str]:
        """At the deadline: is nobody there, or is somebody slow? Many questions may ask at once; one looks."""
        if self._status is None or self._status.done():
            self._status = asyncio.get_running_loop().create_task(self._running())
        try:
            running = await asyncio.wait_for(asyncio.shield(self._status), STATUS_TIMEOUT_S)
        except TimeoutError:
            return "unavailable", f"no answer within {self.config.deadline_s:g} s, and Serve's controller is silent"
        if not running:
            return "unavailable", f"no replica was running within {self.config.deadline_s:g} s"
        return "timeout", f"no answer from {running} running replicas within {self.config.deadline_s:g} s"

    async def _running(self) -> int:
        serve = import_serve()
        app = (await asyncio.to_thread(serve.status)).applications.get(app_name(self.run, self.name))
        deployment = app.deployments.get(DEPLOYMENT) if app else None
        return deployment.replica_states.get("RUNNING", 0) if deployment else 0


def _reason(error: BaseException) -> str:
    """One line. A replica's own exception arrives wrapped, with the wrapper's address and traceback as its text."""
    cause = getattr(error, "cause", None) or error
    lines = str(cause).strip().splitlines()
    return f"{type(cause).__name__}: {lines[0]}" if lines else type(cause).__name__
