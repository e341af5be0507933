"""Supervised batches and the tokens that carry loss."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from hamr.data.sft import sft_batch
from hamr.types import Action, Reference, Reply, ServiceSample, ToolCall, Turn

CALL = ToolCall(name="look_up", parameters={"id": 7})


def turn_ids(turn: Turn) -> list[int]:
    """Role, one token a letter, end of turn (0)."""
    text = turn.content if turn.tool_call is None else turn.tool_call.name
    return [1000 + ["customer", "agent", "tool"].index(turn.role), *map(ord, text), 0]


def encode(sample: ServiceSample) -> tuple[int, ...]:
    return (1, *(token for turn in sample.history for token in turn_ids(turn)), 1001)


def answer(action: Action) -> tuple[int, ...]:
    return (*map(ord, action.content if isinstance(action, Reply) else action.name), 0)


def sample(*history: Turn, references: tuple[Action, ...] = (Reply(content="bye"),)) -> ServiceSample:
    return ServiceSample(
        id="s",
        ticket={},
        policy="",
        tools=(),
        history=history,
        references=tuple(Reference(action=action) for action in references),
    )


DIALOGUE = (
    Turn(role="customer", content="hi"),
    Turn(role="agent", tool_call=CALL),
    Turn(role="tool", name="look_up", content="42"),
    Turn(role="agent", content="so"),
    Turn(role="customer", content="no"),
)


def learned(prompt: tuple[int, ...], tokens: tuple[int, ...], mask: tuple[bool, ...]) -> str:
    assert len(tokens) == len(mask)
    return "".join("|" if t == 0 else chr(t) for t, m in zip(tokens, mask, strict=True) if m)


def test_last_turn_mode_keeps_the_history_in_the_prompt():
    [group] = sft_batch([sample(*DIALOGUE)], encode, answer, Random(0)).groups
    assert group.prompt_ids == encode(sample(*DIALOGUE))
    [sequence] = group.sequences
    assert learned(group.prompt_ids, sequence.token_ids, sequence.mask) == "bye|"


def test_all_turns_mode_trains_only_on_agent_turns():
    dialogue = sample(*DIALOGUE)
    [group] = sft_batch([dialogue], encode, answer, Random(0), turns="all").groups
    [sequence] = group.sequences
    assert group.prompt_ids == encode(sample(DIALOGUE[0]))
    assert (*group.prompt_ids, *sequence.token_ids) == (*encode(dialogue), *answer(Reply(content="bye")))
    assert learned(group.prompt_ids, sequence.token_ids, sequence.mask) == "look_up|so|bye|"


def test_turns_that_are_no_references_are_not_trained_on():
    dialogue = replace(sample(*DIALOGUE), meta={"not_references": [3]})
    [group] = sft_batch([dialogue], encode, answer, Random(0), turns="all").groups
    [sequence] = group.sequences
    assert learned(group.prompt_ids, sequence.token_ids, sequence.mask) == "look_up|bye|"


def test_several_references_train_on_the_history_once():
    several = sample(*DIALOGUE, references=(Reply(content="a"), Reply(content="b")))
    [group] = sft_batch([several], encode, answer, Random(0), references=2, turns="all").groups
    said = [learned(group.prompt_ids, s.token_ids, s.mask) for s in group.sequences]
    assert sorted(text[-2:] for text in said) == ["a|", "b|"]
    assert [text[:-2] for text in said] == ["look_up|so|", ""]


@pytest.mark.parametrize("history", [DIALOGUE[:1], ()])
def test_both_modes_are_equal_without_earlier_turns(history):
    only = sample(*history)
    batches = [sft_batch([only], encode, answer, Random(0), turns=turns) for turns in ("last", "all")]
    assert batches[0] == batches[1]


def test_turn_changed_by_the_template_is_excluded():
    def thinking(action: Action) -> tuple[int, ...]:
        return (*map(ord, "hm"), *answer(action))

    [group] = sft_batch([sample(*DIALOGUE)], encode, thinking, Random(0), turns="all").groups
    [sequence] = group.sequences
    assert group.prompt_ids == encode(sample(*DIALOGUE))
    assert learned(group.prompt_ids, sequence.token_ids, sequence.mask) == "hmbye|"
