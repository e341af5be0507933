"""What a scorer gets to read."""

from hamr.rewards.dialogue import consistency_question, dialogue_text
from hamr.types import Reference, Reply, ServiceSample, ToolCall, Turn

HISTORY = (
    Turn(role="customer", content="I want to see the flat."),
    Turn(role="agent", tool_call=ToolCall(name="schedule", parameters={"name": "Ben", "day": "Monday"})),
    Turn(role="tool", name="schedule", content='{"free": false}'),
    Turn(role="agent", content="Monday is taken."),
)


def test_a_dialogue_reads_turn_by_turn():
    assert dialogue_text(HISTORY).splitlines() == [
        "Customer: I want to see the flat.",
        'Agent calls schedule {"day": "Monday", "name": "Ben"}',
        'Tool schedule: {"free": false}',
        "Agent: Monday is taken.",
    ]
    assert dialogue_text(()) == ""


def test_a_question_keeps_reference_and_response_apart_and_its_group_together():
    reference = Reply(content="Tuesday?")
    sample = ServiceSample(
        id="s7", ticket={}, policy="", tools=(), history=HISTORY, references=(Reference(action=reference),)
    )
    question = consistency_question(sample, reference, Reply(content="How about Tuesday?"))
    assert question.affinity == "s7"
    assert question.variables == {
        "history": dialogue_text(HISTORY),
        "statement_a": "Tuesday?",
        "statement_b": "How about Tuesday?",
    }
