"""Equality of questions in the cache."""

import asyncio
from dataclasses import fields, replace

import pytest

from hamr.cascade.cached_pool import CachedPool
from hamr.types import Answer, Question, ScorerCall

QUESTION = Question(variables={"statement_b": "So?"}, prompt="mine.en", affinity="a")
CHANGES = {
    "variables": {"statement_b": "So!"},
    "affinity": "b",
    "prompt": "mine.zh",
    "each": ({"response": "x"},),
    "schema": {"type": "object"},
    "attempt": 1,
    "messages": ({"role": "user", "content": "x"},),
    "tools": ({"type": "function", "function": {"name": "x"}},),
    "temperature": 0.7,
    "max_new_tokens": 9,
    "seed": 3,
    "stop": ("\n",),
    "logprobs": True,
}


@pytest.mark.parametrize("field", [field.name for field in fields(Question)])
async def test_cache_key_covers_every_field_that_affects_the_answer(field):
    """A new field of Question must be added to CHANGES."""
    asked = []

    async def pool(question):
        asked.append(question)
        return Answer(score=0.5)

    cached = CachedPool(pool, deadline_s=5.0)
    other = replace(QUESTION, **{field: CHANGES[field]})
    for question in (QUESTION, other, replace(other)):
        await cached.ask(question, until=1e12)
    # The replica that answers is not part of the question.
    assert asked == ([QUESTION] if field == "affinity" else [QUESTION, other])


async def test_answer_of_the_previous_model_is_not_cached():
    asked, loaded, scores = asyncio.Event(), asyncio.Event(), [0.2, 0.8]

    async def pool(question):
        asked.set()
        await loaded.wait()
        return Answer(score=scores.pop(0))

    cached = CachedPool(pool, deadline_s=5.0)
    pending = asyncio.create_task(cached.ask(QUESTION, until=1e12))
    await asked.wait()
    cached.forget()
    loaded.set()
    assert (await pending).answer.score == 0.2
    assert (await cached.ask(QUESTION, until=1e12)).answer.score == 0.8


async def test_question_after_a_change_does_not_share_the_pending_one_before():
    loaded, scores = asyncio.Event(), [0.2, 0.8]

    async def pool(question):
        score = scores.pop(0)
        sent.set()
        await loaded.wait()
        return Answer(score=score)

    cached, sent = CachedPool(pool, deadline_s=5.0), asyncio.Event()
    before = asyncio.create_task(cached.ask(QUESTION, until=1e12))
    await sent.wait()
    cached.forget()
    sent.clear()
    after = asyncio.create_task(cached.ask(QUESTION, until=1e12))
    await sent.wait()
    loaded.set()
    assert [(await one).answer.score for one in (before, after)] == [0.2, 0.8]
    assert (await cached.ask(QUESTION, until=1e12)).answer.score == 0.8


async def test_response_that_waited_for_an_answer_has_its_cost():
    answered = asyncio.Event()

    async def pool(question):
        await answered.wait()
        return Answer(score=0.5, call=ScorerCall(pool="judge", model="m", cost=7.0))

    cached = CachedPool(pool, deadline_s=5.0)
    late = await cached.ask(QUESTION, until=asyncio.get_running_loop().time() + 0.01)
    siblings = [asyncio.create_task(cached.ask(QUESTION, until=1e12)) for _ in range(2)]
    await asyncio.sleep(0)
    answered.set()
    assert late.answer.call is None
    assert sorted([(await one).answer.call.cost for one in siblings]) == [0.0, 7.0]
    assert (await cached.ask(QUESTION, until=1e12)).answer.call.cost == 0.0


async def test_late_sibling_has_its_own_deadline():
    """The question of the first fails at its deadline. It is asked anew for one that has joined late, no more often."""
    asked = []

    async def pool(question):
        asked.append(question)
        await asyncio.sleep(0.0 if len(asked) == 2 else 60.0)
        return Answer(score=0.5)

    cached = CachedPool(pool, deadline_s=0.4)
    first = [asyncio.create_task(cached.ask(QUESTION, until=1e12)) for _ in range(2)]
    await asyncio.sleep(0.3)
    late = await cached.ask(QUESTION, until=1e12)
    assert [(await one).answer.failure for one in first] == ["timeout"] * 2
    assert (late.answer.score, len(asked)) == (0.5, 2)
