"""Client of a scorer pool, used by the router: sends questions and returns answers with typed failures.

Questions that arrive within `batch_wait_ms` share a request, because a Serve call costs about 2 ms whatever its size.
Those to an endpoint do not: a request is answered as a whole, and one late answer would delay the others.
With several replicas only questions of one group share a request, so that a group's common prompt prefix is computed on
one replica.

`hamr.pools.hedging` decides when to send a hedged request to a second replica, `hamr.pools.circuit_breaker` when to
send none.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
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
"""Suffix of a session's name that routes to the replica after the one that owns the session."""


def app_name(run: str, pool: str) -> str:
    """Return the name of a pool's Serve application, unique among the runs that share a cluster."""
    return f"hamr-{run}--{pool}"


def split_app_name(app: str) -> tuple[str, str]:
    """Return (run, pool) of an application, or ("", "") if it is not one of hamr's pools."""
    run, mark, pool = app.removeprefix("hamr-").rpartition("--")
    return (run, pool) if mark and app.startswith("hamr-") else ("", "")


def import_serve() -> ModuleType:
    """Import Ray Serve with settings for busy machines, and without the logging that its import turns on.

    Before it sends a request, Serve queries a replica's queue length and skips the replica if it does not respond
    within 0.1 s. An engine that shares two cores with others often takes longer, and would idle although work is
    waiting.
    """
    os.environ.setdefault("RAY_SERVE_QUEUE_LENGTH_RESPONSE_DEADLINE_S", "1.0")
    from ray import serve

    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    return serve


SERVE_LOCK = threading.Lock()
"""Held while Ray pickles the class of a request router, also when it reads the state of an application that has one. It
enters the class's module in a table of the process and removes it again, which fails in a second thread."""


async def serve_applications() -> Mapping[str, Any]:
    """Return the state of all applications of Ray Serve (`ray.serve.schema.ApplicationStatusOverview`) by name."""

    def read() -> Mapping[str, Any]:
        with SERVE_LOCK:
            return import_serve().status().applications

    return await asyncio.to_thread(read)


@dataclass(kw_only=True, eq=False)
class _Waiting:
    """One question whose future has no answer yet. Times are of the event loop's clock, in seconds."""

    question: Question
    answer: asyncio.Future[Answer]
    asked: float
    attempts: int = 0
    hedges: int = 0


class _Again(Exception):
    """Some questions of a request got no answer and should be retried."""


