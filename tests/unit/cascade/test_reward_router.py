"""The router on scripted pools: scorer calls, records and counters."""

import asyncio
import json
import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import ScriptedPool, call, judged, reranked, rollout, sample

from hamr.cascade.cached_pool import PoolAnswer
from hamr.cascade.metrics import RouterMetrics
from hamr.cascade.replay import replay
from hamr.cascade.router import RewardRouter
from hamr.config.matching import Leniency, MatchingConfig
from hamr.config.rewards import ConsistencyConfig, FormatConfig, LengthConfig, RewardsConfig, RulesConfig
from hamr.data.formats import Formats
from hamr.errors import ConfigError, EngineDied, ScorerTimeout, ScorerUnavailable, VerdictUnparsable
from hamr.telemetry.metrics import is_escalated, router_metrics
from hamr.telemetry.record_json import record_from_json, record_to_json
from hamr.types import (
    Answer,
    JudgeTimeout,
    JudgeUnavailable,
    JudgeUnparsable,
    MalformedResponse,
    ReferenceScore,
    Reply,
    RerankerTimeout,
    RerankerUnavailable,
    RewardRecord,
    Scored,
    ToolCall,
)

LOOKUP = ToolCall(name="lookup", parameters={"id": 7})
CALL_TEXT = '<tool_call>{"name": "lookup", "arguments": {"id": 7}}</tool_call>'


def build(reranker=None, judge=None, *, deadline_s=5.0, response_format="plain", rewards=None, **consistency):
    pools = {name: pool for name, pool in (("reranker", reranker), ("judge", judge)) if pool is not None}
    rewards = rewards or RewardsConfig(consistency=ConsistencyConfig(**consistency))
    return RewardRouter(
        rewards,
        pools,
        count_tokens=lambda text: len(text.split()),
        deadline_s=deadline_s,
        formats=Formats(asked=response_format),
    )


def pools(reranker_scores, judge_scores=None):
    return (
        ScriptedPool("reranker", {k: reranked(v) for k, v in reranker_scores.items()}),
        ScriptedPool("judge", {k: judged(v) for k, v in (judge_scores or {}).items()}),
    )


def component(record, name):
    return next(c for c in record.components if c.name == name)


# --- no model ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "references", "value", "band"),
    [
        (CALL_TEXT, ["Why?"], 0.0, "type_mismatch"),
        ("Why?", [LOOKUP], 0.0, "type_mismatch"),
        (CALL_TEXT, [LOOKUP], 1.0, "tool_match"),
        (CALL_TEXT, ["Why?", LOOKUP], 1.0, "tool_match"),
        (CALL_TEXT.replace("7", "8"), [LOOKUP], 0.0, "tool_match"),
    ],
)
async def test_type_mismatches_and_tool_calls_ask_no_scorer(text, references, value, band):
    reranker, judge = pools({})
    record = await build(reranker, judge).score(sample(*references), rollout(text))
    assert (record.total, record.band) == (Scored(value=value), band)
    assert reranker.asked == judge.asked == []


@pytest.mark.parametrize(("verbatim", "band", "value"), [(True, "verbatim", 1.0), (False, "inside", 0.9)])
async def test_verbatim_reference_is_right_if_configured(verbatim, band, value):
    reranker, judge = pools({"Why not?": 0.9, "Who?": 0.7})
    rewards = RewardsConfig(consistency=ConsistencyConfig(verbatim=verbatim))
    record = await build(reranker, judge, rewards=rewards).score(sample("Who?", "Why not?"), rollout("Why not?"))
    assert (record.total, record.band) == (Scored(value=value), band)
    assert bool(reranker.asked) is not verbatim
    assert replay(record, rewards) == record.total


async def test_reply_that_repeats_itself_asks_no_scorer():
    text = "Do you use data, or do you use data?"
    rewards = RewardsConfig(consistency=ConsistencyConfig(repeated_words=3))
    reranker, judge = pools({text: 0.9})
    record = await build(reranker, judge, rewards=rewards).score(sample("Do you use data, or call?"), rollout(text))
    assert (record.total, record.band, reranker.asked) == (Scored(value=0.0), "repetition", [])
    assert replay(record, rewards) == record.total
    allowing = RewardsConfig(consistency=ConsistencyConfig(repeated_words=3, allowed_repetitions=("do you use data",)))
    for other in (RewardsConfig(), allowing):
        record = await build(reranker, judge, rewards=other).score(sample("Do you use data, or call?"), rollout(text))
        assert (record.total, record.band) == (Scored(value=0.9), "inside")


