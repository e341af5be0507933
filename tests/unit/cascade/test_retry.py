"""`fallback: wait` on a pool that recovers and on one that does not, on a fake clock."""

import asyncio
from types import SimpleNamespace

import pytest
from scripted import ScriptedPool, judged, reranked, rollout, sample

from hamr.cascade.cached_pool import CachedPool
from hamr.cascade.retry import ask_until, patient
from hamr.cascade.router import RewardRouter
from hamr.config.rewards import ConsistencyConfig, RewardsConfig
from hamr.types import Answer, JudgeUnavailable, JudgeUnparsable, Question, Scored

QUESTION = Question(variables={"statement_a": "a", "statement_b": "b"})
REFUSED = Answer(failure="unavailable", detail="open", retry_in_s=7.0)
AWAY = Answer(failure="timeout", detail="slow")


async def told(*answers, time_s):
    """Asks a pool that gives these answers one after the other, within `time_s` of a clock that only sleep moves.

    Returns the last answer, the waits, and how many answers were left."""
    script, waits, start = list(answers), [], asyncio.get_running_loop().time()

    async def pool(question):
        return script.pop(0)

    async def sleep(seconds):
        waits.append(seconds)

    cached = CachedPool(pool, deadline_s=60.0)
    heard = await ask_until(cached, QUESTION, until=start + time_s, clock=lambda: start + sum(waits), sleep=sleep)
    return heard.answer, waits, len(script)


@pytest.mark.parametrize("attempts", [1, 3])
async def test_refusing_pool_is_asked_a_limited_number_of_times(attempts):
    asked = []

    async def pool(question):
        asked.append(question)
        return REFUSED

    assert await patient(pool, SimpleNamespace(attempts=attempts, longest_wait_s=0.0))(QUESTION) == REFUSED
    assert len(asked) == attempts


async def test_retry_waits_as_long_as_the_refusal_states():
    answer, waits, _ = await told(REFUSED, REFUSED, judged(0.5), time_s=100.0)
    assert (answer.score, waits) == (0.5, [7.0, 7.0])


async def test_other_failures_are_retried_with_exponential_backoff():
    answer, waits, _ = await told(*[AWAY] * 6, judged(0.5), time_s=100.0)
    assert (answer.score, waits) == (0.5, [1.0, 2.0, 4.0, 8.0, 15.0, 15.0])


async def test_last_failure_is_returned_at_the_deadline():
    assert await told(AWAY, REFUSED, REFUSED, REFUSED, time_s=10.0) == (REFUSED, [1.0, 7.0], 1)


async def test_unparsable_answer_is_not_retried():
    answer, waits, _ = await told(Answer(failure="unparsable"), time_s=100.0)
    assert (answer.failure, waits) == ("unparsable", [])


# --- through the router ------------------------------------------------------------------------


def build(judge, fallback, **consistency):
    rewards = RewardsConfig(consistency=ConsistencyConfig(fallback=fallback, **consistency))
    pools = {"reranker": ScriptedPool("reranker", lambda q: reranked(0.3)), "judge": judge}
    return RewardRouter(rewards, pools, count_tokens=lambda text: len(text.split()), deadline_s=5.0)


def refusing(times, last):
    answers = iter([Answer(failure="unavailable", detail="open", retry_in_s=0.0)] * times + [last] * 100)
    return ScriptedPool("judge", lambda question: next(answers))


@pytest.mark.parametrize(
    ("fallback", "total", "flag"),
    [
        ("wait", Scored(value=0.05 * 0.3 + (1 - 0.05) * 0.8), None),
        ("reranker", Scored(value=0.3), "reranker"),
        ("exclude", JudgeUnavailable(detail="open"), None),
    ],
)
async def test_open_breaker_is_handled_by_each_fallback(fallback, total, flag):
    router = build(refusing(2, judged(0.8)), fallback)
    record = await router.score(sample("a"), rollout("x"))
    assert (record.total, record.fallback, record.band) == (total, flag, "below")
    metrics = router.metrics()
    assert metrics.get("router/fallbacks", 0.0) == float(flag is not None)
    assert metrics["router/judge_calls"] == float(fallback == "wait"), "a refused question is put to nobody"
    assert [c.pool for c in record.calls] == ["reranker", "judge"][: 1 + (fallback == "wait")]


async def test_unparsable_answer_fails_under_every_fallback():
    for fallback in ("wait", "reranker", "exclude"):
        judge = ScriptedPool("judge", lambda q: Answer(failure="unparsable", detail="hm"))
        record = await build(judge, fallback).score(sample("a"), rollout("x"))
        assert record.total == JudgeUnparsable(detail="hm")
        assert [q.attempt for q in judge.asked] == [0, 1]


async def test_audit_is_not_retried():
    judge = refusing(1, judged(0.8))
    rewards = RewardsConfig(consistency=ConsistencyConfig(fallback="wait", audit_frac=1.0))
    pools = {"reranker": ScriptedPool("reranker", lambda q: reranked(0.8)), "judge": judge}
    router = RewardRouter(rewards, pools, count_tokens=len, deadline_s=5.0)
    record = await router.score(sample("a"), rollout("x"))
    assert (record.total, len(judge.asked)) == (Scored(value=0.8), 1)
    assert record.audit.s_j is None
