"""Pools whose scorer hangs, fails, is overloaded or is missing. Scripted scorers, real Serve."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import ray.cloudpickle

from hamr.config.pools import EngineConfig, PoolConfig
from hamr.errors import BadInput, EngineDied, ScorerUnavailable
from hamr.pools.client import PoolClient, serve_applications, split_app_name
from hamr.pools.deployment import pool_status, start_pools, stop_pools
from hamr.types import Answer, Question, ScorerCall

pytestmark = [pytest.mark.integration, pytest.mark.timeout(200)]

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Scripted:
    """Does what the question says: a number is the score, other words are events. `seen` counts questions."""

    def __init__(self, pool: str, config: PoolConfig, model: Path) -> None:
        if pool == "broken":
            raise BadInput("pools.broken.model", "nowhere", "no such model")
        self.pool, self.seen, self.calls, self.unfinished, self.sick = pool, 0, 0, 0, False

    async def score(self, questions: Sequence[Question]) -> list[Answer]:
        self.calls += 1
        return list(await asyncio.gather(*(self.one(q.variables["do"], self.calls) for q in questions)))

    async def one(self, do: str, request: int) -> Answer:
        self.seen += 1
        call = ScorerCall(
            pool=self.pool,
            model="scripted",
            prompt_version="1",
            replica="",
            queue_s=0.0,
            service_s=0.0,
            prompt_tokens=1,
            output_tokens=1,
        )
        match do.split():
            case ["hang"]:
                await asyncio.sleep(1000)
            case ["raise"]:
                raise RuntimeError("the script says so")
            case ["die", pid]:
                if pid == str(os.getpid()):
                    raise EngineDied("the script says so")
            case ["unavailable", "until", n]:
                if self.seen < int(n):
                    return Answer(failure="unavailable", detail=f"question {self.seen}", call=call)
                return Answer(score=1.0, verdict=str(self.seen), call=call)
            case ["sicken"]:
                self.sick = True
            case ["calls"]:
                return Answer(score=1.0, verdict=str(request), call=call)
            case ["pid"]:
                return Answer(score=1.0, verdict=str(os.getpid()), call=call)
            case ["slow", seconds]:
                await asyncio.sleep(float(seconds))
            case ["finish"]:
                self.unfinished += 1
                await asyncio.sleep(1.0)
                self.unfinished -= 1
            case ["unfinished"]:
                return Answer(score=1.0, verdict=str(self.unfinished), call=call)
            case ["unparsable"]:
                return Answer(failure="unparsable", detail="mumbles", call=call)
            case [number]:
                return Answer(score=float(number), verdict="yes", call=call)
        return Answer(score=0.25, verdict="no", call=call)

    async def check(self) -> None:
        if self.sick:
            raise EngineDied("feels sick")

    def close(self) -> None:
        """Nothing to close."""


def section(**changes: object) -> PoolConfig:
    engine = EngineConfig(num_cpus=0.1)
    return PoolConfig.model_validate(
        {"role": "judge", "prompt": "judge.en", "engine": engine, "batch_size": 4} | changes
    )


RUN = "scripted"
SECTIONS = {
    "plain": section(deadline_s=60.0),
    "flaky": section(attempts=3),
    "narrow": section(max_ongoing_requests=1, max_queued_requests=1, batch_size=1),
}
"""Deployments. What a client decides, such as its deadline and attempts, differs between tests."""


def client_of(pool: str, **changes: object) -> PoolClient:
    return PoolClient(pool, SECTIONS[pool].model_copy(update=changes), RUN)


@pytest.fixture(scope="module", autouse=True)
def pools(local_ray: None) -> Iterator[None]:
    asyncio.run(start_pools(SECTIONS, {}, run=RUN, timeout_s=150, scorer_factory=Scripted))
    yield
    asyncio.run(stop_pools(RUN))
    assert pool_status(RUN) == {}


async def ask(pool: str, *what: object, **changes: object) -> list[Answer]:
    client = client_of(pool, **changes)
    return await asyncio.gather(*(client.ask(do(w)) for w in what))


def do(what: object) -> Question:
    return Question(variables={"do": str(what)})


async def test_hanging_scorer_times_out_and_the_pool_stays_usable() -> None:
    client = client_of("plain", deadline_s=3.0, batch_size=1)
    hung, quick = await asyncio.gather(client.ask(do("hang")), client.ask(do(0.5)))
    assert (hung.score, hung.failure) == (None, "timeout")
    assert "no answer from 1 running replicas within 3 s" in hung.detail
    assert hung.call is not None
    assert hung.call.queue_s >= 3.0
    assert quick.score == 0.5
    assert (await client.ask(do(0.75))).score == 0.75
    assert client.metrics() == {
        "asked": 3, "scored": 2, "retried": 0, "timeout": 1, "unparsable": 0, "unavailable": 0, "refused": 0,
        "breaker": 0.0, "breaker_openings": 0, "prefix_hit_frac": 0.0,
    }  # fmt: skip


async def test_raising_scorer_is_retried_and_then_unavailable() -> None:
    [answer] = await ask("plain", "raise", attempts=2)
    assert answer.failure == "unavailable"
    assert answer.detail == "pool 'plain': RuntimeError: the script says so"
    assert answer.call is not None
    assert answer.call.attempts == 2


async def test_only_transient_failures_are_retried() -> None:
    flaky, fine, mumbling = await ask("flaky", "unavailable until 4", 0.5, "unparsable")
    # Three questions in the first request; the second has one, which is the fourth that the scorer sees.
    assert (flaky.score, flaky.verdict) == (1.0, "4")
    assert flaky.call is not None
    assert flaky.call.attempts == 2
    assert fine.call is not None
    assert (fine.score, fine.call.attempts) == (0.5, 1)
    assert mumbling.failure == "unparsable"
    assert mumbling.call is not None
    assert mumbling.call.attempts == 1


async def test_questions_are_batched_up_to_the_batch_size() -> None:
    """Ten concurrent questions with a batch size of four: three scorer calls."""
    answers = await ask("plain", *["calls"] * 10)
    assert len({a.verdict for a in answers}) == 3


async def test_missing_pool_is_unavailable() -> None:
    absent = PoolClient("absent", section(deadline_s=2.0), RUN)
    answer = await absent.ask(do(1))
    assert (answer.score, answer.failure) == (None, "unavailable")
    assert answer.detail == "pool 'absent': no replica was running within 2 s"
    assert [a.score for a in await ask("plain", 1)] == [1.0], "its neighbours are not disturbed"


async def test_failed_replica_start_is_reported_with_its_reason() -> None:
    both = {"fine": section(), "broken": section()}
    with pytest.raises(ScorerUnavailable, match=r"pool 'broken'.*pools\.broken\.model: 'nowhere': no such model"):
        await start_pools(both, {}, run="broken", timeout_s=100, scorer_factory=Scripted)
    assert pool_status("broken") == {}, "nothing of the run stays"
    assert pool_status(RUN).keys() == SECTIONS.keys(), "another run's pools do"


@pytest.mark.parametrize("delay_s", [0.0, 0.05, 0.2])
async def test_a_start_that_is_cancelled_leaves_no_pool_and_no_thread(delay_s: float) -> None:
    run, before = f"cancelled-{delay_s}", set(threading.enumerate())
    starting = asyncio.create_task(
        start_pools({"plain": section()}, {}, run=run, timeout_s=60, scorer_factory=Scripted)
    )

    async def runs() -> set[str]:
        return {split_app_name(app)[0] for app in await serve_applications()}

    while not starting.done() and run not in await runs():
        await asyncio.sleep(0)
    await asyncio.sleep(delay_s)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert pool_status(run) == {}
    await asyncio.get_running_loop().shutdown_default_executor()
    assert not [thread for thread in set(threading.enumerate()) - before if "asyncio" in thread.name]


async def test_pool_without_capacity_is_named_at_the_start_timeout() -> None:
    big = section(engine=EngineConfig(num_cpus=500))
    with pytest.raises(ScorerUnavailable, match=r"not ready within 2 s .*big.*cluster\.start_timeout_s"):
        await start_pools({"big": big}, {}, run=RUN + "--room", timeout_s=2, scorer_factory=Scripted)
    assert pool_status(RUN + "--room") == {}
    assert pool_status(RUN).keys() == SECTIONS.keys()


async def test_overload_is_retried_or_reported() -> None:
    """The pool accepts one active and one queued request: of eight concurrent clients the rejected ones retry. A
    single client sends no more than the pool accepts.
    """

    async def eight_ask(attempts: int) -> list[Answer]:
        clients = [client_of("narrow", attempts=attempts) for _ in range(8)]
        return await asyncio.gather(*(client.ask(do("slow 0.2")) for client in clients))

    assert [a.failure for a in await ask("narrow", *["slow 0.2"] * 4, attempts=1)] == [None] * 4
    answers = await eight_ask(attempts=40)
    assert [a.score for a in answers] == [0.25] * 8
    assert any(a.call and a.call.attempts > 1 for a in answers)
    failures = [a for a in await eight_ask(attempts=1) if a.failure]
    assert failures
    assert {a.failure for a in failures} == {"unavailable"}
    assert all("BackPressureError" in a.detail for a in failures)


async def test_requests_of_a_dead_replica_are_retried() -> None:
    [first] = await ask("plain", "pid")
    begun = asyncio.create_task(ask("plain", *["finish"] * 8))
    while (await ask("plain", "unfinished"))[0].verdict != "8":
        assert not begun.done()
    os.kill(int(first.verdict or 0), signal.SIGKILL)
    answers = await begun
    assert [a.score for a in answers] == [0.25] * 8
    assert [a.call.attempts for a in answers if a.call] == [2] * 8
    assert (await ask("plain", "pid"))[0].verdict != first.verdict


async def test_replica_with_a_dead_engine_is_replaced_immediately() -> None:
    """A retry at the same replica would fail too, and there is no other one, so the process must exit."""
    [first] = await ask("plain", "pid")
    [answer] = await ask("plain", f"die {first.verdict}")
    assert answer.score == 0.25
    assert answer.call is not None
    assert answer.call.attempts == 2
    assert (await ask("plain", "pid"))[0].verdict != first.verdict


async def test_a_replica_that_fails_its_health_check_is_replaced() -> None:
    [first, _] = await ask("plain", "pid", "sicken")
    async with asyncio.timeout(100):
        while (await ask("plain", "pid"))[0].verdict == first.verdict:
            await asyncio.sleep(0.2)


async def test_closing_a_client_cancels_its_waiters() -> None:
    client = client_of("plain")
    sent, gathering = (asyncio.create_task(client.ask(do("hang"))) for _ in range(2))
    await asyncio.sleep(0.1)
    late = asyncio.create_task(client.ask(do("hang")))
    await asyncio.sleep(0)
    await client.close()
    for task in (sent, gathering, late):
        with pytest.raises(asyncio.CancelledError):
            await task
