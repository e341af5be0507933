"""Reading of an agent's turn: the JSON of the contract, or tool calls and a text."""

from __future__ import annotations

from collections.abc import Sequence

from hamr.bench.sage.traces import Exchange
from hamr.procedures.contract import AgentOutput, OutputFault, OutputReading, read_output
from hamr.procedures.graph import Scenario


def read_turn(scenario: Scenario, turns: Sequence[Exchange]) -> OutputReading:
    """Return the output at the last of these turns. Never raises.

    The action of an agent with tools is the last one that it did in the dialogue.
    """
    now = turns[-1]
    if now.fault is not None and now.fault != "tool_rounds":
        return OutputReading(output=None, faults=(OutputFault(kind=now.fault, detail=now.detail),))
    if now.calls is None:
        return read_output(now.agent, scenario, cut_off=now.cut_off)
    chat = now.agent.strip()
    if not chat and not now.calls:
        return OutputReading(output=None, faults=(OutputFault(kind="empty"),))
    faults = [OutputFault(kind="tool_rounds", detail=now.detail)] if now.fault else []
    if not chat and not now.fault:
        faults.append(OutputFault(kind="chat_empty"))
    wrong = [use for use in now.calls if use.wrong_amount]
    faults += [OutputFault(kind="wrong_amount", detail=f"{use.name} {use.arguments}"[:60]) for use in wrong]
    done = [use.action for turn in turns for use in turn.calls or () if use.action]
    output = AgentOutput(fields={}, cot="", path=(), action=done[-1] if done else "", chat=chat, acts=True)
    return OutputReading(output=output, faults=tuple(faults))
