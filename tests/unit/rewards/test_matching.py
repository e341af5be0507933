"""Types and parameters: scoring without a model."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hamr.config.matching import Leniency, MatchingConfig
from hamr.errors import DataError
from hamr.rewards.matching import MatchRules, canonical, match_action, same_call
from hamr.types import Reference, Reply, ToolCall


def call(name="book", **parameters):
    return ToolCall(name=name, parameters=parameters)


def refs(*actions):
    return [Reference(action=action) for action in actions]


LENIENT = MatchingConfig(numeric_strings=True, constraints=True)


def agrees(given_value, wanted, matching=LENIENT):
    return same_call(call(p=given_value), call(p=wanted), matching)


@pytest.mark.parametrize(("action", "other"), [(Reply(content="Hi"), call(day=1)), (call(day=1), Reply(content="Hi"))])
def test_type_mismatch_scores_zero_without_scorer_calls(action, other):
    match = match_action(action, refs(other))
    assert (match.kind, match.score, match.ask) == ("type_mismatch", 0.0, ())


def test_reply_is_scored_only_against_reply_references():
    match = match_action(Reply(content="x"), refs(call(), Reply(content="a"), call(day=2), Reply(content="b")))
    assert (match.kind, match.score, match.ask) == ("reply", None, (1, 3))


def test_only_verbatim_replies_need_no_scorer():
    references = [ToolCall(name="x"), Reply(content="Yes."), Reply(content="Yes, of course.")]
    rules = MatchRules(verbatim=True)
    match = match_action(Reply(content=" Yes,\nof  course. "), references, rules)
    assert (match.kind, match.score, match.reference) == ("reply", 1.0, 2)
    assert match_action(Reply(content="yes, of course."), references, rules).ask == (1, 2)
    assert match_action(Reply(content="Yes."), references).score is None


@pytest.mark.parametrize(
    ("reply", "size", "score"),
    [
        ("Do you use data, or do you use data?", 3, 0.0),
        ("Do you use data, or do you use data?", 5, None),
        ("It costs 90 for you now, 90 for you now.", 3, 0.0),
        ("A day is 24 hours, a night is 12 hours.", 3, None),
        ("Come in, come in, come in.", 3, None),
        ("请问您需要什么，请问您需要什么？", 3, 0.0),
        ("您好，您好。", 3, None),
    ],
)
def test_reply_that_says_words_twice_scores_zero(reply, size, score):
    references = [ToolCall(name="x"), Reply(content="Come in, come in, come in, please.")]
    match = match_action(Reply(content=reply), references, MatchRules(repeated_words=size))
    assert (match.kind, match.score) == ("reply", score)


@pytest.mark.parametrize(
    ("reply", "allowed", "score"),
    [
        ("Do you mainly use data, or do you mainly make calls?", ("Do you mainly",), None),
        ("Do you mainly use data, or do you mainly make calls?", ("x", "so do you mainly go"), None),
        ("Do you mainly use data, or do you mainly make calls?", ("do you", "mainly"), 0.0),
        ("Do you mainly use data, or do you mainly use data?", ("do you mainly",), 0.0),
        ("请问您需要什么，请问您需要什么？", ("请问您需要什么",), None),
        ("请问您需要什么，请问您需要什么？", ("请问您需要",), 0.0),
    ],
)
def test_allowed_phrases_may_be_said_twice(reply, allowed, score):
    rules = MatchRules(repeated_words=3, allowed_repetitions=allowed)
    assert match_action(Reply(content=reply), [Reply(content="Which one?")], rules).score == score


def test_tool_call_matches_the_best_of_mixed_references():
    match = match_action(call(day=2), refs(Reply(content="a"), call(day=1), call(day=2)))
    assert (match.kind, match.score, match.reference) == ("tool_call", 1.0, 2)


@pytest.mark.parametrize(
    "wrong",
    [
        call(day=3),
        call("cancel", day=2),
        call(),
        call(day=2, hour=1),
        call(Day=2),
        call(day=None),
        ToolCall(name="book", parameters={"day ": 2}),
        ToolCall(name="book", parameters={"day": 3, "day ": 2}),
    ],
)
def test_wrong_tool_call_scores_zero_without_type_mismatch(wrong):
    match = match_action(wrong, refs(call(day=2)))
    assert (match.kind, match.score, match.reference) == ("tool_call", 0.0, None)


@pytest.mark.parametrize(
    ("parameters", "score"),
    [
        ({"package": "Surf", "day": 3}, 1.0),
        ({"package": "Ring", "day": 3}, 0.3 * 2 / 3),
        ({"package": "Ring"}, 0.3 / 3),
        ({"package": "Surf", "day": 3, "fee": 1}, 0.3 * 3 / 4),
        ({}, 0.3 / 3),
    ],
)
def test_wrong_call_of_the_right_tool_gets_credit_per_parameter(parameters, score):
    wanted = [ToolCall(name="move", parameters={"package": "Surf", "day": 3}), ToolCall(name="stop")]
    found = match_action(ToolCall(name="move", parameters=parameters), wanted, MatchRules(call_credit=0.3))
    assert (found.kind, found.score) == ("tool_call", pytest.approx(score))


def test_call_of_another_tool_gets_no_credit():
    found = match_action(ToolCall(name="stop"), [ToolCall(name="move")], MatchRules(call_credit=0.3))
    assert found.score == 0.0


def test_missing_references_raise_an_error():
    with pytest.raises(DataError, match="at least one reference"):
        match_action(Reply(content="x"), [])


@pytest.mark.parametrize(
    ("given_value", "wanted"),
    [
        (7, "7"), ("7.0", 7), (7.0, 7), ("1.50", 1.5), (-0.0, 0), (" Ben ", "Ben"), ([1, "2"], ["1", 2]),
        ({"a": 1, "b": {"c": "x "}}, {"b": {"c": "x"}, "a": 1}), (12345678901234567890, "12345678901234567890"),
    ],
)  # fmt: skip
def test_equivalent_values_agree(given_value, wanted):
    assert agrees(given_value, wanted)


@pytest.mark.parametrize(
    ("given_value", "wanted"),
    [
        (True, 1), (False, 0), (None, ""), ("007", 7), ("007", "7"), ("ben", "Ben"), ([1, 2], [2, 1]), ([1], 1),
        ({"a": 1}, {"a": 1, "b": 2}), ("true", True), ("1e3", 1000), (12345678901234567890, 12345678901234567891),
    ],
)  # fmt: skip
def test_different_values_do_not_agree(given_value, wanted):
    assert not agrees(given_value, wanted)


def test_comparison_is_strict_by_default():
    strict = MatchingConfig()
    assert not agrees("7", 7, strict)
    assert agrees("7", "7", strict)
    assert agrees(7, 7.0, strict)
    assert not agrees(3, {"op": "ge", "value": 2}, strict)
    assert agrees({"op": "ge", "value": 2}, {"value": 2, "op": "ge"}, strict)
    assert match_action(call(day="7"), refs(call(day=7))).score == 0.0
    assert match_action(call(day="7"), refs(call(day=7)), MatchRules(leniency=LENIENT)).score == 1.0


def test_leniencies_of_a_tool_replace_those_of_all_tools():
    mixed = MatchingConfig(constraints=True, tools={"book": Leniency(numeric_strings=True)})
    constrained = {"day": {"op": "ge", "value": 2}}
    assert same_call(call(day="7"), call(day=7), mixed)
    assert not same_call(call(day=3), ToolCall(name="book", parameters=constrained), mixed)
    assert same_call(call("cancel", day=3), ToolCall(name="cancel", parameters=constrained), mixed)
    assert not same_call(call("cancel", day="7"), call("cancel", day=7), mixed)


CONSTRAINTS = [
    ("eq", 3, [3, "3"], [4, None]),
    ("ne", 3, [4, "x"], [3, "3.0"]),
    ("lt", 5, [4.999, "4"], [5, 6, "many", None, True]),
    ("is_less_than", 5, [4], [5]),
    ("le", 5, [5, 4], [5.001]),
    ("is_at_most", 3200, [3200, "1500"], [3201]),
    ("gt", 2, [3], [2]),
    ("is_greater_than", 2, [2.5], [2]),
    ("ge", 2, [2, 9], [1]),
    ("is_at_least", "2", [2], [1]),
    ("in", ["Yes", 1], ["Yes", " Yes", "1"], ["No", 2]),
    ("is_one_of", ["Yes"], ["Yes"], ["yes"]),
    ("contains", "Train", ["TrainStation", "Train"], ["train", 5]),
    ("contains", 2, [[1, "2"]], [[1], "22"]),
    ("any", None, [0, "", None, []], []),
]


@pytest.mark.parametrize(("op", "bound", "good", "bad"), CONSTRAINTS)
def test_constraints_accept_and_reject_values(op, bound, good, bad):
    wanted = {"op": op, "value": bound}
    assert all(agrees(value, wanted) for value in good)
    assert not any(agrees(value, wanted) for value in bad)


def test_any_constraint_requires_a_value():
    assert same_call(call(p=1), call(p={"op": "any"}), LENIENT)
    assert not same_call(call(), call(p={"op": "any"}), LENIENT)


def test_aliases_of_a_constraint_agree():
    assert agrees({"op": "ge", "value": "2"}, {"op": "is_at_least", "value": 2})
    assert agrees({"op": "in", "value": ["b", "a"]}, {"op": "is_one_of", "value": ["a", "b"]})
    assert not agrees({"op": "ge", "value": 3}, {"op": "is_at_least", "value": 2})
    assert not agrees({"op": "gt", "value": 2}, {"op": "is_at_least", "value": 2})


def test_constraint_in_a_response_does_not_match_a_value():
    assert not agrees({"op": "any"}, 7)
    assert not agrees({"op": "ne", "value": -1}, {"op": "is_at_least", "value": 2})


def test_object_with_unknown_op_is_an_ordinary_value():
    assert agrees({"op": "add", "value": 3}, {"value": "3", "op": "add"})
    assert not agrees(3, {"op": "add", "value": 3})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=4), json_values, max_size=4))
def test_call_matches_itself_in_any_key_order(parameters):
    turned = dict(reversed(parameters.items()))
    reference = refs(ToolCall(name="t", parameters=parameters))
    assert match_action(ToolCall(name="t", parameters=turned), reference).score == 1.0


@given(json_values, json_values)
def test_agreement_equals_equality_of_canonical_forms(a, b):
    if not any(isinstance(x, dict) and "op" in x for x in (a, b)):
        assert agrees(a, b) == (canonical(a, LENIENT) == canonical(b, LENIENT)) == agrees(b, a)
