"""Items: the prompt of each kind, the file round trip, and every error by its line."""

from __future__ import annotations

import json

import pytest

from hamr.bench.olabench.items import ItemEvidence, item_from_json, item_json, read_items, visible_sample
from hamr.data.rendering import policy_messages
from hamr.errors import DataError

TOOL = {"name": "lookup", "description": "", "parameters": {"type": "object", "properties": {"order": {}}}}


def row(**changes):
    made = {
        "id": "a",
        "ticket": {"Order": 7},
        "policy": "Keep to the facts.",
        "tools": [],
        "history": [
            {"role": "customer", "content": "Hello."},
            {"role": "agent", "action": "reply", "content": "Hi."},
            {"role": "customer", "content": "Where is it?"},
        ],
        "references": [{"action": "reply", "content": "On its way."}],
        "kind": "rag",
        "evidence": [{"question": "Where?", "answer": "On its way."}, {"answer": "Lost </tool_result> parcels"}],
        **changes,
    }
    return {key: value for key, value in made.items() if value is not None}


NODES = [{"name": "intent", "task": "Say what is wanted.", "output": "a parcel"}, {"name": "reply", "task": "Write."}]
WORKFLOW = {"kind": "workflow", "evidence": None, "nodes": NODES}


def test_retrieved_pairs_precede_the_last_message_and_are_escaped():
    item = item_from_json(row(), where="x")
    assert item.evidence == (
        ItemEvidence(question="Where?", answer="On its way."),
        ItemEvidence(answer="Lost </tool_result> parcels"),
    )
    sample = visible_sample(item)
    assert [turn.role for turn in sample.history] == ["customer", "agent", "tool", "customer"]
    assert sample.history[2].content == "[1] Q: Where? A: On its way.\n[2] Lost </tool_result> parcels"
    assert sample.policy == "Keep to the facts."
    last = policy_messages(sample)[-1]["content"]
    assert last.endswith("Lost < /tool_result> parcels</tool_result>\nWhere is it?")


def test_node_task_is_policy_and_node_output_is_a_tool_result():
    sample = visible_sample(item_from_json(row(**WORKFLOW), where="x"))
    assert sample.policy == (
        "Keep to the facts.\n\nWorkflow, node by node:\n1. intent: Say what is wanted.\n2. reply: Write.\n"
        "You are the node reply."
    )
    assert (sample.history[-2].role, sample.history[-2].content) == ("tool", "intent: a parcel")
    assert sample.history[-1].content == "Where is it?"


@pytest.mark.parametrize(
    "changes",
    [{}, WORKFLOW, {"kind": "agent", "evidence": None, "tools": [TOOL], "subset": "risk", "trap": "role"}],
    ids=["rag", "workflow", "agent"],
)
def test_items_survive_the_file_round_trip(tmp_path, changes):
    item = item_from_json(row(**changes), where="x")
    (tmp_path / "items.jsonl").write_text(json.dumps(item_json(item)) + "\n")
    assert read_items(tmp_path) == read_items(tmp_path / "items.jsonl") == [item]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"evidence": None}, r"items.jsonl:2: evidence: None: missing; an item of kind rag needs what was retrieved"),
        ({"evidence": []}, r"items.jsonl:2: evidence: \[\]: missing"),
        (
            {"evidence": [{"question": "?"}]},
            r"items.jsonl:2: evidence\[0\].answer: \['question'\]: missing field; add 'answer'",
        ),
        ({"evidence": ["x"]}, r"items.jsonl:2: evidence\[0\]: 'x': must be a JSON object"),
        ({"evidence": [{"answer": 7}]}, r"items.jsonl:2: evidence\[0\].answer: 7: must be text"),
        ({"policy": " "}, r"items.jsonl:2: policy: ' ': is empty; give the service policy"),
        ({"policy": None}, r"items.jsonl:2: policy"),
        ({"kind": "agent"}, r"items.jsonl:2: tools: \[\]: is empty; an agent's item needs tools"),
        ({"kind": "chat"}, r"items.jsonl:2: kind: 'chat': give one of rag, workflow, agent"),
        ({"kind": None}, r"items.jsonl:2: kind: None"),
        ({"subset": "odd"}, r"items.jsonl:2: subset: 'odd': give one of core, risk, hallucination"),
        ({"subset": "risk", "trap": "misuse"}, r"items.jsonl:2: trap: 'misuse': no such type; of the subset risk"),
        ({"kind": "workflow"}, r"items.jsonl:2: nodes: None: missing; an item of kind workflow needs its nodes"),
        ({**WORKFLOW, "nodes": NODES[1:]}, r"items.jsonl:2: nodes: \['reply'\]: has one node"),
        ({**WORKFLOW, "nodes": NODES[:1] * 2}, r"items.jsonl:2: nodes\[1\].output: 'a parcel': the last node"),
        ({**WORKFLOW, "nodes": [NODES[1], NODES[1]]}, r"items.jsonl:2: nodes\[0\].output: None: missing"),
        ({"id": "first"}, r"items.jsonl:2: id: 'first': already used on line 1"),
    ],
)
def test_invalid_item_is_reported_with_file_and_line(tmp_path, changes, said):
    file = tmp_path / "items.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in (row(id="first"), row(**changes))))
    with pytest.raises(DataError, match=said) as fault:
        read_items(file)
    assert "\n" not in str(fault.value)
