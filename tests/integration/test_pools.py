"""Pools of real engines on `tiny`: scores equal those of the scorer and survive the loss of replicas."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hamr.config.pools import EngineConfig, PoolConfig
from hamr.pools.client import PoolClient
from hamr.pools.deployment import pool_status, start_pools, stop_pools
from hamr.pools.scorers import load_prompt
from hamr.types import Answer, Question

pytestmark = [pytest.mark.integration, pytest.mark.timeout(500)]

RUN, TWO = "real", "two"
ENGINE = EngineConfig(threads=1, kv_cache_mb=64, num_cpus=0.5)
POOLS = {
    "reranker": PoolConfig(
        role="reranker",
        prompt="reranker.en",
        model="tiny",
        dtype="float32",
        engine=ENGINE,
        batch_size=4,
        price_per_1k_tokens=0.5,
    ),
    "judge": PoolConfig(
        role="judge", prompt="judge.en", model="tiny", dtype="float32", engine=ENGINE, batch_size=4, thinking_tokens=6
    ),
}


def questions(count: int, start: int = 0) -> list[Question]:
    """`count` replies in groups of four that share history and reference."""
    return [
        Question(
            variables={
                "history": f"Customer: My package number {i // 4} is too dear.",
                "statement_a": "May I offer you a cheaper one?",
                "statement_b": f"Plan {i} costs {i * 7 % 31} a month.",
            },
            affinity=f"group {i // 4}",
        )
        for i in range(start, start + count)
    ]


async def ask_all(pool: str, asked: list[Question], kill_after: int | None = None, run: str = RUN) -> list[Answer]:
    """Return all answers; `kill_after` kills one replica's process after that number of answers."""
    client = PoolClient(pool, POOLS[pool], run)
    victim = pool_status(run)[pool]["pids"][0]
    tasks = [asyncio.create_task(client.ask(q)) for q in asked]
    try:
        if kill_after is not None:
            for _, done in zip(range(kill_after), asyncio.as_completed(tasks), strict=False):
                await done
            os.kill(victim, signal.SIGKILL)
            assert not all(task.done() for task in tasks)
        return await asyncio.gather(*tasks)
    finally:
        await client.close()


@pytest.fixture(scope="module", autouse=True)
def pools(local_ray: None, tiny: Path) -> Iterator[None]:
    asyncio.run(start_pools(POOLS, dict.fromkeys(POOLS, tiny), run=RUN, timeout_s=300))
    yield
    asyncio.run(stop_pools(RUN))
    assert pool_status(RUN) == {}


async def test_reranker_score_is_p_yes_of_the_first_token(tiny: Path, oracle: Any) -> None:
    prompt = load_prompt("reranker", POOLS["reranker"], tiny)
    answers = await ask_all("reranker", questions(6))
    model = oracle(tiny)
    for question, answer in zip(questions(6), answers, strict=True):
        row = model.distributions(tuple(prompt.question_ids(question.variables)), ())[-1].exp()
        yes, no = (row[prompt.labels[label]].item() for label in ("yes", "no"))
        assert answer.score == pytest.approx(yes / (yes + no), abs=1e-4)
        assert answer.label_mass == pytest.approx(yes + no, rel=1e-3)


async def test_judge_score_is_read_after_its_reasoning(tiny: Path, oracle: Any) -> None:
    """Repeats the second phase by hand: the returned reasoning, closed, then the position of the verdict."""
    prompt = load_prompt("judge", POOLS["judge"], tiny)
    model = oracle(tiny)
    answers = await ask_all("judge", questions(24))
    assert len({a.score for a in answers}) == 24, "the model tells the questions apart"
    for question, answer in zip(questions(24), answers, strict=True):
        ids = prompt.question_ids(question.variables) + prompt.thinking_ids()
        for _ in range(6):  # greedy, as the judge thinks
            ids.append(int(model.distributions(tuple(ids), ())[-1].argmax()))
        assert answer.reasoning == prompt.tokenizer.decode(ids[-6:]).strip()
        ids += prompt.verdict_ids(after_thinking=True)
        row = model.distributions(tuple(ids), ())[-1].exp()
        values = {verdict: row[prompt.labels[verdict]].item() for verdict in ("yes", "part", "no")}
        mass = sum(values.values())
        assert answer.score == pytest.approx((values["yes"] + values["part"] / 2) / mass, abs=1e-4)
        assert answer.label_mass == pytest.approx(mass, rel=1e-3)
        assert answer.verdict == max(values, key=lambda verdict: values[verdict])
        assert answer.call is not None
        assert answer.call.output_tokens == 7


async def test_call_record_names_the_replica_and_its_cost() -> None:
    [answer] = await ask_all("reranker", questions(1))
    call = answer.call
    assert call is not None
    assert (call.pool, call.model, call.attempts) == ("reranker", "tiny", 1)
    assert call.prompt_version.startswith("reranker.en@1+")
    assert call.replica
    assert call.queue_s >= 0.0
    assert call.service_s > 0.0
    assert call.output_tokens == 1
    assert call.cost == pytest.approx(0.5 * (call.prompt_tokens + 1) / 1000)


@pytest.fixture(scope="module")
def two_replicas(pools: None, tiny: Path) -> Iterator[None]:
    """A reranker with two engines, of another run."""
    wide = {"reranker": POOLS["reranker"].model_copy(update={"replicas": 2})}
    asyncio.run(start_pools(wide, {"reranker": tiny}, run=TWO, timeout_s=300))
    yield
    asyncio.run(stop_pools(TWO))


@pytest.mark.deep
async def test_group_stays_on_one_replica_and_groups_spread(two_replicas: None) -> None:
    answers = await ask_all("reranker", questions(80), run=TWO)
    replicas = [a.call.replica for a in answers if a.call]
    groups = [set(replicas[i : i + 4]) for i in range(0, 80, 4)]
    assert len(set(replicas)) == 2
    assert sum(len(group) == 1 for group in groups) >= 18, "a full replica may pass a group on, seldom"


async def test_question_longer_than_the_context_is_unparsable() -> None:
    long = Question(variables={"history": "word " * 3000, "statement_a": "a", "statement_b": "b"})
    for pool in POOLS:
        short, answer = await ask_all(pool, [questions(1)[0], long])
        assert answer.failure == "unparsable"
        assert "max_context=1024" in answer.detail
        assert short.failure is None, "its neighbour in the request is answered"


@pytest.mark.deep
async def test_killing_the_only_replica_delays_but_loses_no_score() -> None:
    before = pool_status(RUN)["judge"]["pids"]
    answers = await ask_all("judge", questions(200, start=2000), kill_after=20)
    assert [a.failure for a in answers] == [None] * 200
    status = pool_status(RUN)["judge"]
    assert (status["replicas"], status["running"]) == (1, 1)
    assert status["pids"] != before


@pytest.mark.deep
async def test_killing_one_of_two_replicas_loses_no_score(two_replicas: None) -> None:
    answers = await ask_all("reranker", questions(400, start=1000), kill_after=40, run=TWO)
    assert [a.failure for a in answers] == [None] * 400
    again = await ask_all("reranker", questions(400, start=1000), run=TWO)
    assert [a.score for a in answers] == pytest.approx([a.score for a in again], abs=1e-5)
