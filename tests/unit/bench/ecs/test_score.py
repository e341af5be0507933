from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hamr.bench.ecs.figures import by_sample, compare, figures
from hamr.bench.ecs.score import ecs, mean_vote, plan_response, score_response
from hamr.config.matching import MatchingConfig
from hamr.data.actions import render_action
from hamr.errors import DataError
from hamr.types import Reference, Reply, ServiceSample, ToolCall

VOTE = st.one_of(st.none(), st.sampled_from([0.0, 0.5, 1.0]), st.floats(0, 1))
ITEM = st.integers(1, 4).flatmap(
    lambda judges: st.lists(st.lists(VOTE, min_size=judges, max_size=judges), min_size=1, max_size=5)
)


def sample(*references, name="s"):
    """References: a text is a reply, a tuple (text, source) one that was not logged, a dict a call of `lookup`."""
    made = []
    for given_one in references:
        content, source = given_one if isinstance(given_one, tuple) else (given_one, "logged")
        act = ToolCall(name="lookup", parameters=content) if isinstance(content, dict) else Reply(content=content)
        made.append(Reference(action=act, source=source))
    return ServiceSample(id=name, ticket={}, policy="", tools=(), history=(), references=tuple(made))


def said(sample, text, votes=None, index=0):
    return score_response(plan_response(sample, text, index, "plain"), votes or {})


def call(**parameters):
    return render_action(ToolCall(name="lookup", parameters=parameters))


# --- Eq. 1 -------------------------------------------------------------------------------------


def test_mean_over_judges_is_taken_before_the_maximum():
    # Means .75 and .5; the mean of per-judge maxima would be 1.
    assert ecs([[[1.0, 0.5], [0.0, 1.0]]]) == [0.75]
    # Four judges, three references: .625, .375, .5.
    assert ecs([[[1, 1, 0.5, 0], [0.5, 0.5, 0.5, 0], [0, 0, 1, 1]]]) == [0.625]


def test_missing_votes_do_not_count_as_zero():
    assert ecs([[[1.0, None], [0.5, 0.5]]]) == [1.0]
    assert ecs([[[None, None], [0.25, None]]]) == [0.25]
    assert ecs([[[None, None], [None, None]], [[0.0, None]]]) == [None, 0.0]
    assert ecs([[]]) == [None] and ecs([]) == []


def test_invalid_scores_are_rejected():
    for wrong in (1.5, -0.1, float("nan")):
        with pytest.raises(ValueError, match="not a score in"):
            ecs([[[wrong]]])


@given(ITEM)
def test_multi_is_at_least_single_whichever_reference_was_logged(item):
    (multi,) = ecs([item])
    for reference in item:
        single = mean_vote(reference)
        assert single is None or (multi is not None and multi >= single)


@given(ITEM, st.randoms(use_true_random=False))
def test_score_is_invariant_to_order_of_judges_and_references(item, rng):
    order = list(range(len(item[0])))
    rng.shuffle(order)
    shuffled = [[votes[i] for i in order] for votes in item]
    rng.shuffle(shuffled)
    (before,), (after,) = ecs([item]), ecs([shuffled])
    assert after == (None if before is None else pytest.approx(before))


@given(ITEM)
def test_additional_reference_never_lowers_the_score(item):
    (fewer,), (more,) = ecs([item[:-1]]), ecs([item])
    assert fewer is None or more >= fewer


# --- one response ------------------------------------------------------------------------------


def test_reply_is_compared_only_with_reply_references():
    s = sample("Hello.", {"order": 7}, ("Good day.", "consistency"))
    assert plan_response(s, "Hi.", 0, "plain").ask == (0, 2)
    found = said(s, "Hi.", {0: [0.5, None], 2: [1.0, 0.5]})
    assert (found.kind, found.multi, found.single, found.call) == ("reply", 0.75, 0.5, None)


def test_single_ecs_uses_the_first_logged_reference():
    s = sample(("Added.", "utility"), "Logged.", "Logged again.")
    found = said(s, "x", {0: [1.0], 1: [0.25], 2: [0.5]})
    assert (found.multi, found.single) == (1.0, 0.25)
    generated = said(sample(("Said.", "generated"), ("Other words.", "generated")), "x", {0: [0.25], 1: [1.0]})
    assert (generated.multi, generated.single) == (1.0, 0.25)
    none_logged = said(sample(("Added.", "utility")), "x", {0: [1.0]})
    assert (none_logged.multi, none_logged.single, none_logged.logged) == (1.0, None, False)


def test_type_mismatch_scores_zero_without_judge_calls():
    reply, tool = sample("Hello."), sample({"order": 7})
    for s, text in ((reply, call(order=7)), (tool, "Hello.")):
        assert plan_response(s, text, 0, "plain").ask == ()
        found = said(s, text)
        assert (found.kind, found.multi, found.single) == ("type_mismatch", 0.0, 0.0)


