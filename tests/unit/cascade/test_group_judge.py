"""Comparative judges: waiting for siblings, deadlines, and late responses."""

import asyncio
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import ScriptedPool, call, rollout, sample

from hamr.cascade.group_judge import KEEP_S, GroupAnswers, GroupJudge, deal
from hamr.cascade.replay import replay
from hamr.cascade.router import RewardRouter
from hamr.config.rewards import RewardsConfig
from hamr.rewards.questions import JudgedText
from hamr.telemetry.record_json import record_from_json, record_to_json
from hamr.types import Answer, JudgeTimeout, JudgeUnavailable, JudgeUnparsable, Scored

GRADES = {"alpha": 5, "beta": 3, "gamma": 1, "delta": 2}
LONG = 60.0
"""A wait that no test reaches."""


def graded(question):
    """A judge that gives each response its own grade, whatever its place."""
    if question.prompt.endswith("_compared.en"):
        scores = {entry["name"]: GRADES[entry["response"]] for entry in question.each}
        fields = {"reason": "compared", "scores": scores}
    else:
        fields = {"reason": "alone", "score": GRADES[question.variables["response"]]}
    return Answer(text=json.dumps(fields), call=call("judge"))


def build(judge=graded, *, wait_s=LONG, deadline_s=LONG, clock=None, **rewards):
    config = RewardsConfig.model_validate({"consistency": {"weight": 0.0}, **(rewards or {"policy": {"weight": 1.0}})})
    pool = ScriptedPool("judge", judge)
    router = RewardRouter(
        config, {"judge": pool}, count_tokens=lambda t: len(t.split()), deadline_s=deadline_s, group_wait_s=wait_s
    )
    return router, pool, config


def responses(*texts, siblings=None):
    return [replace(rollout(text, i), siblings=siblings or len(texts)) for i, text in enumerate(texts)]


async def score(router, rollouts):
    return await asyncio.gather(*(router.score(sample("ref"), r) for r in rollouts))


def grades(records):
    return [record.judgements[0].grade for record in records]


async def test_a_group_is_judged_in_one_prompt():
    router, pool, config = build()
    records = await score(router, responses("alpha", "beta", "gamma"))
    assert grades(records) == [5, 3, 1]
    assert [r.total.value for r in records] == [1.0, 0.5, 0.0]
    assert len(pool.asked) == 1
    assert {j.compared for r in records for j in r.judgements} == {3}
    assert sorted(c.cost for r in records for c in r.calls) == [0.0, 0.0, 2.0], "the question was paid for once"
    for record in records:
        assert record_from_json(record_to_json(record)) == record
        assert replay(record, config) == record.total


@pytest.mark.parametrize("order", [(5.0, 60.0), (60.0, 5.0)])
async def test_round_deadline_is_the_latest_of_its_members(order):
    """A late response may have more time left, and one with less time does not shorten the deadline of the others."""
    now, seen = asyncio.get_running_loop().time(), []

    async def compare(sample, group, said, until):
        seen.append(until)
        return GroupAnswers(results=tuple(JudgeUnavailable(detail="") for _ in said))

    panel = GroupJudge(compare, wait_s=LONG, most=16)
    said = [JudgedText(words=text, call="") for text in ("alpha", "beta")]
    members = zip(responses("alpha", "beta"), said, order, strict=True)
    await asyncio.gather(*(panel.judge(sample("ref"), r.key, 2, one, now + left) for r, one, left in members))
    assert seen == [now + 60.0]


async def test_prompt_does_not_depend_on_arrival_order():
    seen = []
    for backwards in (False, True):
        router, pool, _ = build()
        group = responses("alpha", "beta", "gamma", "delta")
        await score(router, group[::-1] if backwards else group)
        seen.append(pool.asked[0].each)
    assert seen[0] == seen[1]


async def test_non_comparative_rewards_start_immediately():
    router, pool, _ = build(
        lambda q: Answer(text='{"reason": "", "score": 4}') if q.prompt == "dialogue.en" else graded(q),
        policy={"weight": 1.0}, dialogue={"weight": 1.0},
    )  # fmt: skip
    first, second = responses("alpha", "beta")
    early = asyncio.create_task(router.score(sample("ref"), first))
    await pool.reached.wait()
    assert [q.prompt for q in pool.asked] == ["dialogue.en"]
    await router.score(sample("ref"), second)
    await early
    assert [q.prompt for q in pool.asked].count("policy_compared.en") == 1


async def test_each_comparing_reward_has_its_own_prompt_and_order():
    router, pool, _ = build(policy={"weight": 1.0}, tool={"weight": 1.0})
    await score(router, responses("alpha", "beta", "gamma", "delta"))
    assert sorted(q.prompt for q in pool.asked) == ["policy_compared.en", "tool_compared.en"]


