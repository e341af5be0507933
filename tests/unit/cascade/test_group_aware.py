"""What the judge may skip, against every word that it could have said."""

import asyncio
import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import ScriptedPool, judged, reranked, rollout, sample

from hamr.algorithms.dynamic_sampling import carries_signal
from hamr.cascade.consistency import combine, to_judge
from hamr.cascade.group_aware import Span, skippable, value_span
from hamr.cascade.replay import replay
from hamr.cascade.router import RewardRouter
from hamr.config.schema import CascadeConfig, ConsistencyConfig, FormatConfig, RewardsConfig
from hamr.telemetry.metrics import router_metrics
from hamr.telemetry.record_json import record_from_json, record_to_json
from hamr.types import ReferenceScore, Scored, ToolCall

EPS = 1e-9


def point(value):
    return Span(low=value, high=value)


def open_span(low, high):
    return Span(low=low, high=high, open=True)


# --- the rules ---------------------------------------------------------------------------------


def worlds(spans, skipped, tolerance):
    """(totals if all are judged, totals with `skipped` at their middle) for the values at which a rule could turn: the
    ends and middles of all spans, and a hair on either side of the tolerance around these."""
    marks = {m for span in spans for m in (span.low, span.middle, span.high)}
    marks |= {m + sign * (tolerance + hair) for m in marks for sign in (1, -1) for hair in (1e-6, -1e-6)}
    grids = [sorted({span.low, span.high} | {m for m in marks if span.low < m < span.high}) for span in spans]
    for truth in itertools.product(*grids):
        yield truth, tuple(spans[i].middle if i in skipped else t for i, t in enumerate(truth))


def violations(spans, skipped, tolerance, equal_within):
    """Whatever the definition forbids, found by looking at every world of the grid."""
    for truth, given_out in worlds(spans, skipped, tolerance):
        for i, k in itertools.permutations(range(len(spans)), 2):
            for one, other in ((truth, given_out), (given_out, truth)):
                if one[i] - one[k] > tolerance + EPS and other[i] <= other[k]:
                    yield "order", truth, i, k
        near = abs(max(truth) - min(truth) - equal_within) < EPS or abs(
            max(given_out) - min(given_out) - equal_within
        ) < EPS  # fmt: skip
        if not near and carries_signal(truth, equal_within) != carries_signal(given_out, equal_within):
            yield "signal", truth


eighths = st.integers(0, 8).map(lambda n: n / 8)
spans = st.one_of(
    eighths.map(point),
    st.tuples(eighths, eighths).map(lambda ends: open_span(min(ends), max(ends))),
    st.tuples(eighths, eighths).map(lambda ends: Span(low=min(ends), high=max(ends))),
)
tolerances = st.sampled_from([0.0, 0.125, 0.25, 0.5])


@given(st.lists(spans, min_size=2, max_size=3), tolerances, tolerances)
def test_no_word_of_the_judge_could_have_changed_what_is_kept(group, tolerance, equal_within):
    skipped = skippable(group, tolerance=tolerance, equal_within=equal_within)
    assert all(group[i].open for i in skipped)
    assert not list(itertools.islice(violations(group, skipped, tolerance, equal_within), 1))


@given(st.lists(spans, min_size=1, max_size=2))
def test_nobody_is_judged_in_vain(group):
    """Between two points so far apart that the group is kept anyhow only `order` counts, which is decided exactly: if
    nobody is skipped, each of the open responses would have broken it."""
    group = [point(-10.0), point(10.0), *group]
    if not skippable(group, tolerance=0.125, equal_within=0.125):
        for i in (i for i, span in enumerate(group) if span.open):
            assert next(violations(group, {i}, 0.125, 0.125), None) is not None