def test_tool_call_scores_zero_or_one():
    s = sample({"order": 7}, ({"order": 8}, "consistency"), ("Which order?", "utility"))
    right, other, wrong = said(s, call(order=7)), said(s, call(order=8)), said(s, call(order=9))
    assert (right.multi, right.single, right.call) == (1.0, 1.0, True)
    assert (other.multi, other.single, other.call) == (1.0, 0.0, True)
    assert (wrong.multi, wrong.single, wrong.call) == (0.0, 0.0, False)
    assert said(s, call(order=7, more=1)).multi == 0.0
    for lenient in (False, True):
        matching = MatchingConfig(numeric_strings=lenient)
        found = score_response(plan_response(s, call(order="7"), 0, "plain", matching), {})
        assert (found.multi, found.single, found.call) == (lenient, lenient, lenient)


def test_call_is_required_if_all_references_are_calls():
    added = [({"order": 7}, "utility"), ({"order": 8}, "consistency")]
    assert [said(sample(*added), call(order=n)).call for n in (7, 8, 9)] == [True, True, False]
    assert said(sample(*added), "Hello.").call is False
    assert said(sample(*added, ("Which order?", "utility")), call(order=7)).call is None


def test_reply_to_a_call_sample_may_match_an_added_reply():
    s = sample({"order": 7}, ("Which order?", "utility"))
    found = said(s, "What is the number?", {1: [1.0, 0.5]})
    assert (found.multi, found.single, found.call) == (0.75, 0.0, False)
    # The tool call is not an answer to a reply: without votes nothing is known of it.
    unvoted = said(s, "What is the number?", {1: [None, None]})
    assert (unvoted.multi, unvoted.single) == (None, 0.0)


def test_malformed_response_scores_zero():
    found = said(sample("Hello."), "<tool_call>{")
    assert (found.kind, found.multi, found.single, found.call) == ("malformed", 0.0, 0.0, None)


# --- figures -----------------------------------------------------------------------------------


def test_figures_match_hand_computed_values():
    talk, tool = sample("Hello.", ("Hi.", "consistency"), name="talk"), sample({"order": 7}, name="tool")
    lost = sample("Bye.", name="lost")
    scores = [
        said(talk, "a", {0: [0.5, 0.5], 1: [1.0, 1.0]}),
        said(talk, "b", {0: [0.0, None], 1: [0.0, 0.0]}, index=1),
        said(tool, call(order=7)),
        said(lost, "c", {0: [None, None]}),
    ]
    found = figures(scores, resamples=50, seed=0)
    # Samples: talk (1 + 0) / 2, tool 1, lost unknown.
    assert found.values["multi_ecs"].mean == pytest.approx(0.75) and found.values["multi_ecs"].n == 2
    assert found.values["single_ecs"].mean == pytest.approx((0.25 + 1) / 2)
    assert found.values["call_tool_accuracy"].mean == 1.0 and found.values["call_tool_accuracy"].n == 1
    assert (found.samples, found.responses, found.unscored, found.unlogged) == (3, 4, 1, 0)
    assert (found.asked, found.missing) == (10, 3)
    assert found.kinds == {"reply": 3, "tool_call": 1}


def test_a_comparison_is_paired():
    a = {"x": 1.0, "y": 0.5, "z": 0.75, "u": None}
    b = {"x": 0.0, "y": 0.5, "z": 0.25, "u": 1.0}
    found = compare(a, b, resamples=200, seed=0)
    assert found.difference.mean == pytest.approx(0.5) and found.difference.n == 3
    # Of the 8 signs of (1, 0, .5) those where the two that count agree reach 1.5.
    assert found.p_value == 4 / 8
    assert (found.wins, found.ties, found.losses, found.left_out) == (2, 1, 0, 1)
    back = compare(b, a, resamples=200, seed=0)
    assert back.difference.mean == pytest.approx(-0.5) and back.p_value == found.p_value


def test_comparison_without_common_items_has_no_p_value():
    found = compare({"x": None}, {"x": 1.0}, resamples=10, seed=0)
    assert (found.difference.mean, found.p_value, found.left_out) == (None, None, 1)


def test_comparison_of_different_items_names_them():
    with pytest.raises(DataError, match=r"compare: 'only here': is missing this sample; 2 and 1 samples"):
        compare({"x": 1.0, "only here": 1.0}, {"x": 1.0}, resamples=10, seed=0)
    with pytest.raises(DataError, match=r"input: 'only there'"):
        compare({"x": 1.0}, {"x": 1.0, "only there": 0.0}, resamples=10, seed=0)


def test_sample_score_is_the_mean_of_its_responses():
    s = sample("Hello.")
    scores = [said(s, "a", {0: [1.0]}), said(s, "b", {0: [0.5]}, index=1), said(s, "c", {0: [None]}, index=2)]
    assert by_sample(scores, lambda one: one.multi) == {"s": 0.75}