@pytest.mark.parametrize(
    ("text", "references", "value", "band"),
    [
        (CALL_TEXT, [LOOKUP], 1.0, "tool_match"),
        ("Why?", [LOOKUP], 0.0, "type_mismatch"),
        ("Why?", ["Why?"], 1.0, "verbatim"),
        ("So?", ["Why?"], 0.0, "none"),
    ],
)
async def test_exact_mode_needs_no_pool(text, references, value, band):
    rewards = RewardsConfig(consistency=ConsistencyConfig(mode="exact"))
    record = await build(rewards=rewards).score(sample(*references), rollout(text))
    assert (record.total, record.band) == (Scored(value=value), band)
    assert replay(record, rewards) == record.total


@pytest.mark.parametrize(("lenient", "value"), [(False, 0.0), (True, 1.0)])
async def test_number_given_as_text_agrees_if_configured_for_the_tool(lenient, value):
    matching = MatchingConfig(tools={"lookup": Leniency(numeric_strings=lenient)})
    rewards = RewardsConfig(consistency=ConsistencyConfig(mode="exact", matching=matching))
    text = CALL_TEXT.replace("7", '"7"')
    assert (await build(rewards=rewards).score(sample(LOOKUP), rollout(text))).total == Scored(value=value)


async def test_malformed_response_scores_zero():
    reranker, judge = pools({})
    rewards = RewardsConfig(format=FormatConfig(weight=0.5), rules=RulesConfig(weight=0.25))
    record = await build(reranker, judge, rewards=rewards).score(sample("Why?"), rollout("<tool_call>{"))
    assert isinstance(component(record, "consistency").outcome, MalformedResponse)
    assert component(record, "format").outcome == Scored(value=0.0)
    assert (record.total, record.action, record.band) == (Scored(value=0.25), None, "none")
    assert reranker.asked == judge.asked == []


async def test_unweighted_consistency_is_neither_scored_nor_recorded():
    rewards = RewardsConfig(consistency=ConsistencyConfig(weight=0.0), format=FormatConfig(weight=1.0))
    record = await build(rewards=rewards).score(sample("Why?"), rollout("So?"))
    assert [c.name for c in record.components] == ["format", "length", "rules"]
    assert record.total == Scored(value=1.0)


# --- the cascade -------------------------------------------------------------------------------


async def test_judge_is_not_asked_inside_the_interval():
    reranker, judge = pools({"So?": 0.68})
    record = await build(reranker, judge).score(sample("Why?"), rollout("So?"))
    assert (record.total, record.band, record.s_r, record.s_j) == (Scored(value=0.68), "inside", 0.68, None)
    assert judge.asked == []
    question = reranker.asked[0]
    assert question.variables == {"history": "Customer: Cancel it.", "statement_a": "Why?", "statement_b": "So?"}
    assert question.affinity == "s1"


@pytest.mark.parametrize(("s_r", "s_j", "value", "band"), [(0.5, 1.0, 0.975, "below"), (1.0, 0.5, 0.86, "above")])
async def test_judge_is_asked_outside_the_interval(s_r, s_j, value, band):
    reranker, judge = pools({"So?": s_r}, {"So?": s_j})
    record = await build(reranker, judge).score(sample("Why?"), rollout("So?"))
    assert record.total.value == pytest.approx(value)
    assert (record.band, record.s_r, record.s_j) == (band, s_r, s_j)
    assert [c.pool for c in record.calls] == ["reranker", "judge"]


async def test_best_reference_decides_and_all_are_recorded():
    reranker, judge = pools({("a", "x"): 0.2, ("b", "x"): 0.9, ("c", "x"): 0.99}, {("a", "x"): 0.0, ("c", "x"): 0.0})
    record = await build(reranker, judge).score(sample("a", LOOKUP, "b", "c"), rollout("x"))
    assert (record.total, record.band, record.s_r) == (Scored(value=0.9), "inside", 0.9)
    assert [(s.reference, s.s_r, s.s_j) for s in record.reference_scores] == [
        (0, 0.2, 0.0),
        (2, 0.9, None),
        (3, 0.99, 0.0),
    ]
    assert [q.variables["statement_a"] for q in judge.asked] == ["a", "c"]
    assert reranker.most_open == 3