@pytest.mark.parametrize(
    ("group", "tolerance", "skipped"),
    [
        # The only reply among siblings of the wrong kind: above them whatever the judge says.
        ([point(0.0), point(0.0), open_span(0.1, 0.98)], 0.0, {2}),
        # It might be as low as they are.
        ([point(0.0), point(0.0), open_span(0.0, 0.95)], 0.0, set()),
        # Two that overlap: which is better is for the judge to say.
        ([point(0.0), open_span(0.03, 0.98), open_span(0.02, 0.97)], 0.0, set()),
        # Apart, but skipped both: their order is known.
        ([point(0.0), open_span(0.1, 0.3), open_span(0.4, 0.6)], 0.0, {1, 2}),
        # A point inside the interval, strictly and with the tolerance of half the interval.
        ([point(0.5), open_span(0.4, 0.6), point(0.0), point(1.0)], 0.09, set()),
        ([point(0.5), open_span(0.4, 0.6), point(0.0), point(1.0)], 0.11, {1}),
        # Above a point by less than the tolerance counts as beside it.
        ([point(0.0), point(1.0), open_span(0.72, 1.0), open_span(0.71, 0.99)], 0.3, {2, 3}),
        ([point(0.0), point(1.0), open_span(0.72, 1.0), open_span(0.71, 0.99)], 0.2, {2}),
        # Whether the group carries a signal would hang on it.
        ([point(0.5), open_span(0.5, 0.7)], 1.0, set()),
        ([open_span(0.1, 0.9)], 0.0, set()),
    ],
)
def test_by_hand(group, tolerance, skipped):
    assert skippable(group, tolerance=tolerance, equal_within=0.05) == skipped


def test_a_group_that_is_dropped_in_any_case_needs_no_judge():
    group = [open_span(0.90, 0.95), open_span(0.91, 0.94), point(0.93)]
    assert skippable(group, tolerance=0.1, equal_within=0.1) == {0, 1}


@given(st.lists(eighths, min_size=1, max_size=3), st.data())
def test_the_span_holds_every_value_that_the_cascade_can_give(s_rs, data):
    config = ConsistencyConfig(
        cascade=CascadeConfig(tau_a=0.3, tau_b=0.8, w1=0.25, w2=0.75),
        judge_best_k=data.draw(st.sampled_from([None, 1])),
    )
    bare = [ReferenceScore(reference=i, s_r=s_r) for i, s_r in enumerate(s_rs)]
    low, high = value_span(bare, config)
    wanted, found = to_judge(bare, config), []
    for words in itertools.product((0.0, 0.5, 1.0), repeat=len(wanted)):
        said = dict(zip(wanted, words, strict=True))
        scores = [ReferenceScore(reference=s.reference, s_r=s.s_r, s_j=said.get(s.reference)) for s in bare]
        found.append(combine(scores, config, {}).outcome.value)
    assert (min(found), max(found)) == (pytest.approx(low), pytest.approx(high))


# --- the router --------------------------------------------------------------------------------

CALL = '<tool_call>{"name": "lookup", "arguments": {"id": "7"}}</tool_call>'
AWARE = RewardsConfig.model_validate(
    {"consistency": {"group_aware": {"enabled": True}}, "format": {"weight": 0.5}}
)  # fmt: skip


def group_of(
    texts, scores, rewards=AWARE, *, siblings=None, group_wait_s=None, rescored=False, references=("Why?",), **how
):
    """Records of a group, the judge's questions, and the router's metrics."""
    reranker = ScriptedPool("reranker", lambda q: reranked(scores[q.variables["statement_b"]]))
    judge = ScriptedPool("judge", lambda q: judged(0.5))
    router = RewardRouter(
        rewards,
        {"reranker": reranker, "judge": judge},
        count_tokens=len,
        deadline_s=5.0,
        group_wait_s=group_wait_s,
    )

    async def run():
        group = {"siblings": siblings or len(texts), "rescored": rescored}
        rollouts = [dataclasses.replace(rollout(t, i), **group) for i, t in enumerate(texts)]
        records = await asyncio.gather(*(router.score(sample(*references), r, **how) for r in rollouts))
        metrics = router.metrics()
        await router.close()
        return records, judge.asked, metrics

    return asyncio.run(run())


def test_the_only_reply_of_its_group_is_not_judged_and_says_so():
    records, asked, metrics = group_of([CALL, CALL, "So?"], {"So?": 0.4})
    assert asked == []
    skipped = records[2]
    # Eq. 4 at S_J = 0 and 1: 0.02 and 0.97; the middle, and 0.5 for the format.
    assert skipped.band == "skipped"
    assert skipped.total.value == pytest.approx(0.5 * (0.05 * 0.4 + 0.05 * 0.4 + 0.95) + 0.5)
    assert (skipped.s_r, skipped.s_j) == (0.4, None)
    assert replay(record_from_json(record_to_json(skipped)), AWARE) == skipped.total
    assert metrics["router/band/skipped_frac"] == 1.0
    assert metrics["router/escalated_frac"] == 0.0
    assert router_metrics(records)["router/band/skipped_frac"] == 1.0


