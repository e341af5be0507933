"""Scorers and routers that crash, stall or are unavailable during a batch: every response gets one correct record."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import pytest
import ray.cloudpickle

from hamr.cascade.replay import replay
from hamr.config.pools import PoolConfig, RouterConfig
from hamr.config.rewards import RewardsConfig
from hamr.data.formats import Formats
from hamr.pools.client import PoolClient
from hamr.pools.deployment import pool_status, start_pools, stop_pools
from hamr.pools.router_actor import RouterClient
from hamr.telemetry.ledger import Ledger
from hamr.types import (
    Answer,
    JudgeUnavailable,
    Question,
    Reference,
    Reply,
    RewardRecord,
    Rollout,
    SampleKey,
    Scored,
    ScorerCall,
    ServiceSample,
    Turn,
)

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

RUN = "faults"
CLOSED = "closed"
"""A file of this name in a pool's model folder keeps new replicas from starting."""


class Scripted:
    """Scorer by reply length, after a pause; `hold PID` blocks the request at that replica."""

    def __init__(self, pool: str, config: PoolConfig, model: Path) -> None:
        while (model / CLOSED).exists():
            time.sleep(0.05)
        self.pool, self.price, self.held = pool, config.price_per_1k_tokens, 0

    async def score(self, questions: Sequence[Question]) -> list[Answer]:
        said = [q.variables.get("statement_b", "") for q in questions]
        if any(text == f"hold {os.getpid()}" for text in said):
            self.held += 1
            try:
                await asyncio.sleep(1000)
            finally:
                self.held -= 1
        await asyncio.sleep({"reranker": 0.8, "judge": 0.4, "side": 0.4}.get(self.pool, 0.0))
        return [self.answer(q) for q in questions]

    def answer(self, question: Question) -> Answer:
        call = ScorerCall(
            pool=self.pool,
            model="scripted",
            prompt_version="1",
            replica="",
            queue_s=0.0,
            service_s=0.0,
            prompt_tokens=40,
            output_tokens=1,
            cost=self.price,
            cached_tokens=30,
        )
        if question.prompt:
            return Answer(text=json.dumps({"reason": "", **grades(question)}), call=call)
        text = question.variables["statement_b"]
        share = min(1.0, len(text.split()) / 20)
        verdict = {"pid": str(os.getpid()), "held": str(self.held)}.get(text, "yes")
        return Answer(score=share / 2 if self.pool == "judge" else share, verdict=verdict, call=call)

    async def check(self) -> None:
        """Always well."""

    def close(self) -> None:
        """Nothing to close."""


def grades(question: Question) -> dict[str, object]:
    """Return grades of 1 to 5 by word count, for every compared response or for a single one."""
    if question.each:
        return {"scores": {entry["name"]: min(5, len(entry["response"].split())) for entry in question.each}}
    return {"score": min(5, len(question.variables["response"].split()))}


def section(role: str, **changes: object) -> PoolConfig:
    prompt = {} if role == "grader" else {"prompt": f"{role}.en"}
    fixed = {"role": role, "engine": {"num_cpus": 0.1}, "deadline_s": 60.0, "batch_size": 4, "breaker": None}
    return PoolConfig.model_validate(fixed | prompt | changes)