async def test_best_k_limits_the_judged_references():
    reranker, judge = pools({("a", "x"): 0.2, ("b", "x"): 0.5, ("c", "x"): 0.3}, {("b", "x"): 0.5})
    record = await build(reranker, judge, judge_best_k=1).score(sample("a", "b", "c"), rollout("x"))
    assert [q.variables["statement_a"] for q in judge.asked] == ["b"]
    assert record.total.value == pytest.approx(0.05 * 0.5 + 0.95 * 0.5)


@pytest.mark.parametrize(
    ("mode", "value", "band", "asked"),
    [
        ("reranker", 0.3, "reranker_only", (1, 0)),
        ("soft_judge", 0.8, "judge_only", (0, 1)),
        ("hard_judge", 0.5, "judge_only", (0, 1)),
    ],
)
async def test_each_mode_asks_its_scorers(mode, value, band, asked):
    reranker, judge = pools({"x": 0.3}, {"x": 0.8})
    record = await build(reranker, judge, mode=mode).score(sample("a"), rollout("x"))
    assert (record.total, record.band) == (Scored(value=value), band)
    assert (len(reranker.asked), len(judge.asked)) == asked


async def test_hard_judge_needs_a_verdict_but_no_probabilities():
    by_text = {"x": Answer(verdict="Consistent"), "y": Answer(score=0.9, verdict="perhaps")}
    router = build(judge=ScriptedPool("judge", by_text), mode="hard_judge")
    assert (await router.score(sample("a"), rollout("x"))).total == Scored(value=1.0)
    assert isinstance((await router.score(sample("a"), rollout("y"))).total, JudgeUnparsable)


def test_a_missing_pool_fails_at_set_up():
    reranker, judge = pools({})
    with pytest.raises(ConfigError, match=r"rewards\.consistency\.judge"):
        build(reranker)
    build(reranker, mode="reranker")
    build(None, judge, mode="soft_judge")


# --- failures ----------------------------------------------------------------------------------


def raises(error):
    def script(question):
        raise error

    return script


def says(answer):
    return lambda question: answer


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        (says(Answer(failure="timeout", detail="t")), JudgeTimeout),
        (says(Answer(failure="unparsable")), JudgeUnparsable),
        (says(Answer(failure="unavailable")), JudgeUnavailable),
        (says(Answer(score=1.5)), JudgeUnparsable),
        (says(Answer(score=float("nan"))), JudgeUnparsable),
        (says(Answer()), JudgeUnparsable),
        (raises(ScorerTimeout("slow")), JudgeTimeout),
        (raises(ScorerUnavailable("none left")), JudgeUnavailable),
        (raises(EngineDied("killed")), JudgeUnavailable),
        (raises(VerdictUnparsable("hm")), JudgeUnparsable),
    ],
)
async def test_judge_failure_is_typed_and_has_no_score(script, kind):
    reranker, _ = pools({"x": 0.3})
    router = build(reranker, ScriptedPool("judge", script))
    record = await router.score(sample("a"), rollout("x"))
    assert type(record.total) is kind
    assert (record.band, record.s_r, record.s_j) == ("below", 0.3, None)
    assert component(record, "consistency").contribution is None
    assert router.metrics()[f"router/failures/{kind.kind}"] == 1.0


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        (says(Answer(failure="timeout")), RerankerTimeout),
        (says(Answer(failure="unparsable")), RerankerUnavailable),
        (says(Answer(score=-0.1)), RerankerUnavailable),
        (raises(ScorerUnavailable("x")), RerankerUnavailable),
    ],
)
async def test_reranker_failure_is_typed_and_asks_no_judge(script, kind):
    judge = ScriptedPool("judge", {})
    record = await build(ScriptedPool("reranker", script), judge).score(sample("a"), rollout("x"))
    assert type(record.total) is kind
    assert judge.asked == []


