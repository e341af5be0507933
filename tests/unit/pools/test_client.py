"""Hedging and the breaker in a pool's client, on a scripted Serve handle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from typing import Any

import pytest

from hamr.config.pools import PoolConfig
from hamr.pools.client import SECOND, PoolClient
from hamr.types import Answer, Question, ScorerCall

Script = Callable[[str, Sequence[Question]], Any]


class Response:
    """A request under way: awaits what the script says, and knows whether it was cancelled."""

    def __init__(self, work: Any) -> None:
        self.work, self.cancelled = work, False

    def __await__(self) -> Generator[Any, None, list[Answer]]:
        return self.work.__await__()

    def cancel(self) -> None:
        self.cancelled = True


class Handle:
    """Sends nothing anywhere; keeps sessions and responses."""

    def __init__(self, script: Script) -> None:
        self.script, self.sessions, self.responses = script, [], []

    def options(self, *, session_id: str) -> Handle:
        self.sessions.append(session_id)
        return self

    @property
    def score(self) -> Handle:
        return self

    def remote(self, questions: Sequence[Question]) -> Response:
        self.responses.append(Response(self.script(self.sessions[-1], questions)))
        return self.responses[-1]


def answered(questions: Sequence[Question], replica: str = "a", **how: Any) -> list[Answer]:
    call = ScorerCall(
        pool="p",
        model="m",
        prompt_version="1",
        replica=replica,
        queue_s=0.0,
        service_s=0.0,
        prompt_tokens=10,
        output_tokens=1,
        cost=2.0,
    )
    return [Answer(call=call, **(how or {"score": 0.5})) for _ in questions]


def client(script: Script, **config: Any) -> tuple[PoolClient, Handle]:
    handle = Handle(script)
    fixed = {"role": "judge", "prompt": "judge.en", "batch_size": 4, "batch_wait_ms": 0.0, "attempts": 1}
    return PoolClient("p", PoolConfig.model_validate(fixed | config), "r", handle=handle), handle


def question(number: int = 0, group: str = "g") -> Question:
    return Question(variables={"number": str(number)}, affinity=group)


# --- hedging -----------------------------------------------------------------------------------

HEDGE = {"floor_s": 0.02, "min_count": 1, "budget_frac": 1.0, "burst": 4}


async def stalls_first(session: str, questions: Sequence[Question]) -> list[Answer]:
    if "late" in questions[0].variables["number"] and not session.endswith(SECOND):
        await asyncio.sleep(1000)
    return answered(questions, "b" if session.endswith(SECOND) else "a")


async def test_late_request_is_hedged_to_one_fixed_second_replica() -> None:
    pool, handle = client(stalls_first, replicas=2, hedge=HEDGE)
    quick = await pool.ask(question())
    assert (quick.call.attempts, quick.call.cost, handle.sessions) == (1, 2.0, ["g"])
    late = [Question(variables={"number": f"late {i}"}, affinity="g") for i in range(2)]
    answers = await asyncio.gather(*(pool.ask(q) for q in late))
    assert [(a.call.replica, a.call.attempts, a.call.cost) for a in answers] == [("b", 2, 4.0)] * 2
    assert handle.sessions == ["g", "g", "g" + SECOND]
    assert [r.cancelled for r in handle.responses] == [False, True, False]
    metrics = pool.metrics()
    assert (metrics["asked"], metrics["scored"], metrics["retried"]) == (3, 3, 0)
    assert (metrics["hedged"], metrics["hedge_won"], metrics["hedge_cost"]) == (2, 2, 4.0)
    await pool.close()


async def test_request_without_a_group_is_hedged() -> None:
    pool, handle = client(stalls_first, replicas=2, hedge=HEDGE)
    await pool.ask(question(group=""))
    answer = await pool.ask(Question(variables={"number": "late"}))
    assert answer.call.replica == "b"
    _, first, second = handle.sessions
    assert first and second == first + SECOND
    await pool.close()


async def test_late_request_over_the_hedge_budget_times_out() -> None:
    pool, handle = client(stalls_first, replicas=2, hedge=HEDGE | {"budget_frac": 0.1}, deadline_s=0.2)
    await pool.ask(question())
    pool._running = lambda: asyncio.sleep(0, 2)  # type: ignore[method-assign]  # Serve is not there to be asked
    answer = await pool.ask(Question(variables={"number": "late"}, affinity="g"))
    assert (answer.failure, answer.call.attempts) == ("timeout", 1)
    assert len(handle.responses) == 2
    assert handle.responses[1].cancelled
    await pool.close()


# --- the breaker -------------------------------------------------------------------------------

BREAKER = {"min_count": 3, "cooldown_s": 0.1, "probes": 1}


def saying(answers: list[dict[str, Any]]) -> Script:
    async def script(session: str, questions: Sequence[Question]) -> list[Answer]:
        return answered(questions, **answers[0])

    return script


async def test_failing_pool_is_skipped_and_then_probed() -> None:
    says: list[dict[str, Any]] = [{"failure": "unavailable", "detail": "HTTP 503"}]
    pool, handle = client(saying(says), breaker=BREAKER)
    for i in range(3):
        assert (await pool.ask(question(i))).detail == "HTTP 503"
    refused = await pool.ask(question(4))
    assert (refused.failure, refused.call, len(handle.responses)) == ("unavailable", None, 3)
    assert refused.retry_in_s is not None
    assert 0.0 < refused.retry_in_s <= 0.1
    assert pool.describe()["breaker"] == "open"
    assert (pool.metrics()["refused"], pool.metrics()["asked"]) == (1, 3)
    says[0] = {"score": 0.5}
    await asyncio.sleep(0.12)
    assert (await pool.ask(question(5))).score == 0.5
    assert (pool.describe()["breaker"], pool.metrics()["breaker_openings"]) == ("closed", 1)
    await pool.close()


@pytest.mark.parametrize("says", [{"failure": "unparsable"}, {"score": 0.0}])
async def test_unparsable_answers_do_not_open_the_breaker(says: dict[str, Any]) -> None:
    pool, _ = client(saying([says]), breaker=BREAKER)
    for i in range(20):
        await pool.ask(question(i))
    assert pool.metrics()["breaker"] == 0.0
    await pool.close()


async def test_abandoned_questions_count_as_timeouts() -> None:
    """The response's deadline is shorter than the pool's, which would never expire."""

    async def hangs(session: str, questions: Sequence[Question]) -> list[Answer]:
        await asyncio.sleep(1000)
        return []

    pool, _ = client(hangs, breaker=BREAKER)
    for i in range(3):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(pool.ask(question(i)), 0.01)
    assert pool.describe()["breaker"] == "open"
    await pool.close()


async def test_every_question_is_sent_without_a_breaker() -> None:
    pool, handle = client(saying([{"failure": "unavailable"}]), breaker=None)
    for i in range(30):
        await pool.ask(question(i))
    assert len(handle.responses) == 30
    assert "breaker" not in pool.metrics()
    await pool.close()


# --- an endpoint that rate-limits --------------------------------------------------------------

ENDPOINT = {"type": "openai", "endpoint": "http://127.0.0.1:1/v1"}


class Limited:
    """An endpoint that takes `room` questions at a time and refuses the others. `under_way` counts both."""

    def __init__(self, room: int) -> None:
        self.room, self.taken, self.asked, self.under_way = room, 0, 0, []

    async def __call__(self, session: str, questions: Sequence[Question]) -> list[Answer]:
        (one,) = questions
        self.asked += 1
        self.under_way.append(self.asked)
        takes = self.taken < self.room
        self.taken += takes
        await asyncio.sleep(0.01)
        self.asked -= 1
        self.taken -= takes
        return answered([one]) if takes else answered([one], failure="unavailable", detail="HTTP 429", retry_in_s=0.02)


async def test_refused_questions_are_retried_with_fewer_under_way() -> None:
    endpoint = Limited(room=3)
    pool, _ = client(endpoint, batch_size=8, **ENDPOINT)
    answers = await asyncio.gather(*(pool.ask(question(i)) for i in range(8)))
    assert [a.score for a in answers] == [0.5] * 8
    # A refusal is not an attempt: with one attempt a question, none is lost by it.
    assert all(a.call.attempts == 1 for a in answers)
    assert max(endpoint.under_way[:8]) == 8 and max(endpoint.under_way[8:]) <= 4
    await pool.close()


async def test_many_refusals_of_one_burst_are_no_outage() -> None:
    pool, _ = client(Limited(room=1), breaker=None, **ENDPOINT)
    answers = await asyncio.gather(*(pool.ask(question(i)) for i in range(20)))
    assert [a.failure for a in answers] == [None] * 20
    await pool.close()


async def test_hanging_endpoint_request_delays_no_other_question() -> None:
    pool, handle = client(stalls_first, batch_wait_ms=50.0, **ENDPOINT)
    numbers = ("1", "late", "2", "3")
    asked = [asyncio.create_task(pool.ask(Question(variables={"number": number}))) for number in numbers]
    done, pending = await asyncio.wait(asked, timeout=0.5)
    assert [task.result().score for task in done] == [0.5] * 3
    assert pending == {asked[1]} and len(handle.responses) == 4
    await pool.close()


@pytest.mark.parametrize("where", [{}, ENDPOINT], ids=["served", "endpoint"])
async def test_request_that_no_caller_waits_for_is_cancelled(where: dict[str, Any]) -> None:
    """The response's deadline is below the pool's."""
    pool, handle = client(stalls_first, batch_size=2, **where)
    asked = [pool.ask(Question(variables={"number": f"late {i}"})) for i in range(2)]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await asyncio.gather(*asked)
    await asyncio.sleep(0.01)
    assert handle.responses and all(response.cancelled for response in handle.responses)
    await pool.close()


async def test_pools_of_one_endpoint_share_its_rate_limit() -> None:
    endpoint = Limited(room=2)
    pools = [client(endpoint, batch_size=4, **ENDPOINT)[0] for _ in range(2)]
    await asyncio.gather(*(pools[0].ask(question(i)) for i in range(4)))
    endpoint.under_way.clear()
    answers = await asyncio.gather(*(pools[1].ask(question(i)) for i in range(4)))
    assert all(a.score == 0.5 for a in answers)
    assert max(endpoint.under_way) < 4
    for pool in pools:
        await pool.close()


async def test_rate_limit_wait_does_not_count_towards_the_deadline() -> None:
    calls: list[int] = []

    async def script(session: str, questions: Sequence[Question]) -> list[Answer]:
        calls.append(len(questions))
        if len(calls) <= 2:
            return answered(questions, failure="unavailable", detail="HTTP 429", retry_in_s=0.3)
        return answered(questions)

    pool, _ = client(script, deadline_s=0.4, **ENDPOINT)
    assert (await pool.ask(question())).score == 0.5
    assert len(calls) == 3
    await pool.close()


async def test_always_refusing_endpoint_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hamr.pools.rate_limit.MOST_IN_A_ROW", 3)
    refuses = {"failure": "unavailable", "detail": "HTTP 429", "retry_in_s": 0.01}
    pool, handle = client(saying([refuses]), breaker=None, **ENDPOINT)
    answer = await pool.ask(question())
    assert (answer.failure, answer.retry_in_s) == ("unavailable", None) and len(handle.responses) == 3
    await pool.close()


@pytest.mark.slow
async def test_overloaded_pool_is_slow_but_not_failing() -> None:
    """The questions take twice the deadline in total; each is sent when the pool has capacity, and none times out."""
    free = asyncio.Semaphore(2)
    asked_now, most = 0, 0

    async def busy(session: str, questions: Sequence[Question]) -> list[Answer]:
        nonlocal asked_now, most
        asked_now += len(questions)
        most = max(most, asked_now)
        async with free:
            await asyncio.sleep(0.04)
        asked_now -= len(questions)
        return answered(questions)

    asked, handle = client(busy, max_ongoing_requests=2, batch_size=2, deadline_s=1.0)
    answers = await asyncio.gather(*(asked.ask(question(i)) for i in range(200)))
    assert {answer.failure for answer in answers} == {None}
    assert most == 4, "two requests of two questions"


async def test_closed_pool_sends_no_queued_questions() -> None:
    async def hangs(session: str, questions: Sequence[Question]) -> list[Answer]:
        await asyncio.sleep(60)
        return answered(questions)

    pool, handle = client(hangs, max_ongoing_requests=1, batch_size=2)
    asking = [asyncio.create_task(pool.ask(question(i))) for i in range(6)]
    await asyncio.sleep(0.05)
    await pool.close()
    ended = await asyncio.gather(*asking, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ended)
    assert len(handle.responses) == 1


async def test_late_answer_is_a_failure_while_the_controller_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    async def stuck(session: str, questions: Sequence[Question]) -> list[Answer]:
        await asyncio.sleep(60)
        return []

    async def down() -> int:
        raise RuntimeError("the controller died")

    pool, _ = client(stuck, deadline_s=0.01)
    monkeypatch.setattr(pool, "_running", down)
    answer = await pool.ask(question())
    assert answer.failure == "unavailable"
    assert answer.detail == "pool 'p': no answer within 0.01 s, and Serve's controller is not responding"
    await pool.close()