async def test_groups_do_not_mix():
    router, pool, _ = build()
    one = responses("alpha", "beta")
    other = [replace(r, key=replace(r.key, attempt=1)) for r in responses("gamma", "delta")]
    records = await score(router, [one[0], other[0], other[1], one[1]])
    assert grades(records) == [5, 1, 2, 3]
    assert len(pool.asked) == 2


async def test_incomplete_group_is_judged_after_the_wait():
    router, pool, _ = build(wait_s=0.02)
    records = await score(router, responses("alpha", "gamma", siblings=3))
    assert grades(records) == [5, 1]
    assert [entry["response"] for entry in pool.asked[0].each] in (["alpha", "gamma"], ["gamma", "alpha"])


async def test_late_response_is_judged_together_with_its_siblings():
    router, pool, _ = build(wait_s=0.02)
    group = responses("alpha", "gamma", "beta")
    early = await score(router, group[:2])
    (late,) = await score(router, group[2:])
    assert grades([*early, late]) == [5, 1, 3]
    assert {e["response"] for e in pool.asked[1].each} == {"alpha", "beta", "gamma"}
    assert late.judgements[0].compared == 3
    assert late.calls[0].cost > 0


async def test_malformed_sibling_is_not_awaited():
    router, _, _ = build()
    for order in (
        ("alpha", "<tool_call>{", "beta"),
        ("<tool_call>{", "alpha", "beta"),
        ("alpha", "beta", "<tool_call>{"),
    ):
        records = await score(router, responses(*order))
        assert sorted(j.grade for r in records for j in r.judgements) == [3, 5]
    router, pool, _ = build()
    await score(router, responses("<tool_call>{", "<tool_call>["))
    assert pool.asked == []


async def test_vetoed_sibling_is_neither_shown_nor_awaited():
    def judge(question):
        if question.prompt == "risk.en":
            risky = question.variables["response"] == "beta"
            fields = {"reason": "", "types": ["role"] if risky else [], "risk": "yes" if risky else "no"}
            return Answer(text=json.dumps(fields))
        return graded(question)

    router, pool, _ = build(judge, policy={"weight": 1.0}, risk={"weight": 1.0}, veto_first=True)
    records = await score(router, responses("alpha", "beta", "gamma"))
    assert [r.total for r in records] == [Scored(value=2.0), Scored(value=0.0), Scored(value=1.0)]
    (compared,) = [q for q in pool.asked if q.each]
    assert {e["response"] for e in compared.each} == {"alpha", "gamma"}


async def test_identical_responses_are_judged_once():
    router, pool, _ = build()
    records = await score(router, responses("alpha", "beta", "alpha", "alpha"))
    assert grades(records) == [5, 3, 5, 5]
    assert len(pool.asked[0].each) == 2


async def test_single_response_is_judged_without_comparison():
    router, pool, _ = build()
    for texts in (("alpha",), ("beta", "beta")):
        records = await score(router, responses(*texts))
        assert records[0].judgements[0].compared == 1
    assert {q.prompt for q in pool.asked} == {"policy.en"}


async def test_single_judging_can_be_configured():
    router, pool, _ = build(policy={"weight": 1.0, "judging": "single"})
    records = await score(router, responses("alpha", "beta", siblings=9))
    assert grades(records) == [5, 3]
    assert [q.prompt for q in pool.asked] == ["policy.en"] * 2


async def test_large_group_is_split_into_chunks():
    router, pool, _ = build(policy={"weight": 1.0, "max_compared": 2})
    records = await score(router, responses("alpha", "beta", "gamma", "delta"))
    assert grades(records) == [5, 3, 1, 2]
    assert [len(q.each) for q in pool.asked] == [2, 2]


