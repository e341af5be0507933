from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hamr.data.samples import MAX_NESTING, from_json, history_from_json, read_samples, to_json, write_samples
from hamr.data.tools import compact, public_values
from hamr.errors import DataError
from hamr.types import Reference, Reply, ServiceSample, ToolCall, Turn

TOOL = {
    "name": "look",
    "parameters": {
        "type": "object",
        "properties": {"order": {"type": "integer"}, "mode": {"enum": ["fast", "slow"]}},
        "required": ["order"],
    },
}
GOOD = {
    "id": "s1",
    "ticket": {"Penalty": 0},
    "policy": "Help.",
    "tools": [TOOL],
    "history": [
        {"role": "customer", "content": "Hi"},
        {"role": "agent", "content": "Hello"},
        {"role": "agent", "action": "call_tool", "name": "look", "parameters": {"order": 1}},
        {"role": "tool", "name": "look", "content": "done"},
    ],
    "references": [
        {"action": "reply", "content": "Sure."},
        {"action": "call_tool", "name": "look", "parameters": {"order": 7}},
    ],
}


def _edited(**changes):
    row = copy.deepcopy(GOOD)
    row.update(changes)
    return row


def _without(field):
    return {key: value for key, value in GOOD.items() if key != field}


def _call(**parameters):
    return {"action": "call_tool", "name": "look", "parameters": parameters}


def _rubric(**changes):
    item = {"title": "Is kind", "description": "Greets.", "weight": 3} | changes
    return _edited(privileged={"rubric": [{"title": "a", "description": "b", "weight": -2}, item]})


MALFORMED = [
    pytest.param(_edited(privileged={"rubric": {}}), "privileged.rubric", "must be a list", id="rubric type"),
    pytest.param(_edited(privileged={"rubric": ["x"]}), "privileged.rubric[0]", "must be an object", id="item type"),
    pytest.param(_rubric(weight="3"), "privileged.rubric[1].weight", "must be a number", id="item weight"),
    pytest.param(_rubric(weight=True), "privileged.rubric[1].weight", "must be a number", id="item weight bool"),
    pytest.param(_rubric(title=None), "privileged.rubric[1].title", "must be text", id="item title"),
    pytest.param(
        _edited(references=[{"action": "reply", "content": "use <tool_call>"}]),
        "references[0].content",
        "wire format",
        id="a reply that no policy could utter",
    ),
    pytest.param(["no object"], "line", "must be a JSON object", id="no object"),
    *[pytest.param(_without(f), f, "missing field", id=f"no {f}") for f in GOOD],
    pytest.param(_edited(documents="a text"), "documents", "must be a list", id="documents in one text"),
    pytest.param(
        _edited(documents=["a", " "]), "documents[1]", "must be a text; remove an empty one", id="empty document"
    ),
    pytest.param(_edited(polcy=""), "polcy", "unknown field; did you mean 'policy'?", id="misspelt field"),
    pytest.param(_edited(response="Hi"), "response", "unknown field; remove it", id="response in a sample"),
    pytest.param(_edited(id=7), "id", "must be text", id="id type"),
    pytest.param(_edited(id=""), "id", "must not be empty", id="id empty"),
    pytest.param(_edited(ticket=[]), "ticket", "must be an object", id="ticket type"),
    pytest.param(_edited(policy=None), "policy", "must be text", id="policy type"),
    pytest.param(_edited(tools={}), "tools", "must be a list", id="tools type"),
    pytest.param(_edited(tools=["look"]), "tools[0]", "must be an object", id="tool type"),
    pytest.param(_edited(tools=[{"parameters": {}}]), "tools[0].name", "non-empty text", id="tool without name"),
    pytest.param(_edited(tools=[TOOL, TOOL]), "tools[1].name", "two tools", id="tool twice"),
    pytest.param(_edited(tools=[{"name": "look", "parameters": 3}]), "tools[0].parameters", "JSON schema", id="schema"),
    pytest.param(_edited(history="Hi"), "history", "must be a list", id="history type"),
    pytest.param(_edited(history=["Hi"]), "history[0]", "must be an object", id="turn type"),
    pytest.param(_edited(history=[{"content": "x"}]), "history[0].role", "missing field", id="no role"),
    pytest.param(
        _edited(history=[{"role": "user", "content": "x"}]),
        "history[0].role",
        "unknown role; use customer, agent or tool",
        id="role",
    ),
    pytest.param(_edited(history=[{"role": "customer"}]), "history[0].content", "missing field", id="turn content"),
    pytest.param(
        _edited(history=[{"role": "agent", "action": "call_tool", "name": "find", "parameters": {}}]),
        "history[0].name",
        "no such tool",
        id="history tool",
    ),
    pytest.param(_edited(references=[]), "references", "is empty", id="no references"),
    pytest.param(_edited(references=["Sure."]), "references[0]", "must be an object", id="reference type"),
    pytest.param(_edited(references=[{"content": "x"}]), "references[0].action", "missing field", id="no action"),
    pytest.param(_edited(references=[{"action": "say"}]), "references[0].action", "unknown action", id="action"),
    pytest.param(
        _edited(references=[{"action": "reply", "content": " "}]), "references[0].content", "empty reply", id="blank"
    ),
    pytest.param(
        _edited(references=[{"action": "call_tool", "name": "find", "parameters": {}}]),
        "references[0].name",
        "no such tool; the sample's tools are ['look']",
        id="reference tool",
    ),
    pytest.param(
        _edited(references=[_call(order=1, colour="red")]),
        "references[0].parameters.colour",
        "unknown parameter",
        id="unknown parameter",
    ),
    pytest.param(
        _edited(references=[_call(mode="fast")]),
        "references[0].parameters.order",
        "required parameter is missing",
        id="missing parameter",
    ),
    pytest.param(
        _edited(references=[_call(order=1, mode="warp")]), "references[0].parameters.mode", "not among", id="enum"
    ),
    pytest.param(_edited(privileged=3), "privileged", "must be an object", id="privileged type"),
    pytest.param(
        _edited(tools=[{"name": "look", "parameters": {"properties": {"order": "integer"}}}]),
        "tools[0].parameters.properties.order",
        "must be an object",
        id="property",
    ),
    pytest.param(
        _edited(tools=[{"name": "look", "parameters": {"properties": {"order": {"enum": 5}}}}]),
        "tools[0].parameters.properties.order.enum",
        "list of the allowed values",
        id="enum that is no list",
    ),
    pytest.param(
        _edited(tools=[{"name": "look", "parameters": {"properties": {"order": {"anyOf": [{"enum": True}]}}}}]),
        "tools[0].parameters.properties.order.enum",
        "list of the allowed values",
        id="enum of an alternative",
    ),
    pytest.param(
        _edited(tools=[{"name": "look", "parameters": {"properties": {"order": {"anyOf": ["integer"]}}}}]),
        "tools[0].parameters.properties.order.anyOf",
        "list of objects",
        id="alternative that is no object",
    ),
    pytest.param(
        _edited(tools=[{"name": "look", "parameters": {"properties": {}, "required": [["order"]]}}]),
        "tools[0].parameters.required",
        "must be a list of names",
        id="required names",
    ),
]


