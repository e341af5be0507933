"""The SFT file: kinds, parts, rejected rows and the file round trip."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hamr.data.rendering import policy_messages
from hamr.data.samples import to_json
from hamr.data.sft_items import (
    PARTS,
    SftItem,
    TargetPart,
    decision_item,
    item_from_json,
    item_messages,
    item_to_json,
    read_items,
    write_items,
)
from hamr.errors import DataError
from hamr.types import Reference, Reply, ServiceSample, SftKind, ToolCall, Turn

SAMPLE = ServiceSample(
    id="s1",
    ticket={"Penalty": 0},
    policy="Help.",
    tools=({"name": "look", "parameters": {"type": "object", "properties": {"order": {"type": "integer"}}}},),
    history=(Turn(role="customer", content="Hi"),),
    references=(Reference(action=Reply(content="Hello.")),),
)
TEXTS = {
    "decision": ("Hello.",),
    "decision_dra": ("<think>They greet.</think>", "<answer>Hello.</answer>"),
    "patm": (
        "<plans><plan_1>I greet.</plan_1>",
        "<plan_2>Assuming they ask for the bill, this indicates a question,",
        " therefore I can look it up.</plan_2></plans><actions>[]</actions>",
    ),
    "patm_dra": ("<think>They greet.</think>", "<plans><plan_1>a</plan_1>", "<plan_2>b", " c</plan_2></plans>"),
    "decision_post": ("<answer>Hello.</answer>", "<think>They greet.</think>"),
}


def item(kind: SftKind) -> SftItem:
    return SftItem(
        kind=kind,
        sample=SAMPLE,
        target=tuple(TargetPart(part=p, text=t) for p, t in zip(PARTS[kind], TEXTS[kind], strict=True)),
    )


def row(kind: SftKind = "decision_dra", **changes: Any) -> dict[str, Any]:
    return item_to_json(item(kind)) | changes


def target(*parts: tuple[str, str]) -> list[dict[str, str]]:
    return [{"part": part, "text": text} for part, text in parts]


@pytest.mark.parametrize("kind", PARTS)
def test_item_survives_the_file_round_trip(kind: SftKind, tmp_path: Path) -> None:
    write_items(tmp_path / "a.jsonl", [item(kind)] * 2)
    assert read_items(tmp_path / "a.jsonl") == [item(kind)] * 2
    assert json.loads((tmp_path / "a.jsonl").read_text().splitlines()[0])["kind"] == kind


@pytest.mark.parametrize("kind", PARTS)
def test_parts_concatenate_to_the_answer(kind: SftKind) -> None:
    assert item(kind).text == "".join(TEXTS[kind])


def test_decision_prompts_match_rl_and_plan_prompts_differ() -> None:
    assert item_messages(item("decision")) == policy_messages(SAMPLE, "plain")
    assert item_messages(item("decision_dra")) == policy_messages(SAMPLE, "think_answer")
    prompts = {kind: item_messages(item(kind))[0]["content"] for kind in PARTS}
    assert len(set(prompts.values())) == 5
    assert "<plans>" in prompts["patm"] and "<think>" not in prompts["patm"]
    assert "<think>" in prompts["patm_dra"] and "<plans>" in prompts["patm_dra"]


def test_pre_and_post_cot_prompts_differ_only_in_order() -> None:
    pre, post = (item_messages(item(kind)) for kind in ("decision_dra", "decision_post"))
    assert pre[1:] == post[1:]
    for messages, first, then in ((pre, "<think>", "<answer>"), (post, "<answer>", "<think>")):
        assert 0 < messages[0]["content"].index(first) < messages[0]["content"].index(then)
    assert item("decision_post").text == "<answer>Hello.</answer><think>They greet.</think>"


def test_decision_item_is_built_from_its_action() -> None:
    assert decision_item(SAMPLE, Reply(content="Hello.")) == item("decision")
    assert decision_item(SAMPLE, Reply(content="Hello."), "They greet.") == item("decision_dra")
    assert decision_item(SAMPLE, Reply(content="Hello."), "They greet.", answer_first=True) == item("decision_post")
    call = decision_item(SAMPLE, ToolCall(name="look", parameters={"order": 7}))
    assert call.text == '<tool_call>{"name": "look", "arguments": {"order": 7}}</tool_call>'


@given(st.text(min_size=1), st.text(), st.booleans())
def test_item_built_from_an_action_survives_the_round_trip(content: str, rationale: str, answer_first: bool) -> None:
    try:
        built = decision_item(SAMPLE, Reply(content=content), rationale, answer_first=answer_first)
    except DataError:
        return
    assert item_from_json(item_to_json(built)) == built


@pytest.mark.parametrize(
    ("bad", "place", "words"),
    [
        pytest.param([], "line", "must be a JSON object", id="no object"),
        pytest.param({"kind": "decision"}, "sample", "missing field", id="no sample"),
        pytest.param(row() | {"kind": "plan"}, "kind", "decision, decision_dra, patm, patm_dra", id="unknown kind"),
        pytest.param(row() | {"kind": ["patm"]}, "kind", "unknown kind", id="kind of another type"),
        pytest.param(row(sample={**to_json(SAMPLE), "id": ""}), "sample: id", "must not be empty", id="bad sample"),
        pytest.param(row(target={}), "target", "must be a list", id="target type"),
        pytest.param(row(target=["a"]), "target", "must be a list", id="part type"),
        pytest.param(row(target=[]), "target", "rationale, action", id="no parts"),
        pytest.param(
            row(target=target(("action", "a"), ("rationale", "b"))), "target", "in this order", id="order of parts"
        ),
        pytest.param(row("patm", target=target(("action", "a"))), "target", "action, environment, action", id="short"),
        pytest.param(
            row("decision", target=target(("action", " "))), "target[0].text", "not empty", id="an empty text"
        ),
        pytest.param(row("decision", target=[{"part": "action"}]), "target[0].text", "must be a text", id="no text"),
        pytest.param(
            row("decision", target=target(("action", "<tool_call>{}</tool_call>"))),
            "target",
            "without a name",
            id="no action",
        ),
        pytest.param(
            row(target=target(("rationale", "Because."), ("action", "Hello."))), "target", "<think>", id="no tags"
        ),
        pytest.param(
            row(target=target(("rationale", "<answer>Hi</answer>"), ("action", "<think>Why</think>"))),
            "target[0].text",
            "begins with <think>",
            id="blocks in each other's parts",
        ),
        pytest.param(
            row("decision_post", target=target(("action", "<think>a</think>"), ("rationale", "<answer>b</answer>"))),
            "target[0].text",
            "begins with <answer>",
            id="post-CoT with the thought first",
        ),
    ],
)  # fmt: skip
def test_invalid_row_is_reported_with_its_line(bad: Any, place: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(row()) + "\n\n" + json.dumps(bad) + "\n")
    with pytest.raises(DataError) as caught:
        read_items(path)
    assert caught.value.where == f"{path}:3: {place}"
    assert words in str(caught.value)


def test_empty_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n")
    with pytest.raises(DataError, match="the file is empty"):
        read_items(tmp_path / "a.jsonl")
