"""The wire format of an action: both directions and every malformed form."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hamr.data.actions import (
    acting_text,
    answer_of,
    customer_text,
    in_order,
    parse_action,
    parse_arguments,
    render_action,
    unfence,
)
from hamr.errors import DataError
from hamr.types import MalformedResponse, Reply, ToolCall

TAGS = ("<tool_call>", "</tool_call>", "<think>", "</think>", "<answer>", "</answer>")

plain_text = st.text(alphabet=st.characters(exclude_categories=("Cs",)))
replies = plain_text.filter(lambda t: t.strip() and not any(tag in t for tag in TAGS)).map(lambda t: Reply(content=t))
json_text = st.one_of(plain_text, st.sampled_from(TAGS), st.just('"}</tool_call><tool_call>{'))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | json_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(json_text, inner, max_size=3),
    max_leaves=8,
)
names = plain_text.map(str.strip).filter(bool)
calls = st.builds(
    lambda n, p: ToolCall(name=n, parameters=p), names, st.dictionaries(json_text, json_values, max_size=3)
)
thoughts = plain_text.filter(lambda t: not any(tag in t for tag in TAGS))


def trimmed(action):
    return Reply(content=action.content.strip()) if isinstance(action, Reply) else action


@given(st.one_of(replies, calls))
def test_plain_actions_survive_the_round_trip(action):
    assert parse_action(render_action(action)) == trimmed(action)


BOTH = ("think_answer", "answer_think")


@given(st.one_of(replies, calls), thoughts, st.sampled_from(BOTH), st.sampled_from(BOTH))
def test_action_is_parsed_in_either_order(action, thought, said, asked):
    text = render_action(action, said, thought)
    assert parse_action(text, asked) == trimmed(action)
    assert in_order(text, asked) == (said == asked)


fragments = st.lists(
    st.one_of(st.sampled_from([*TAGS, '{"name": "x"', "}", "[", " "]), st.text(max_size=5)), max_size=9
)


@given(st.one_of(st.text(), fragments.map("".join)), st.sampled_from(["plain", *BOTH]))
def test_parsing_never_raises_and_gives_a_serialisable_action(text, response_format):
    action = parse_action(text, response_format)
    assert isinstance(action, Reply | ToolCall | MalformedResponse)
    assert isinstance(customer_text(text, response_format), str)
    if isinstance(action, ToolCall):
        json.dumps([action.name, action.parameters], ensure_ascii=False, allow_nan=False).encode()
    if isinstance(action, Reply):
        assert action.content.encode().strip()


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "find", "arguments": {"id": 7}}</tool_call>',
        '<tool_call>\n{"name":"find","parameters":{"id":7}}\n</tool_call>\n',
        '  <tool_call>{\n  "arguments": {"id": 7},\n  "name": " find "\n}</tool_call>',
        'One moment, please.\n<tool_call>{"name": "find", "arguments": {"id": 7}}</tool_call>',
        '<tool_call>{"name": "find", "arguments": {"id": 7}}</tool_call> I am looking it up.',
    ],
)
def test_call_notations_are_equivalent(text):
    assert parse_action(text) == ToolCall(name="find", parameters={"id": 7})


def test_call_without_arguments_has_no_parameters():
    assert parse_action('<tool_call>{"name": "hang_up"}</tool_call>') == ToolCall(name="hang_up")


@pytest.mark.parametrize(
    "text",
    [
        "", " \n\t", "<tool_call>", "</tool_call>", '<tool_call>{"name": "x"}', '{"name": "x"}</tool_call>',
        '</tool_call>{"name": "x"}<tool_call>', "<tool_call></tool_call>", "<tool_call>find(7)</tool_call>",
        "<tool_call>{'name': 'x'}</tool_call>", '<tool_call>["x"]</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": ""}</tool_call>', '<tool_call>{"name": 3}</tool_call>',
        '<tool_call>{"name": "x", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "x", "arguments": null}</tool_call>',
        '<tool_call>{"name": "x", "arguments": {}, "parameters": {}}</tool_call>',
        '<tool_call>{"name": "x", "arguments": {"a": NaN}}</tool_call>',
        '<tool_call>{"name": "x", "arguments": {"a": 1e999}}</tool_call>',
        '<tool_call>{"name": "x", "arguments": {"a": "\\ud800"}}</tool_call>',
        '<tool_call>{"name": "a"}</tool_call><tool_call>{"name": "b"}</tool_call>',
        "<tool_call>" + "[" * 100_000 + "</tool_call>", "broken \ud800 text",
        '<tool_call>{"name": "x", "arguments": {"a": ' + "9" * 10_000 + "}}</tool_call>",
    ],
)  # fmt: skip
def test_malformed_calls_are_rejected(text):
    action = parse_action(text)
    assert isinstance(action, MalformedResponse)
    assert action.detail
    assert action.value == 0.0


@pytest.mark.parametrize("text", ['{"a": 1}, "b": 2', '{"a": 1}, "arguments": {"a": 2}', "[1]", "null", '{"a": NaN}'])
def test_arguments_that_are_not_one_object_are_malformed(text):
    assert isinstance(parse_arguments(text), MalformedResponse)
    assert (parse_arguments('{"a": 1}'), parse_arguments(" ")) == ({"a": 1}, {})


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("<think>why</think><answer>Hi</answer>", "Hi"),
        ("\n<think>\nwhy\n</think>\n\n<answer>\nHi\n</answer>\n", "Hi"),
        ("<answer>Hi</answer><think>why</think>", "Hi"),
        ("<answer>Hi</answer>\n<think>cut off in the mid", "Hi"),
        ("<answer>Hi</answer><think>", "Hi"),
        ("<think></think><answer>Hi</answer>", "Hi"),
    ],
)
def test_think_answer_format_is_parsed(text, content):
    assert parse_action(text, "think_answer") == Reply(content=content)


@pytest.mark.parametrize(
    "text",
    [
        "Hi", "<answer>Hi</answer>", "<think>why</think>Hi", "<think>why</think>", "<think>why<answer>Hi</answer>",
        "Well: <think>why</think><answer>Hi</answer>", "<think>why</think> so <answer>Hi</answer>",
        "<think>why</think><answer>Hi</answer> bye", "<answer>Hi</answer><think>why</think> bye",
        "<think>why</think><answer>Hi", "<think>a</think><think>b</think><answer>Hi</answer>",
        "<answer>Hi</answer><think>a</think><answer>Ho</answer>", "<think>a<answer>Hi</answer></think>",
        "<answer><think>a</think>Hi</answer>", "<think>a</think><answer> </answer>",
    ],
)  # fmt: skip
def test_malformed_think_answer_is_rejected(text):
    assert isinstance(parse_action(text, "think_answer"), MalformedResponse)


def test_truncated_rationale_does_not_change_the_answer():
    whole = render_action(Reply(content="Hi"), "answer_think", "because of this")
    cut = whole[: whole.index("because") + 4]
    assert answer_of(cut, "think_answer") == answer_of(whole, "think_answer") == "Hi"


@given(st.one_of(st.text(), fragments.map("".join)), st.one_of(st.text(), fragments.map("".join)))
def test_tail_after_a_post_cot_answer_changes_nothing(answer, tail):
    head = f"<answer>{answer}</answer>"
    whole = head + tail
    assert parse_action(whole, "answer_think") == parse_action(head, "answer_think")
    assert acting_text(whole, "answer_think") == acting_text(head, "answer_think")
    assert in_order(whole, "answer_think") and not in_order(whole, "think_answer")


@pytest.mark.parametrize(
    "text", ["<answer>Hi", "Hi", "<answer>a<think>b</answer>", "<answer> </answer><think>why</think>", " <answer>"]
)
def test_malformed_answer_think_is_rejected(text):
    assert isinstance(parse_action(text, "answer_think"), MalformedResponse)


def test_customer_text_excludes_the_tool_call():
    assert customer_text('Wait. <tool_call>{"name": "x"}</tool_call>') == "Wait."
    assert customer_text("<think>rude</think><answer>Hello</answer>", "think_answer") == "Hello"
    assert customer_text("no tags", "think_answer") == "no tags"


@pytest.mark.parametrize(
    ("action", "thought", "said"),
    [
        (Reply(content=" "), "", "empty reply"),
        (Reply(content="a </answer> b"), "", "wire format"),
        (ToolCall(name=" "), "", "needs a name"),
        (ToolCall(name="x", parameters={"a": float("nan")}), "", "not JSON"),
        (ToolCall(name="x", parameters={"a": object()}), "", "not JSON"),
        (Reply(content="Hi"), "a thought", "plain format has no place"),
    ],
)
def test_rendering_rejects_actions_that_cannot_be_parsed_back(action, thought, said):
    with pytest.raises(DataError, match=said):
        render_action(action, "plain", thought)


CALL = '<tool_call>{"name": "lookup", "arguments": {"order": 7}}</tool_call>'


@pytest.mark.parametrize(
    "fenced",
    [
        f"```xml\n{CALL}\n```",
        CALL.replace("{", "```json\n{", 1).replace("</", "\n```</"),
        f"<think>why</think><answer>\n```\n{CALL}\n```\n</answer>",
    ],
)
def test_fence_around_a_tool_call_can_be_removed(fenced):
    response_format = "think_answer" if fenced.startswith("<think>") else "plain"
    assert parse_action(unfence(fenced), response_format) == ToolCall(name="lookup", parameters={"order": 7})


@pytest.mark.parametrize("text", ["Run ```ls``` first.", "```\nls\n```", 'It is ```{"a": 1}``` here.', CALL, ""])
def test_other_fences_are_kept(text):
    assert unfence(text) == text
