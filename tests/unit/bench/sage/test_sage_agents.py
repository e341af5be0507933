"""Agents with tools: the scenario executes their calls and returns the results, until they answer with a text."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
from pydantic import TypeAdapter

from hamr.bench.decisions import response_text
from hamr.bench.sage.assessment import assess
from hamr.bench.sage.coverage import plan_dialogues
from hamr.bench.sage.desk import ServiceDesk
from hamr.bench.sage.simulation import SILENCE, Simulation
from hamr.bench.sage.traces import Trace
from hamr.config.sage import SageConfig
from hamr.data.rendering import policy_messages
from hamr.data.sage_samples import generate
from hamr.procedures import load_scenario
from hamr.types import Answer, RequestedCall
from tests.unit.bench.sage.test_sage_run import QUICK, mean, run
from tests.unit.bench.sage.test_sage_simulation import says

TELECOM, AIRLINE = load_scenario("telecom_package"), load_scenario("airline_refund")
PLAN = plan_dialogues(TELECOM, SageConfig())[0]


def calls(*names, text="", arguments="{}"):
    return Answer(text=text, tool_calls=tuple(RequestedCall(name=name, arguments=arguments) for name in names))


async def talk(agent, user, *, native=True, plan=PLAN, scenario=TELECOM, **options):
    desk = Simulation(scenario, agent, user, SageConfig(agent_prompt="actions", **options), native=native)
    return await desk.run(plan, agent="a", simulator="s")


def assessed(trace, scenario=TELECOM):
    return assess(scenario, trace, {}, SageConfig())[-1]


async def test_call_is_executed_and_its_result_returned_before_the_reply():
    agent, user = says(calls("change_order"), "It is done."), says("Cancel it.", "[END]")
    trace = await talk(agent, user)
    (turn,) = trace.turns
    assert (turn.agent, [use.action for use in turn.calls]) == ("It is done.", ["ChangeOrder"])
    _, _, asked, result = agent.asked[1].messages
    assert asked["tool_calls"][0]["id"] == result["tool_call_id"]
    assert json.loads(result["content"])["status"] == "done" and result["role"] == "tool"
    assert [tool["function"]["name"] for tool in agent.asked[0].tools] == ["change_order", "trans_human"]
    assert user.asked[1].messages[-1]["content"] == (
        "It is done.\n(what the desk now does: Carry out the change or the cancellation.)"
    )
    assert TypeAdapter(Trace).validate_json(json.dumps(asdict(trace))) == trace


async def test_call_in_the_text_is_executed_as_in_training():
    agent = says('<think>so</think><tool_call>{"name": "change_order", "arguments": {}}</tool_call>', "Done.")
    trace = await talk(agent, says("Cancel it.", "[END]"), native=False)
    assert [use.action for use in trace.turns[0].calls] == ["ChangeOrder"]
    assert agent.asked[0].tools == () and "Tools: change_order()" in agent.asked[0].messages[0]["content"]
    assert agent.asked[1].messages[-1]["content"].startswith("<tool_result>")


@pytest.mark.parametrize("native", [True, False])
async def test_text_next_to_a_call_is_part_of_the_reply(native):
    call = '<tool_call>{"name": "change_order", "arguments": {}}</tool_call>'
    first = calls("change_order", text="I cancel it.") if native else f"I cancel it. {call}"
    agent, user = says(first, "It is done.", first, "", "Bye."), says("Cancel it.", "Again.", "Thanks.", "[END]")
    trace = await talk(agent, user, native=native)
    assert [turn.agent for turn in trace.turns] == ["I cancel it.\nIt is done.", "I cancel it.", "Bye."]
    assert [len(turn.calls) for turn in trace.turns] == [1, 1, 0]
    seen = [message["content"] for message in agent.asked[-1].messages if message["role"] == "assistant"]
    spoken = [text.replace(call, "").strip() for text in seen]
    assert spoken == ["I cancel it.", "It is done.", "I cancel it."], "each text once"


@pytest.mark.parametrize("fence", ["strip", "error"])
async def test_fence_in_a_tool_call_is_counted_and_stripped_where_configured(fence):
    call = '<tool_call>```json\n{"name": "change_order", "arguments": {}}\n```</tool_call>'
    trace = await talk(says(call, "Done."), says("Cancel it.", "[END]"), native=False, fence=fence)
    (turn,) = trace.turns
    found = (turn.agent, len(turn.calls), turn.fault) if fence == "strip" else (turn.fault, len(turn.calls))
    assert turn.fenced and found == (("Done.", 1, None) if fence == "strip" else ("malformed_call", 0))


async def test_prompt_of_actions_matches_the_training_prompt():
    splits = generate([TELECOM], {"train": 12, "validation": 0, "test": 0}, seed=0)
    for sample in splits.train:
        agent = says("Hm?")
        plan = PLAN.__class__(**{**vars(PLAN), "system": {**sample.ticket, **sample.meta["system"]}})
        await talk(agent, says(sample.history[0].content, "[END]"), native=False, plan=plan)
        assert list(agent.asked[0].messages) == policy_messages(sample)[:2]


@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [
        ("changeorder", "{}", "no such tool; there are: change_order, trans_human"),
        ("change_order", "{", "not JSON"),
        ("change_order", "[]", "not an object"),
        ("change_order", '{"order": 7}', "order: unknown parameter"),
    ],
)
async def test_wrong_call_returns_an_error_that_the_agent_can_correct(name, arguments, error):
    agent = says(calls(name, arguments=arguments), calls("change_order"), "Done.")
    trace = await talk(agent, says("Cancel it.", "[END]"))
    wrong, right = trace.turns[0].calls
    assert error in json.loads(wrong.result)["error"] and wrong.action == ""
    assert right.action == "ChangeOrder" and assessed(trace).faults == ()


def test_wrong_amount_is_accepted_and_counted():
    plan = next(
        plan
        for plan in plan_dialogues(AIRLINE, SageConfig())
        if AIRLINE.file.actions[AIRLINE.walk(plan.fields, plan.system).action].amount
    )
    desk = ServiceDesk(AIRLINE, plan)
    name = AIRLINE.walk(plan.fields, plan.system).action
    action = AIRLINE.file.actions[name]
    due = AIRLINE.amount(action.amount, plan.system)

    def use(amount):
        return desk.use(RequestedCall(name=action.tool(name), arguments=json.dumps({"amount": amount})))

    assert (use(due).action, use(due).wrong_amount) == (name, False)
    assert (use(due + 1).action, use(due + 1).wrong_amount) == (name, True)
    assert json.loads(use(due + 1).result) == json.loads(use(due).result), "the result does not tell the right amount"
    assert "whole number" in use(str(due)).result


async def test_tool_calls_without_end_are_a_fault_and_the_action_counts():
    agent, user = says(calls("change_order")), says("Cancel it.", "Hello?", "[END]")
    trace = await talk(agent, user, max_rounds=3)
    assert trace.outcome == "ended" and len(agent.asked) == 2 * 4
    assert [(turn.fault, len(turn.calls)) for turn in trace.turns] == [("tool_rounds", 3)] * 2
    assert [json.loads(use.result)["status"] for use in trace.turns[0].calls] == ["done", *["already done"] * 2]
    assert user.asked[1].messages[-1]["content"].startswith(SILENCE["en"])
    assert assessed(trace).faults == ("tool_rounds",) and assessed(trace).readable


@pytest.mark.parametrize("prompt", ["actions", "service"])
@pytest.mark.parametrize("failure", ["function_failed", "function_timeout"])
async def test_failed_function_is_an_outcome_of_its_turn(failure, prompt):
    broken = Answer(failure=failure, detail="agent (my.py:f) raised ValueError")
    user = says("Hello", "Hello?", "[END]")
    agent = says(broken)
    desk = Simulation(TELECOM, agent, user, SageConfig(agent_prompt=prompt), native=True)
    trace = await desk.run(PLAN, agent="a", simulator="s")
    assert (trace.outcome, len(trace.turns), len(agent.asked)) == ("ended", 2, 2)
    assert (assessed(trace).faults, assessed(trace).readable) == ((failure,), False)
    assert trace.turns[0].detail == "agent (my.py:f) raised ValueError"
    worth, truth = assessed(trace).worth, assessed(trace).truth
    known = None if prompt == "actions" else 0.0  # an agent with tools states neither labels nor a path
    assert (worth.overall, worth.logic.logic, worth.logic.path, truth.logic) == (known,) * 4
    assert (worth.chat, worth.logic.action, truth.action) == (0.0, 0.0, 0.0)


async def test_unavailable_endpoint_ends_the_dialogue():
    away = Answer(failure="unavailable", detail="gone")
    trace = await talk(says(calls("change_order"), away), says("Cancel it."), attempts=1)
    assert (trace.outcome, trace.turns) == ("agent_failed", ())


@pytest.mark.parametrize(("text", "kind"), [("", "empty"), ("<tool_call>{", "malformed_call")])
async def test_empty_and_malformed_answers_are_unreadable(text, kind):
    trace = await talk(says(text), says("Hello", "[END]"), native=False)
    assert assessed(trace).faults == (kind,)


@pytest.mark.parametrize("native", [True, False])
def test_scripted_agents_mark_the_ends_of_the_scale_with_tools_too(tmp_path, native):
    names = ("telecom_package", "airline_refund", "online_education")
    agents = ("perfect", "wrong_action", "silent")
    config = QUICK.model_copy(update={"agent_prompt": "actions", "cover": "routes"})
    found = run(tmp_path, names, config, agents=agents, native=frozenset(agents if native else ()))
    # An action that is done by a reply cannot be distinguished from another one.
    for agent, action, tolerance in (("perfect", 100.0, 0.0), ("wrong_action", 0.0, 5.0), ("silent", 0.0, 0.0)):
        assert mean(found, agent, "action") == pytest.approx(action, abs=tolerance)
        assert mean(found, agent, "truth_action") == pytest.approx(action, abs=tolerance)
    assert mean(found, "perfect", "chat") == 90.0
    assert mean(found, "perfect", "logic") is None and mean(found, "perfect", "overall") is None
    assert mean(found, "perfect", "format_error") == 0.0
    assert all(a.departed is None for name in names for a in found.assessed["perfect"][name])


def test_answer_in_the_wire_format_keeps_its_faults():
    assert response_text(calls("f", text="Hm. ", arguments='{"a": 1}')) == (
        'Hm. <tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    )
    assert response_text(calls("f", arguments="{")) == '<tool_call>{"name": "f", "arguments": {}</tool_call>'