@given(st.integers(0, 40), st.integers(2, 16))
def test_chunks_cover_all_responses_with_balanced_sizes(count, most):
    responses = [JudgedText(words=str(i)) for i in range(count)]
    chunks = deal(responses, most, ("r", 1, "p", 0))
    assert sorted(int(said.words) for chunk in chunks for said in chunk) == list(range(count))
    sizes = [len(chunk) for chunk in chunks]
    assert not sizes or (max(sizes) <= most and max(sizes) - min(sizes) <= 1)
    assert len(chunks) == -(-count // most)


@pytest.mark.slow
@given(st.data(), st.lists(st.sampled_from([*GRADES, "<tool_call>{"]), min_size=1, max_size=6), st.integers(2, 4))
def test_grades_and_costs_are_correct_for_any_arrival_order(data, texts, most):
    """Some siblings never arrive, and some arrive after the others were judged."""

    async def scored():
        router, pool, _ = build(wait_s=0.001, policy={"weight": 1.0, "max_compared": most})
        group = data.draw(st.permutations(responses(*texts, siblings=len(texts) + data.draw(st.integers(0, 1)))))
        split = data.draw(st.integers(0, len(group)))
        records = [*await score(router, group[:split]), *await score(router, group[split:])]
        await router.close()
        return records, pool

    records, pool = asyncio.run(scored())
    for record in records:
        assert [j.grade for j in record.judgements] == [GRADES[t] for t in [record.response] if t in GRADES]
    assert sum(c.cost for r in records for c in r.calls) == 2.0 * len(pool.asked)
    assert all(len(q.each) <= most for q in pool.asked)


# --- failures ----------------------------------------------------------------------------------


def scores_for(question, leave_out=(), text=None):
    if text is not None:
        return Answer(text=text, call=call("judge"))
    scores = {e["name"]: GRADES[e["response"]] for e in question.each if e["response"] not in leave_out}
    return Answer(text=json.dumps({"reason": "", "scores": scores}), call=call("judge"))


async def test_incomplete_answer_is_requested_again_in_another_order():
    router, pool, _ = build(lambda q: scores_for(q, leave_out=() if q.attempt else ("beta",)))
    records = await score(router, responses("alpha", "beta", "gamma", "delta"))
    assert grades(records) == [5, 3, 1, 2]
    assert [q.attempt for q in pool.asked] == [0, 1]
    assert sum(c.cost for r in records for c in r.calls) == 4.0


async def test_response_omitted_twice_fails_and_others_keep_their_grades():
    router, _, config = build(lambda q: scores_for(q, leave_out=("beta",)))
    records = await score(router, responses("alpha", "beta", "gamma"))
    assert isinstance(records[1].total, JudgeUnparsable)
    assert "leaves this response out" in records[1].total.detail
    assert [records[0].total, records[2].total] == [Scored(value=1.0), Scored(value=0.0)]
    assert all(replay(r, config) == r.total for r in records)


@pytest.mark.parametrize(
    "text", ["", ":", '{"reason": "", "score": 5}', '{"reason": "", "scores": {"R1": 5, "R9": 1}}']
)
async def test_answer_unparsable_twice_fails_all_responses(text):
    router, pool, _ = build(lambda q: scores_for(q, text=text))
    records = await score(router, responses("alpha", "beta"))
    assert all(isinstance(r.total, JudgeUnparsable) for r in records)
    assert len(pool.asked) == 2


async def test_unavailable_judge_fails_all_responses_immediately():
    router, pool, _ = build(lambda q: Answer(failure="unavailable", detail="gone"))
    records = await score(router, responses("alpha", "beta"))
    assert all(isinstance(r.total, JudgeUnavailable) for r in records)
    assert len(pool.asked) == 1


async def test_hanging_judge_times_out_at_each_deadline():
    router, pool, _ = build(deadline_s=0.1, wait_s=0.01)
    pool.hold = asyncio.Event()
    records = await score(router, responses("alpha", "beta"))
    assert all(isinstance(r.total, JudgeTimeout) for r in records)
    await router.close()


async def test_cancelled_sibling_does_not_cancel_the_others():
    router, _, _ = build(wait_s=0.05)
    gone, stays = responses("alpha", "beta", siblings=3)
    task = asyncio.create_task(router.score(sample("ref"), gone))
    other = asyncio.create_task(router.score(sample("ref"), stays))
    await asyncio.sleep(0)
    task.cancel()
    assert (await other).judgements[0].grade == 3


async def test_close_ends_the_wait():
    router, _, _ = build()
    waiting = asyncio.create_task(router.score(sample("ref"), responses("alpha", siblings=2)[0]))
    await asyncio.sleep(0.01)
    await router.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_incomplete_group_is_removed_when_its_timer_fires():
    router, _, _ = build(wait_s=0.001)
    (record,) = await score(router, responses("alpha", siblings=2))
    assert record.total == Scored(value=1.0)
    (panel,) = router._judged._panels.values()
    (group,) = panel._groups.values()  # a latecomer is to be judged together with the first
    due, now = group.end.when(), asyncio.get_running_loop().time()
    assert 0 < due - now <= KEEP_S
    group.end._run()  # what the event loop does when the timer is due
    assert not panel._groups


async def test_finished_group_is_removed():
    router, _, _ = build()
    await score(router, responses("alpha", "beta"))
    await score(router, responses("gamma", "<tool_call>{"))
    panels = router._judged._panels.values()
    assert [len(p._groups) for p in panels] == [0]
    assert [len(p._tasks) for p in panels] == [0]