SECTIONS = {
    "reranker": section("reranker", replicas=2, max_ongoing_requests=2),
    "judge": section("judge", max_ongoing_requests=4),
    "side": section("grader", max_ongoing_requests=4),
    "hedged": section(
        "judge",
        replicas=2,
        batch_size=1,
        price_per_1k_tokens=3.0,
        hedge={"floor_s": 0.5, "min_count": 5, "budget_frac": 0.2, "burst": 2},
    ),
    "wide": section("judge", replicas=2, batch_size=1, max_ongoing_requests=60),
    "absent": section(
        "judge", deadline_s=2.0, breaker={"min_count": 4, "cooldown_s": 1.0, "probes": 2, "failure_frac": 0.5}
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("absent")


@pytest.fixture(scope="module", autouse=True)
def pools(local_ray: None, folder: Path) -> Iterator[None]:
    asyncio.run(start_pools(SECTIONS, {"absent": folder}, run=RUN, timeout_s=200, scorer_factory=Scripted))
    yield
    asyncio.run(stop_pools(RUN))
    assert pool_status(RUN) == {}


def about(text: str, group: str = "g") -> Question:
    variables = {"history": "", "statement_a": "May I offer a cheaper one?", "statement_b": text}
    return Question(variables=variables, affinity=group)


def sample(index: int) -> ServiceSample:
    return ServiceSample(
        id=f"s{index}",
        ticket={},
        policy="Help the customer.",
        tools=(),
        history=(Turn(role="customer", content=f"My package {index} is too dear."),),
        references=(Reference(action=Reply(content="May I offer a cheaper one?")),),
    )


def rollout(prompt: str, index: int, text: str, siblings: int = 1) -> Rollout:
    return Rollout(
        key=SampleKey(run=RUN, step=1, prompt=prompt, sample=index),
        prompt_ids=(1,),
        token_ids=(2, 3),
        logprobs=(-0.1, -0.2),
        text=text,
        finish_reason="stop",
        versions=(),
        siblings=siblings,
    )


async def until(holds: Callable[[], Awaitable[bool]], seconds: float = 120.0) -> None:
    async with asyncio.timeout(seconds):
        while not await holds():
            await asyncio.sleep(0.1)


async def both_running(pool: str) -> bool:
    return len((await asyncio.to_thread(pool_status, RUN))[pool]["pids"]) == 2


# --- exactly once ------------------------------------------------------------------------------

REWARDS = RewardsConfig.model_validate({"format": {"weight": 0.1}, "policy": {"weight": 0.5, "pool": "side"}})
GROUPS, SIZE = 8, 8


async def score_batch(tiny: Path, disturb: bool) -> tuple[list[RewardRecord], dict[str, float]]:
    """A batch of groups, no two replies alike. `disturb`: once some are scored, a reranker's replica that is at work is
    killed; once the others have gone on for a while, the router is, with the lost requests in its hands."""
    config = RouterConfig(deadline_s=100.0, group_wait_s=6.0)
    client = await RouterClient.start(REWARDS, SECTIONS, config, tiny, Formats(), RUN)
    pairs = []
    for i in range(GROUPS):
        for j in range(SIZE):
            words = ["please"] * ((5 * i + 3 * j) % 20)
            pairs.append((sample(i), rollout(f"s{i}", j, " ".join([f"offer{i}x{j}", *words]), SIZE)))
    try:
        tasks = [asyncio.create_task(client.score(*pair)) for pair in pairs]
        if disturb:

            async def answered(least: int) -> bool:
                return (await client.metrics())["pool/reranker/asked"] >= least

            await until(lambda: answered(8))
            os.kill((await asyncio.to_thread(pool_status, RUN))["reranker"]["pids"][0], signal.SIGKILL)
            await until(lambda: answered(24))
            assert not all(task.done() for task in tasks), "the router has to die in the middle"
            os.kill(await client.actor.ready.remote(), signal.SIGKILL)
        return await asyncio.gather(*tasks), dict(await client.metrics())
    finally:
        await client.shutdown()


@pytest.mark.deep
async def test_batch_scored_through_crashes_equals_an_undisturbed_batch(tiny: Path, tmp_path: Path) -> None:
    """64 responses in 8 groups, with the cascade and a reward that compares. A reranker's replica dies with requests
    in hand, then the router with everything: every record is there, once, with the result of an undisturbed run."""
    calm, calm_metrics = await score_batch(tiny, disturb=False)
    await until(lambda: both_running("reranker"))
    rough, metrics = await score_batch(tiny, disturb=True)
    assert calm_metrics["router/rescored"] == 0
    assert metrics["router/rescored"] > 0
    assert (metrics["router/unrouted"], calm_metrics["router/unrouted"]) == (0, 0)
    assert len({r.key for r in rough}) == GROUPS * SIZE
    for before, after in zip(calm, rough, strict=True):
        assert isinstance(before.total, Scored)
        assert (after.key, after.total, after.components) == (before.key, before.total, before.components)
        assert (after.band, after.s_r, after.s_j) == (before.band, before.s_r, before.s_j)
        assert (after.reference_scores, after.action) == (before.reference_scores, before.action)
        assert replay(after, REWARDS) == before.total
    assert {r.band for r in rough} == {"below", "inside", "above"}
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        assert ledger.add(rough) == GROUPS * SIZE
        assert (ledger.add(rough), ledger.count()) == (0, GROUPS * SIZE)
        assert list(ledger.rows()) == rough
    # Of 40 prompt tokens a question, 30 were cached.
    assert metrics["pool/reranker/prefix_hit_frac"] == 0.75


async def test_killed_replica_loses_none_of_fifty_requests() -> None:
    client = PoolClient("wide", SECTIONS["wide"], RUN)
    try:
        first = await client.ask(about("pid"))
        victim = int(first.verdict or 0)
        held = [asyncio.create_task(client.ask(about(f"hold {victim}"))) for _ in range(50)]

        async def all_there() -> bool:
            return (await client.ask(about("held"))).verdict == "50"

        await until(all_there)
        os.kill(victim, signal.SIGKILL)
        answers = await asyncio.gather(*held)
        assert [a.failure for a in answers] == [None] * 50
        assert [a.score for a in answers] == [0.1] * 50
        assert {a.call.attempts for a in answers if a.call} == {2}
        assert (await client.ask(about("pid"))).verdict != first.verdict
        assert client.metrics()["retried"] == 50
    finally:
        await client.close()


@pytest.mark.deep
async def test_group_stays_on_one_replica_after_losing_its_own() -> None:
    """Checked before the loss, directly after it and with both replicas running: one replica, which has the group's
    prefix cache. A client hears of a new replica some time after the replica runs, and a group may move then.
    """
    client = PoolClient("wide", SECTIONS["wide"], RUN)

    async def homes(count: int = 12) -> set[str | None]:
        return {(await client.ask(about("pid"))).verdict for _ in range(count)}

    async def both_reached() -> bool:
        """Return True if the questions of sixteen groups go to two processes, of which none is the killed one."""
        pids = {(await client.ask(about("pid", f"g{i}"))).verdict for i in range(16)}
        return len(pids) == 2 and first not in pids

    first: str | None = None
    try:
        await until(both_reached)
        [first] = await homes()
        os.kill(int(first or 0), signal.SIGKILL)
        [second] = await homes(3)  # before a replacement runs
        assert second not in (None, first)
        await until(both_reached)
        assert len(await homes()) == 1
    finally:
        await client.close()


# --- hedging -----------------------------------------------------------------------------------


async def test_questions_of_a_stalled_replica_are_hedged_within_the_budget() -> None:
    """The group's replica blocks every request. 20 questions earn a budget of 4, of which at most 2 are saved: two
    more questions are hedged and answered by the other replica, a third one times out.
    """
    client = PoolClient("hedged", SECTIONS["hedged"], RUN)
    try:
        stalled = (await client.ask(about("pid"))).verdict
        warm = [await client.ask(about("one two")) for _ in range(19)]
        assert client.metrics()["hedged"] == 0
        late = await asyncio.gather(*(client.ask(about(f"hold {stalled}")) for _ in range(2)))
        assert [a.score for a in late] == [0.1, 0.1]
        assert all(a.call and a.call.replica != warm[0].call.replica for a in late if warm[0].call)
        # Both tries count, and the one that was cancelled is as dear as the one that came.
        assert [(a.call.attempts, a.call.cost) for a in late if a.call] == [(2, 6.0), (2, 6.0)]
        metrics = client.metrics()
        assert (metrics["hedged"], metrics["hedge_won"], metrics["hedge_cost"], metrics["retried"]) == (2, 2, 6.0, 0)
        assert (metrics["asked"], metrics["scored"]) == (22, 22), "no answer counts twice"
        assert metrics["hedge_after_s"] >= 0.5
        third = asyncio.create_task(client.ask(about(f"hold {stalled}")))
        await asyncio.sleep(2.0)
        assert not third.done()
        assert client.metrics()["hedged"] == 2

        async def only_the_third_is_held() -> bool:
            return (await client.ask(about("held"))).verdict == "1"

        await until(only_the_third_is_held)
        third.cancel()
    finally:
        await client.close()


# --- no replicas -------------------------------------------------------------------------------


@pytest.mark.deep
async def test_pool_without_replicas_opens_its_breaker_until_recovery(tiny: Path, folder: Path, tmp_path: Path) -> None:
    """No replica of the judge runs: its questions are unavailable at their deadline, then immediately, since the
    breaker is open; the reranker replaces it, as the records show. When a replica is back, probes close the breaker."""
    rewards = RewardsConfig.model_validate({"consistency": {"judge": "absent", "fallback": "reranker"}})
    client = await RouterClient.start(rewards, SECTIONS, RouterConfig(deadline_s=30.0), tiny, Formats(), RUN)
    direct = PoolClient("absent", SECTIONS["absent"], RUN)
    try:
        (folder / CLOSED).touch()
        os.kill((await asyncio.to_thread(pool_status, RUN))["absent"]["pids"][0], signal.SIGKILL)

        async def gone() -> bool:
            return not (await asyncio.to_thread(pool_status, RUN))["absent"]["pids"]

        await until(gone)
        first = await direct.ask(about("a b c d"))
        assert (first.failure, first.retry_in_s) == ("unavailable", None)
        assert "no replica was running within 2 s" in first.detail

        async def score(start: int, count: int) -> list[RewardRecord]:
            rollouts = [rollout("s0", i, f"offer{i}") for i in range(start, start + count)]
            return list(await asyncio.gather(*(client.score(sample(0), r) for r in rollouts)))

        records = await score(0, 8)
        assert [(r.total, r.fallback, r.band) for r in records] == [(Scored(value=0.05), "reranker", "below")] * 8
        assert (await client.describe())["absent"]["breaker"] in ("open", "half_open")
        metrics = await client.metrics()
        assert (metrics["router/fallbacks"], metrics["pool/absent/unavailable"]) == (8, 8)
        assert metrics["pool/absent/breaker_openings"] >= 1
        assert metrics["pool/absent/breaker"] > 0
        with Ledger(tmp_path / "ledger.sqlite") as ledger:
            ledger.add(records)
            flagged = "SELECT COUNT(*) FROM records WHERE json_extract(record, '$.fallback') = 'reranker'"
            assert ledger.query(flagged) == [(8,)]
            assert [replay(r, rewards) for r in ledger.rows()] == [Scored(value=0.05)] * 8
            assert {type(replay(r, RewardsConfig())) for r in ledger.rows()} == {JudgeUnavailable}

        (folder / CLOSED).unlink()
        asked = 8

        async def back() -> bool:
            nonlocal asked
            [record] = await score(asked, 1)
            asked += 1
            return record.fallback is None and (await client.describe())["absent"]["breaker"] == "closed"

        await until(back)
        assert (await client.metrics())["pool/absent/breaker"] == 0.0
        [record] = await score(asked, 1)
        assert (record.s_r, record.s_j, record.fallback) == (0.05, 0.05, None)
        assert record.total == Scored(value=pytest.approx(0.05))
    finally:
        (folder / CLOSED).unlink(missing_ok=True)
        await direct.close()
        await client.shutdown()