def test_what_the_judge_skipped_is_the_reranker_s_in_a_replay_of_the_reranker_alone():
    records, _, _ = group_of([CALL, CALL, "So?"], {"So?": 0.4})
    alone = RewardsConfig.model_validate({"consistency": {"mode": "reranker"}, "format": {"weight": 0.5}})
    assert replay(records[2], alone).value == pytest.approx(0.4 + 0.5)


def test_a_tool_call_in_the_middle_of_a_reply_s_interval_has_it_judged():
    """The right call is worth 1, and its length takes one half of it away."""
    length = {"weight": 1.0, "cache_ratio": 1.0, "reference_length": 2 * len(CALL) // 3}
    rewards = RewardsConfig.model_validate({"consistency": {"group_aware": {"enabled": True}}, "length": length})
    tool = ToolCall(name="lookup", parameters={"id": 7})
    records, asked, _ = group_of([CALL, "So?"], {"So?": 0.4}, rewards, references=("Why?", tool))
    assert records[0].total.value == pytest.approx(0.5, abs=0.05)
    assert (records[1].band, len(asked)) == ("below", 1)


def test_two_replies_whose_order_is_open_are_judged():
    records, asked, _ = group_of(["So?", "Why so?"], {"So?": 0.4, "Why so?": 0.5})
    assert [r.band for r in records] == ["below", "below"]
    assert len(asked) == 2


def test_an_evaluation_has_everybody_judged():
    records, asked, _ = group_of([CALL, CALL, "So?"], {"So?": 0.4}, group_aware=False)
    assert (records[2].band, len(asked)) == ("below", 1)


def test_a_group_that_does_not_come_together_is_judged():
    records, asked, _ = group_of(["So?"], {"So?": 0.4}, siblings=3, group_wait_s=0.01)
    assert (records[0].band, len(asked)) == ("below", 1)


def test_those_that_are_scored_again_are_judged_since_their_siblings_have_their_rewards():
    """Of the two alone one is certain to be the better; the sibling that was scored before may lie in between."""
    cascade = {"tau_a": 0.4, "tau_b": 0.6, "w1": 0.9, "w2": 0.9}
    rewards = RewardsConfig.model_validate({"consistency": {"group_aware": {"enabled": True}, "cascade": cascade}})
    scores = {"So?": 0.5, "Well?": 0.9}
    records, asked, _ = group_of(list(scores), scores, rewards)
    assert ([r.band for r in records], asked) == (["inside", "skipped"], [])
    records, asked, _ = group_of(list(scores), scores, rewards, rescored=True)
    assert ([r.band for r in records], len(asked)) == (["inside", "above"], 1)


def test_a_reranker_that_fails_lets_nobody_be_skipped_on_its_account():
    rewards = AWARE
    reranker = ScriptedPool("reranker", lambda q: reranked(0.4 if q.variables["statement_b"] == "So?" else 7.0))
    judge = ScriptedPool("judge", lambda q: judged(0.5))
    router = RewardRouter(rewards, {"reranker": reranker, "judge": judge}, count_tokens=len, deadline_s=5.0)

    async def run():
        rollouts = [dataclasses.replace(rollout(t, i), siblings=2) for i, t in enumerate(["So?", "broken"])]
        return await asyncio.gather(*(router.score(sample("Why?"), r) for r in rollouts))

    good, broken = asyncio.run(run())
    assert (good.band, len(judge.asked)) == ("below", 1)
    assert not broken.total.ok


def test_tool_calls_and_replies_inside_count_at_their_points():
    tool = ToolCall(name="lookup", parameters={"id": 7})
    reranker = ScriptedPool("reranker", lambda q: reranked({"So?": 0.7, "Well?": 0.99}[q.variables["statement_b"]]))
    judge = ScriptedPool("judge", lambda q: judged(0.5))
    rewards = AWARE.model_copy(update={"format": FormatConfig()})
    router = RewardRouter(rewards, {"reranker": reranker, "judge": judge}, count_tokens=len, deadline_s=5.0)

    async def run():
        rollouts = [dataclasses.replace(rollout(t, i), siblings=3) for i, t in enumerate([CALL, "So?", "Well?"])]
        return await asyncio.gather(*(router.score(sample("Why?", tool), r) for r in rollouts))

    called, inside, above = asyncio.run(run())
    # The tool call is worth 1, the reply inside 0.7; the one above lies in [0.7128, 0.9928]: between them for certain.
    assert (called.total, inside.total) == (Scored(value=1.0), Scored(value=0.7))
    assert (above.band, judge.asked) == ("skipped", [])
    assert above.total.value == pytest.approx(0.72 * 0.99 + 0.14)