class PoolClient:
    """Client of one pool, for one event loop. `ask` never raises for a scorer's failure and never invents a score."""

    def __init__(self, name: str, config: PoolConfig, run: str, *, handle: Any = None) -> None:
        """Create a client. `handle` sends the requests; by default it is the handle of the pool's deployment."""
        self.name, self.config, self.run = name, config, run
        # A missing pool is a failure of its questions, not of the router.
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
        """Return the pool's answer within `deadline_s`, else a failure: `timeout`, or `unavailable` if no replica runs.

        While the circuit breaker is open, the failure is returned immediately with a retry delay. At most as many
        questions are sent as the pool processes at a time. The others queue, and their deadline does not run in the
        queue: an overloaded pool is slow, not failed.
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
            detail = f"circuit breaker open for pool {self.name!r}; retry in {wait_s:.0f} s"
            return Answer(failure="unavailable", detail=detail, retry_in_s=wait_s)
        answered: bool | None = None
        try:
            answer = await self._ask(question)
            answered = answer.failure not in ("timeout", "unavailable")
            return answer
        except asyncio.CancelledError:
            # The response's own deadline passed: to the caller that was a timeout. A close says nothing about the pool.
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
        if len(gathering) >= self.config.request_size:
            self._flush(group)
        elif len(gathering) == 1:
            self._timers[group] = loop.call_later(self.config.batch_wait_ms / 1000, self._flush, group)
        if self._hedger:
            self._hedger.record_sent(1)
        answer = await waiting.answer
        self._tally.count_answer(answer, retried=waiting.attempts > 1, seconds=loop.time() - waiting.asked)
        return answer

    def resize(self, replicas: int) -> None:
        """Set the pool's maximum number of replicas. With several, the questions of a group keep to one of them."""
        self._by_group = replicas > 1
        self._gate.resize(self.config.places_of(replicas))

    def metrics(self) -> dict[str, float]:
        """Return metrics since the start: `PoolTally.metrics`."""
        return self._tally.metrics()

    def describe(self) -> dict[str, Any]:
        """Return the pool's state as seen by this client: `PoolTally.describe`."""
        return self._tally.describe()

    async def close(self) -> None:
        """Cancel all requests under way and all callers that still wait."""
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
        for waiting in batch:
            waiting.answer.add_done_callback(lambda _: _cancel_unwanted(task, batch))

    def _finish_send(self, task: asyncio.Task[None], batch: Sequence[_Waiting]) -> None:
        """Pass an unexpected error on to the callers, so that they do not wait indefinitely."""
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
        """Answer every question of a batch: retry within the first one's deadline, then return failures."""
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
        """Send one request with the questions in `left`, or several if their endpoint limits the size of one.

        Answered questions are removed from the list. Time spent waiting for the endpoint's rate limit extends the
        deadline `limit`.

        Raises:
            _Again: Some questions remain.
        """
        # A retry drops the affinity: the replica it points to is dead or full.
        session = group if first and self._by_group else ""
        again, untried = [], left
        # Skip questions that were cancelled while waiting for the endpoint's rate limit.
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
        """Send as many of these questions as the rate limit admits; return them with their answers.

        A question that the endpoint refused but may accept later has `retry_in_s`.
        """
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
        if pace.is_exhausted:
            answers = [dataclasses.replace(a, retry_in_s=None) for a in answers]
        else:
            for one, answer in zip(batch, answers, strict=True):
                one.attempts -= answer.retry_in_s is not None
        return batch, answers

    async def _request(self, waiting: Sequence[_Waiting], session: str) -> list[Answer]:
        """Send one request. Raises _Again if no replica accepted it."""
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
        """Return a replica's answers to these questions; a late request may be hedged."""
        questions = [w.question for w in left]
        if self._hedger is None:
            return await self._send(questions, session)
        # The second replica is derived from the session, so there has to be one.
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
        if waiting.answer.done():  # the caller was cancelled
            return
        elapsed = asyncio.get_running_loop().time() - waiting.asked
        call = answer.call or ScorerCall(pool=self.name, model=self.config.model)
        call = dataclasses.replace(
            call, queue_s=max(0.0, elapsed - call.service_s), attempts=max(1, waiting.attempts) + waiting.hedges
        )
        waiting.answer.set_result(dataclasses.replace(answer, call=call))

    def _fail(self, left: Sequence[_Waiting], failure: Literal["timeout", "unavailable"], detail: str) -> None:
        for waiting in left:
            self._resolve(waiting, Answer(failure=failure, detail=f"pool {self.name!r}: {detail}"))

    async def _why_late(self) -> tuple[Literal["timeout", "unavailable"], str]:
        """Return the cause of a missed deadline: no replica, or a slow one. Concurrent callers share one lookup."""
        if self._status is None or self._status.done():
            self._status = asyncio.get_running_loop().create_task(self._running())
        try:
            running = await asyncio.wait_for(asyncio.shield(self._status), STATUS_TIMEOUT_S)
        except Exception as error:  # it is silent, or dead
            log.debug("no status of pool %r: %s", self.name, _reason(error))
            return (
                "unavailable",
                f"no answer within {self.config.deadline_s:g} s, and Serve's controller is not responding",
            )
        if not running:
            return "unavailable", f"no replica was running within {self.config.deadline_s:g} s"
        return "timeout", f"no answer from {running} running replicas within {self.config.deadline_s:g} s"

    async def _running(self) -> int:
        app = (await serve_applications()).get(app_name(self.run, self.name))
        deployment = app.deployments.get(DEPLOYMENT) if app else None
        return deployment.replica_states.get("RUNNING", 0) if deployment else 0


def _cancel_unwanted(task: asyncio.Task[None], batch: Sequence[_Waiting]) -> None:
    """Cancel a request when no caller waits for it any more, e.g. because the responses' deadlines have passed."""
    if all(waiting.answer.done() for waiting in batch):
        task.cancel()


def _reason(error: BaseException) -> str:
    """Return the error in one line. A replica's exception arrives wrapped, with address and traceback in its text."""
    cause = getattr(error, "cause", None) or error
    lines = str(cause).strip().splitlines()
    return f"{type(cause).__name__}: {lines[0]}" if lines else type(cause).__name__