@pytest.mark.parametrize("unread", [Answer(failure="unparsable", detail="hm"), Answer(score=float("nan")), Answer()])
async def test_unparsable_verdict_is_requested_once_more(unread):
    reranker, _ = pools({"x": 0.3})
    judge = ScriptedPool("judge", lambda q: judged(0.8) if q.attempt else replace(unread, call=call("judge")))
    router = build(reranker, judge)
    record = await router.score(sample("a"), rollout("x"))
    assert record.total.value == pytest.approx(0.05 * 0.3 + 0.95 * 0.8)
    assert [q.attempt for q in judge.asked] == [0, 1]
    assert [c.pool for c in record.calls] == ["reranker", "judge", "judge"], "both tries are paid for"
    metrics = router.metrics()
    assert (metrics["router/judge_calls"], metrics["router/reasks"], is_escalated(record)) == (2, 1, True)


@pytest.mark.parametrize(("max_reasks", "asked"), [(0, 1), (1, 2), (2, 3)])
async def test_number_of_verdict_retries_is_configurable(max_reasks, asked):
    reranker, _ = pools({"x": 0.3})
    judge = ScriptedPool("judge", says(Answer(failure="unparsable")))
    record = await build(reranker, judge, max_reasks=max_reasks).score(sample("a"), rollout("x"))
    assert isinstance(record.total, JudgeUnparsable)
    assert len(judge.asked) == asked


@pytest.mark.parametrize("failure", ["timeout", "unavailable"])
async def test_unavailable_judge_is_not_asked_again(failure):
    reranker, _ = pools({"x": 0.3})
    judge = ScriptedPool("judge", says(Answer(failure=failure)))
    await build(reranker, judge).score(sample("a"), rollout("x"))
    assert len(judge.asked) == 1


async def test_hard_verdict_needs_no_score():
    judge = ScriptedPool("judge", says(Answer(verdict="part")))
    record = await build(judge=judge, mode="hard_judge").score(sample("a"), rollout("x"))
    assert (record.total, len(judge.asked)) == (Scored(value=0.5), 1)


async def test_a_bug_in_a_pool_is_not_swallowed():
    router = build(ScriptedPool("reranker", raises(ZeroDivisionError("bug"))), ScriptedPool("judge", {}))
    with pytest.raises(ZeroDivisionError, match="bug"):
        await router.score(sample("a"), rollout("x"))


async def test_side_reward_does_not_hide_a_failed_response():
    rewards = RewardsConfig(format=FormatConfig(weight=1.0))
    router = build(
        ScriptedPool("reranker", says(Answer(failure="timeout"))), ScriptedPool("judge", {}), rewards=rewards
    )
    assert isinstance((await router.score(sample("a"), rollout("x"))).total, RerankerTimeout)


async def test_deadline_gives_a_typed_timeout():
    reranker, judge = pools({"x": 0.3}, {"x": 1.0})
    judge.hold = asyncio.Event()
    record = await build(reranker, judge, deadline_s=0.05).score(sample("a"), rollout("x"))
    assert isinstance(record.total, JudgeTimeout)


# --- asking once -------------------------------------------------------------------------------


async def test_identical_responses_of_a_group_are_scored_once():
    reranker, judge = pools({"x": 0.3, "y": 0.7}, {"x": 0.5})
    router = build(reranker, judge)
    records = await asyncio.gather(*(router.score(sample("a"), rollout(t, i)) for i, t in enumerate("xxxy")))
    assert (len(reranker.asked), len(judge.asked)) == (2, 1)
    assert records[0].total == records[1].total == records[2].total
    # Every record names the pool that answered; only the record of the response that asked has the cost.
    assert [sum(c.cost for c in r.calls) for r in records] == [4.0, 0.0, 0.0, 2.0]
    assert [[c.replica for c in r.calls] for r in records] == [["r0", "r0"]] * 3 + [["r0"]]
    later = await router.score(sample("a"), rollout("x", 9))
    assert (later.total, len(reranker.asked)) == (records[0].total, 2)
    metrics = router.metrics()
    assert (metrics["router/reranker_calls"], metrics["router/judge_calls"]) == (2.0, 1.0)
    assert metrics["router/cache_hit_frac"] == pytest.approx(6 / 9)


async def test_different_variables_are_scored_separately():
    reranker, judge = pools({"x": 0.7})
    router = build(reranker, judge)
    await router.score(sample("a"), rollout("x"))
    await router.score(sample("b"), rollout("x"))
    assert len(reranker.asked) == 2


