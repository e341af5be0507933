"""The router as an actor: it scores like its pure core, loses no response in a crash and times out at a deadline."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray.cloudpickle

from hamr.cascade.replay import replay
from hamr.cascade.router import RewardRouter
from hamr.config.pools import EngineConfig, PoolConfig, RouterConfig
from hamr.config.rewards import RewardsConfig
from hamr.data.formats import Formats
from hamr.errors import ConfigError
from hamr.models.tokenizer import load_tokenizer
from hamr.pools.deployment import start_pools, stop_pools
from hamr.pools.router_actor import RouterClient
from hamr.telemetry.record_json import record_from_json, record_to_json
from hamr.types import (
    Answer,
    Failure,
    JudgeTimeout,
    Question,
    Reference,
    Reply,
    Rollout,
    SampleKey,
    Scored,
    ScorerCall,
    ServiceSample,
    Turn,
    VersionSpan,
)

pytestmark = [pytest.mark.integration, pytest.mark.timeout(200)]

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

RUN = "routed"
REWARDS = RewardsConfig.model_validate({"format": {"weight": 0.1}, "length": {"weight": 0.1}})
SECTIONS = {
    role: PoolConfig(role=role, prompt=f"{role}.en", engine=EngineConfig(num_cpus=0.1), deadline_s=30.0)
    for role in ("reranker", "judge")
}
SAMPLE = ServiceSample(
    id="s",
    ticket={},
    policy="Help the customer.",
    tools=(),
    history=(Turn(role="customer", content="My package is too dear."),),
    references=(Reference(action=Reply(content="May I offer a cheaper one?")),),
)


SECTIONS["side"] = PoolConfig(role="grader", engine=EngineConfig(num_cpus=0.1), deadline_s=30.0)
BOTH_PAPERS = RewardsConfig.model_validate({
    "dialogue": {"weight": 1.0, "pool": "side"},
    "policy": {"weight": 1.0, "pool": "side"},
    "risk": {"weight": 1.0, "pool": "side"},
})  # fmt: skip


def written(question: Question) -> str:
    """Return a grade of 1 to 5 by word count; the first answer of the risk judge is unparsable."""
    if question.prompt == "risk.en":
        return '{"reason": "", "types": [], "risk": "no"}' if question.attempt else "No risk that I can see."
    if question.each:
        scores = {entry["name"]: min(5, len(entry["response"].split())) for entry in question.each}
        return json.dumps({"reason": f"{len(scores)} compared", "scores": scores})
    return json.dumps({"reason": "", "score": min(5, len(question.variables["response"].split()))})


def opinion(pool: str, question: Question) -> Answer:
    """A score that depends on the pool and the reply alone: `s` words of 20 are an s_r of s/20; the judge says half."""
    if question.prompt:
        return Answer(text=written(question), call=called(pool, question.prompt))
    share = min(1.0, len(question.variables["statement_b"].split()) / 20)
    return Answer(score=share if pool == "reranker" else share / 2, verdict="yes", call=called(pool, "1"))


def called(pool: str, prompt_version: str) -> ScorerCall:
    return ScorerCall(
        pool=pool,
        model="scripted",
        prompt_version=prompt_version,
        replica="",
        queue_s=0.0,
        service_s=0.0,
        prompt_tokens=1,
        output_tokens=1,
    )


class Scripted:
    def __init__(self, pool: str, config: PoolConfig, model: Path) -> None:
        self.pool = pool

    async def score(self, questions: Sequence[Question]) -> list[Answer]:
        said = [q.variables.get("statement_b", "") for q in questions]
        slow = any("slowly" in text for text in said)
        hung = self.pool == "judge" and any("never" in text for text in said)
        await asyncio.sleep(1000 if hung else 0.3 if slow else 0.01)
        return [opinion(self.pool, q) for q in questions]

    async def check(self) -> None:
        """Always well."""

    def close(self) -> None:
        """Nothing to close."""


@pytest.fixture(scope="module", autouse=True)
def pools(local_ray: None) -> Iterator[None]:
    asyncio.run(start_pools(SECTIONS, {}, run=RUN, timeout_s=150, scorer_factory=Scripted))
    yield
    asyncio.run(stop_pools(RUN))


def rollout(index: int, text: str) -> Rollout:
    return Rollout(
        key=SampleKey(run=RUN, step=0, prompt="s", sample=index),
        prompt_ids=(1,),
        token_ids=(2, 3),
        logprobs=(-0.1, -0.2),
        text=text,
        finish_reason="stop",
        versions=(VersionSpan(version=3, start=0, end=2),),
    )


def reply(index: int, *words: str) -> Rollout:
    """Return a response of 1 to 20 words that differs from every other, because the router caches answers."""
    return rollout(index, " ".join([*words, f"offer{index}", *["please"] * (index % (20 - len(words)))]))


async def start(tiny: Path, deadline_s: float = 30.0) -> RouterClient:
    config = RouterConfig(deadline_s=deadline_s)
    return await RouterClient.start(REWARDS, SECTIONS, config, tiny, Formats(), RUN)


async def test_actor_scores_equal_the_pure_core(tiny: Path) -> None:
    async def ask(pool: str, question: Question) -> Answer:
        return opinion(pool, question)

    core = RewardRouter(
        REWARDS,
        {name: lambda q, name=name: ask(name, q) for name in SECTIONS},
        count_tokens=load_tokenizer(tiny).count,
        deadline_s=30.0,
    )
    client = await start(tiny)
    try:
        rollouts = [reply(i) for i in range(60)]
        there = await asyncio.gather(*(client.score(SAMPLE, r) for r in rollouts))
        here = await asyncio.gather(*(core.score(SAMPLE, r) for r in rollouts))
        for remote, local in zip(there, here, strict=True):
            assert (remote.key, remote.total, remote.components) == (local.key, local.total, local.components)
            assert (remote.band, remote.s_r, remote.s_j) == (local.band, local.s_r, local.s_j)
            assert all(call.replica for call in remote.calls)
        assert {r.band for r in there} == {"below", "inside", "above"}
        metrics = await client.metrics()
        assert metrics["router/requests"] == 60
        assert metrics["pool/reranker/asked"] == 60
        assert metrics["router/judge_calls"] == sum(r.band != "inside" for r in there)
        assert (metrics["router/rescored"], metrics["router/unrouted"]) == (0, 0)
    finally:
        await client.shutdown()


async def test_judged_rewards_run_concurrently_and_compare_the_group(tiny: Path) -> None:
    config = RouterConfig(deadline_s=30.0)
    client = await RouterClient.start(BOTH_PAPERS, SECTIONS, config, tiny, Formats(), RUN)
    try:
        group = [replace(rollout(i, " ".join(["word"] * (i + 1))), siblings=5) for i in range(5)]
        records = await asyncio.gather(*(client.score(SAMPLE, r) for r in group))
        for i, record in enumerate(records):
            values = {c.name: c.value for c in record.components}
            assert (values["dialogue"], values["policy"], values["risk"]) == (i / 4, i / 4, 1.0)
            assert values["consistency"] is not None
            assert replay(record_from_json(record_to_json(record)), BOTH_PAPERS) == record.total
            assert {j.component: j.compared for j in record.judgements} == {"dialogue": 1, "policy": 5, "risk": 1}
        metrics = await client.metrics()
        # Five of dialogue, one that compares, and risk asked twice for each.
        assert metrics["pool/side/asked"] == metrics["router/side_calls"] == 5 + 1 + 10
        assert metrics["router/reasks"] == 5
    finally:
        await client.shutdown()


async def test_a_killed_router_loses_no_response(tiny: Path) -> None:
    """Killed with 48 slow questions pending: each response still gets one record with its own score."""
    client = await start(tiny)
    try:
        pid = await client.actor.ready.remote()
        rollouts = [reply(i, "slowly") for i in range(48)]
        tasks = [asyncio.create_task(client.score(SAMPLE, r)) for r in rollouts]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        os.kill(pid, signal.SIGKILL)
        records = await asyncio.gather(*tasks)
        assert [r.key for r in records] == [r.key for r in rollouts]
        assert all(isinstance(r.total, Scored) for r in records)
        shares = [len(r.text.split()) / 20 for r in rollouts]
        assert [r.s_r for r in records] == pytest.approx(shares)
        assert await client.actor.ready.remote() != pid
        assert (await client.metrics())["router/rescored"] > 0
    finally:
        await client.shutdown()


async def test_hanging_scorer_is_a_typed_failure(tiny: Path) -> None:
    client = await start(tiny, deadline_s=3.0)
    try:
        stuck, fine = await asyncio.gather(
            client.score(SAMPLE, reply(1, "never", "never")), client.score(SAMPLE, reply(17))
        )
        assert isinstance(stuck.total, JudgeTimeout)
        assert stuck.s_j is None
        assert isinstance(fine.total, Scored)
    finally:
        await client.shutdown()


async def test_permanently_dead_router_is_a_failure(tiny: Path) -> None:
    client = await start(tiny)
    impatient = RouterClient(client.actor, RouterConfig(deadline_s=1.0), grace_s=1.0)
    await client.shutdown()
    record = await impatient.score(SAMPLE, reply(0))
    assert isinstance(record.total, Failure)
    assert record.total.detail == "the router returned no record within 2 s"
    assert (record.key.sample, record.components, record.band) == (0, (), "none")


@pytest.mark.parametrize(
    ("consistency", "says"),
    [({"judge": "jury"}, r"rewards\.consistency\.judge: 'jury'"), ({"mode": "reranker", "reranker": "r2"}, "'r2'")],
)
async def test_rewards_without_matching_pools_are_rejected_immediately(
    tiny: Path, consistency: dict[str, Any], says: str
) -> None:
    rewards = RewardsConfig.model_validate({"consistency": consistency})
    with pytest.raises(ConfigError, match=says):
        await RouterClient.start(rewards, SECTIONS, RouterConfig(), tiny, Formats(), RUN)