@pytest.mark.parametrize(("row", "field", "said"), MALFORMED)
def test_malformed_line_is_reported_in_one_line(tmp_path, row, field, said):
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps(GOOD) + "\n" + json.dumps(row) + "\n")
    with pytest.raises(DataError) as caught:
        read_samples(path)
    assert caught.value.where == f"{path}:2: {field}"
    assert said in caught.value.remedy
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("content", "where", "said"),
    [
        (b'{"id": ', "1: line", "bad JSON"),
        (b'{"id": NaN}', "1: line", "bad JSON"),
        (b'{"id": 1e999}', "1: line", "bad JSON (1e999 is out of range)"),
        (b'"\\ud800"', "1: line", "bad JSON"),
        (b'{"id": "a", "id": "b"}', "1: line", "the key 'id' is given twice"),
        (b'{"id": "a", "ticket": {"x": 1, "y": 2, "y": 2}}', "1: line", "the key 'y' is given twice"),
        (b"[" * 100_000, "1: line", "bad JSON"),
        (b"", "1: line", "empty"),
        (b"\n  \n", "1: line", "empty"),
        (json.dumps(GOOD).encode() + b"\n\xff\xfe\n", "2: line", "not UTF-8"),
        (json.dumps(GOOD).encode() + b"\n\n" + json.dumps(GOOD).encode(), "3: id", "already used on line 1"),
    ],
)
def test_malformed_file_is_reported_in_one_line(tmp_path, content, where, said):
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_samples(path)
    assert caught.value.where == f"{path}:{where}"
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_file_and_folder_are_rejected(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        read_samples(tmp_path / "absent.jsonl")
    with pytest.raises(DataError, match="directory"):
        read_samples(tmp_path)


def test_valid_line_is_read(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(GOOD).encode() + b"\r\n\r\n")
    [sample] = read_samples(path)
    assert sample.history[1] == Turn(role="agent", content="Hello")
    assert sample.history[2] == Turn(role="agent", tool_call=ToolCall(name="look", parameters={"order": 1}))
    assert sample.history[3] == Turn(role="tool", name="look", content="done")
    assert sample.references[0] == Reference(action=Reply(content="Sure."), source="logged")


@pytest.mark.parametrize("value", [{"x": float("nan")}, {"x": "\ud83d"}, {"\ud83d": 1}, {"x": {1}}])
def test_object_that_is_no_json_is_rejected(value):
    with pytest.raises(DataError, match=r"^samples\[0\]: ticket: .*cannot be written as JSON"):
        from_json(_edited(ticket=value), where="samples[0]")


@pytest.mark.parametrize("field", ["ticket", "meta", "privileged", "history", "tools", "documents"])
def test_deeply_nested_field_is_rejected(field):
    def nested(depth):
        return json.loads('{"x": ' + "[" * (depth - 1) + "]" * (depth - 1) + "}")

    with pytest.raises(DataError, match=rf"^samples\[0\]: {field}: .*nested more than {MAX_NESTING} deep"):
        from_json(_edited(**{field: nested(900)}), where="samples[0]")
    assert from_json(_edited(meta=nested(MAX_NESTING))).meta == nested(MAX_NESTING)


def test_a_wrapped_tool_and_open_parameters_are_accepted():
    wrapped = {"type": "function", "function": {**TOOL, "parameters": {"additionalProperties": True}}}
    sample = from_json(_edited(tools=[wrapped]))
    assert sample.references[1].action == ToolCall(name="look", parameters={"order": 7})


def test_a_null_enum_allows_every_value():
    properties = {"order": {"type": "integer", "enum": None, "anyOf": None}}
    tool = {"name": "look", "parameters": {"properties": properties}}
    from_json(_edited(tools=[tool]))
    assert compact(tool) == "look(order?: integer)" and public_values([tool]) == frozenset()


def test_history_may_contain_unlisted_tools():
    turns = history_from_json([{"role": "agent", "action": "call_tool", "name": "f", "parameters": {}}], where="x:1")
    assert turns[0].tool_call == ToolCall(name="f")
    with pytest.raises(DataError, match="x:1: history"):
        history_from_json({}, where="x:1")


def test_failed_write_keeps_the_old_file(tmp_path):
    path = tmp_path / "x.jsonl"
    good = from_json(GOOD)
    write_samples(path, [good])
    before = path.read_bytes()

    def broken():
        yield good
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError):
        write_samples(path, broken())
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["x.jsonl"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
objects = st.dictionaries(st.text(min_size=1), json_values, max_size=3)
calls = st.builds(ToolCall, name=st.just("look"), parameters=st.fixed_dictionaries({"order": st.integers()}))
# a "<" may open a tag of the wire format, which no reference may hold
replies = st.builds(Reply, content=st.text(min_size=1).filter(lambda text: text.strip() and "<" not in text))
turns = st.one_of(
    st.builds(Turn, role=st.just("customer"), content=st.text()),
    st.builds(Turn, role=st.just("agent"), content=st.text()),
    st.builds(Turn, role=st.just("agent"), tool_call=calls),
    st.builds(Turn, role=st.just("tool"), name=st.none() | st.text(), content=st.text()),
)
samples = st.builds(
    ServiceSample,
    id=st.text(min_size=1),
    ticket=objects,
    policy=st.text(),
    tools=st.just((TOOL,)),
    history=st.lists(turns, max_size=4).map(tuple),
    references=st.lists(st.builds(Reference, action=replies | calls, source=st.text()), min_size=1, max_size=3).map(
        tuple
    ),
    privileged=objects.filter(lambda fields: "rubric" not in fields),  # a list of items
    meta=objects,
)


@given(samples)
def test_a_sample_survives_the_round_trip(sample):
    assert from_json(json.loads(json.dumps(to_json(sample)))) == sample


@settings(max_examples=25, deadline=None)
@given(st.lists(samples, min_size=1, max_size=4, unique_by=lambda s: s.id))
def test_a_file_survives_the_round_trip(tmp_path_factory, many):
    path = tmp_path_factory.mktemp("round") / "deep" / "x.jsonl"
    write_samples(path, many)
    assert read_samples(path) == many


def test_rubric_is_stored_in_the_privileged_fields():
    row = _rubric(weight=2.5)
    assert to_json(from_json(row))["privileged"] == row["privileged"]