async def test_failures_and_evicted_answers_are_asked_again():
    answers = iter([Answer(failure="timeout"), reranked(0.8), reranked(0.9)])
    reranker = ScriptedPool("reranker", lambda question: next(answers))
    router = build(reranker, ScriptedPool("judge", {}))
    totals = [(await router.score(sample("a"), rollout("x"))).total for _ in range(3)]
    assert isinstance(totals[0], RerankerTimeout)
    assert totals[1:] == [Scored(value=0.8)] * 2
    router.forget()
    assert (await router.score(sample("a"), rollout("x"))).total == Scored(value=0.9)


async def test_the_cache_is_bounded_and_drops_the_least_recently_used():
    reranker = ScriptedPool("reranker", lambda question: reranked(0.8))
    router = RewardRouter(
        RewardsConfig(consistency=ConsistencyConfig(mode="reranker")), {"reranker": reranker},
        count_tokens=len, deadline_s=5.0, cache_size=2,
    )  # fmt: skip
    for text in ("x", "y", "x", "z", "x", "y"):
        await router.score(sample("a"), rollout(text))
    assert [q.variables["statement_b"] for q in reranker.asked] == ["x", "y", "z", "y"]


async def test_cancelled_waiter_does_not_cancel_the_others():
    reranker, judge = pools({"x": 0.8})
    reranker.hold = asyncio.Event()
    router = build(reranker, judge)
    first = asyncio.create_task(router.score(sample("a"), rollout("x")))
    second = asyncio.create_task(router.score(sample("a"), rollout("x")))
    await reranker.reached.wait()
    first.cancel()
    await asyncio.sleep(0)
    reranker.hold.set()
    assert (await second).total == Scored(value=0.8)
    assert first.cancelled()
    assert len(reranker.asked) == 1


async def test_close_cancels_pending_work():
    reranker, judge = pools({"x": 0.8})
    reranker.hold = asyncio.Event()
    router = build(reranker, judge)
    waiting = asyncio.create_task(router.score(sample("a"), rollout("x")))
    await reranker.reached.wait()
    await router.close()
    assert reranker.open == 0
    with pytest.raises(asyncio.CancelledError):
        await waiting


# --- side rewards and counters -----------------------------------------------------------------


async def test_side_rewards_are_summed():
    rewards = RewardsConfig(
        format=FormatConfig(weight=0.2), length=LengthConfig(weight=1.0, cache_ratio=1.0), rules=RulesConfig(weight=0.5)
    )
    reranker, judge = pools({"one two three stupid": 0.8})
    router = build(reranker, judge, rewards=rewards)
    record = await router.score(sample("a b", LOOKUP, "a b c"), rollout("one two three stupid"))
    # 4 words against the longest reference: the tool call counts 5 words here, so nothing is too long.
    assert [c.contribution for c in record.components] == pytest.approx([0.8, 0.2, 0.0, 0.0])
    short = await router.score(sample("a b"), rollout("one two three stupid"))
    assert component(short, "length").outcome == Scored(value=-1.0)
    assert short.total.value == pytest.approx(0.8 + 0.2 - 1.0)


async def test_configured_reference_length_overrides_the_references():
    rewards = RewardsConfig(length=LengthConfig(weight=1.0, cache_ratio=1.0, reference_length=2))
    reranker, judge = pools({"one two three": 0.8})
    record = await build(reranker, judge, rewards=rewards).score(sample("a b c d e f"), rollout("one two three"))
    assert component(record, "length").outcome == Scored(value=-0.5)


def test_reply_without_a_band_is_not_counted_as_escalated():
    """The judge was asked about one of two references, and the reranker's failure on the other one decided."""
    scores = (ReferenceScore(reference=0, s_r=0.3, s_j=0.5), ReferenceScore(reference=1))
    record = RewardRecord(key=rollout("a").key, total=Scored(value=0.8), band="below", reference_scores=scores)
    assert is_escalated(record) and not is_escalated(replace(record, band="none"))


async def test_rationale_after_the_answer_is_ignored_by_length_and_rules():
    reranker, judge = pools({"So?": 0.8})
    router = build(reranker, judge, response_format="think_answer")
    record = await router.score(sample("Why?"), rollout("<answer>So?</answer><think>what a stupid question and"))
    assert record.total == Scored(value=0.8)
    assert component(record, "length").outcome == Scored(value=0.0)
    assert component(record, "rules").outcome == Scored(value=1.0)


@given(
    st.text(max_size=20).filter(lambda t: "</answer>" not in t),
    st.one_of(
        st.text(max_size=30),
        st.sampled_from(["<think>stupid</think>", "<answer>no</answer>", "<tool_call>{", "</answer>"]),
    ),
)
def test_tail_after_a_post_cot_answer_changes_no_reward(answer: str, tail: str) -> None:
    rewards = RewardsConfig(
        format=FormatConfig(weight=0.2), length=LengthConfig(weight=1.0, cache_ratio=1.0), rules=RulesConfig(weight=0.5)
    )

    async def both() -> list[tuple[object, ...]]:
        reranker = ScriptedPool("reranker", lambda question: reranked(0.8))
        router = build(reranker, ScriptedPool("judge", {}), response_format="answer_think", rewards=rewards)
        head = f"<answer>{answer}</answer>"
        records = [await router.score(sample("a b"), rollout(text)) for text in (head, head + tail)]
        return [(r.total, r.action, r.components, r.band) for r in records]

    first, second = asyncio.run(both())
    assert first == second


async def test_format_reward_requires_the_order_of_the_prompt():
    asked = Formats(asked="hybrid", post_share=0.5)
    samples = [sample("a b", sample_id=str(i)) for i in range(40)]
    post = [s for s in samples if asked.of(s) == "answer_think"]
    pre = [s for s in samples if asked.of(s) == "think_answer"]
    assert 10 < len(post) < 30
    router = RewardRouter(
        RewardsConfig(consistency=ConsistencyConfig(weight=0.0), format=FormatConfig(weight=1.0)), {},
        count_tokens=len, deadline_s=5.0, formats=asked,
    )  # fmt: skip
    answer_first, thought_first = "<answer>So?</answer><think>a</think>", "<think>a</think><answer>So?</answer>"
    for own, right, wrong in ((post, answer_first, thought_first), (pre, thought_first, answer_first)):
        records = [await router.score(own[0], rollout(text)) for text in (right, wrong)]
        assert [component(r, "format").outcome.value for r in records] == [1.0, 0.0]
        assert [r.action for r in records] == [Reply(content="So?")] * 2


async def test_record_has_tokens_and_seconds_of_the_answer():
    reranker, judge = pools({"So?": 0.8})
    router = build(reranker, judge, response_format="answer_think")
    told = replace(rollout("<answer>So?</answer><think>a</think>"), seconds=2.0)
    whole = await router.score(sample("Why?"), told)
    assert (whole.answer_tokens, whole.answer_s) == (len(told.token_ids), 2.0)
    marked = await router.score(sample("Why?"), replace(told, answer_tokens=1, answer_s=0.5))
    assert (marked.answer_tokens, marked.answer_s) == (1, 0.5)


async def test_counters_are_fractions_and_reset_on_read():
    reranker, judge = pools({"low": 0.3, "mid": 0.8, "high": 0.99}, {"low": 0.1, "high": 0.9})
    router = build(reranker, judge)
    reranker.script["mid2"] = Answer(score=0.9, call=call("reranker", queue_s=1.25, service_s=1.5))
    texts = ["low", "mid", "mid2", "high", CALL_TEXT, ""]
    records = [await router.score(sample("a"), rollout(text, number)) for number, text in enumerate(texts)]
    assert router_metrics(records)["router/escalated_frac"] == 0.5
    metrics = router.metrics()
    expected = {
        "router/requests": 6.0, "router/reranker_calls": 4.0, "router/judge_calls": 2.0,
        "router/malformed_frac": 1 / 6, "router/cache_hit_frac": 0.0,
        "router/queue_s/reranker/mean": 0.5, "router/queue_s/reranker/max": 1.25,
        "router/service_s/reranker/mean": 0.75,
        "router/queue_s/judge/mean": 0.25, "router/queue_s/judge/max": 0.25, "router/service_s/judge/mean": 0.5,
    }  # fmt: skip
    assert metrics == pytest.approx(expected)
    assert router.metrics() == {"router/requests": 0.0, "router/reranker_calls": 0.0, "router/judge_calls": 0.0}


async def test_cached_answer_is_excluded_from_time_means():
    reranker, judge = pools({"mid": 0.8})
    router = build(reranker, judge)
    for number in range(3):
        await router.score(sample("a"), rollout("mid", number))
    metrics = router.metrics()
    assert (metrics["router/queue_s/reranker/mean"], metrics["router/service_s/reranker/mean"]) == (0.25, 0.5)


async def test_seconds_are_measured_by_the_injected_clock():
    ticks = iter([10.0, 12.5])
    router = RewardRouter(
        RewardsConfig(), {"reranker": ScriptedPool("r", {}), "judge": ScriptedPool("j", {})},
        count_tokens=len, deadline_s=5.0, clock=lambda: next(ticks),
    )  # fmt: skip
    record = await router.score(sample(LOOKUP), rollout(CALL_TEXT))
    assert record.seconds == 2.5
    assert (record.response, record.response_tokens, record.versions) == (CALL_TEXT, 3, rollout("").versions)


async def test_lone_surrogate_is_a_malformed_response():
    """Real tokenizers reject it, but JSON over HTTP can contain it."""
    counted = []
    asked = {name: ScriptedPool(name, {}) for name in ("reranker", "judge")}
    router = RewardRouter(
        RewardsConfig(), asked, count_tokens=lambda text: counted.append(text.encode()) or 1, deadline_s=5.0
    )
    record = await router.score(sample("Why?"), rollout("Well \ud800"))
    assert counted and record.action is None
    assert next(c for c in record.components if c.name == "format").value == 0.0


def test_unread_metrics_have_bounded_size():
    metrics = RouterMetrics()
    for seconds in range(10_000):
        answer = Answer(call=replace(call("judge"), queue_s=float(seconds), service_s=2.0))
        metrics.question("judge", PoolAnswer(answer=answer, asked=True))
    assert len(pickle.dumps(metrics)) < 2_000
    read = metrics.read()
    assert (read["router/queue_s/judge/mean"], read["router/queue_s/judge/max"]) == (4999.5, 9999.0)
    assert read["router/service_s/judge/mean"] == 2.0


async def test_verdicts_of_the_dimensions_are_kept_where_the_judge_writes_them():
    names = ("policy", "operation", "collection", "clarification", "scope")
    said = "\n".join(f"{name}: {'No' if name == 'scope' else 'Yes'}" for name in names)
    reranker, _ = pools({"So?": 0.1})
    answers = {("Why not?", "So?"): replace(judged(0.5), reasoning=said), ("Who?", "So?"): judged(0.2)}
    record = await build(reranker, ScriptedPool("judge", answers)).score(sample("Who?", "Why not?"), rollout("So?"))
    kept = [dict(score.dimensions) for score in record_from_json(record_to_json(record)).reference_scores]
    assert kept == [{}, {name: name != "scope" for name in names}]


def sage_json(chat, cot="because"):
    found = {
        "classification_output": {}, "cot": cot, "now_path": ["Start"], "finals": {"Action": "wait"}, "chat": chat,
    }  # fmt: skip
    return json.dumps(found)


async def test_scorers_read_the_chat_of_answers_in_sages_form():
    reranker, judge = ScriptedPool("reranker", lambda q: reranked(0.9)), ScriptedPool("judge", lambda q: judged(0.4))
    rewards = RewardsConfig(consistency=ConsistencyConfig(mode="soft_judge"))
    router = build(reranker, judge, rewards=rewards)
    point = sample(sage_json("May I ask why?"))
    record = await router.score(point, rollout(sage_json("Why is that?", cot="tell me your password")))
    asked = judge.asked[0].variables
    assert (asked["statement_a"], asked["statement_b"]) == ("May I ask why?", "Why is that?")
    assert component(record, "consistency").value == 0.4
    assert component(record, "rules").value == 1.0, "the customer does not read the rationale"
    assert record.action == Reply(content=record.response)
    assert replay(record, rewards) == record.total


@pytest.mark.parametrize("text", ["Why is that?", sage_json(""), sage_json("Why?")[:-1]])
async def test_answer_without_a_chat_is_malformed_in_sages_form(text):
    judge = ScriptedPool("judge", lambda q: judged(0.4))
    router = build(judge=judge, mode="soft_judge")
    record = await router.score(sample(sage_json("May I ask why?")), rollout(text))
    assert isinstance(component(record, "consistency").outcome, MalformedResponse)
    assert not judge.asked
