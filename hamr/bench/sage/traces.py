"""Plan and trace of a dialogue: one JSON object each, so that it can be read, replayed and judged again. `read_turn`
reads an agent's turn: the JSON of the contract, or tool calls and a text."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Literal

from hamr.data.customer_audit import CustomerCase
from hamr.procedures.contract import AgentOutput, OutputFault, OutputReading, read_output
from hamr.procedures.graph import Scenario
from hamr.procedures.prompts import user_prompt
from hamr.procedures.rules import Walk
from hamr.procedures.schema import Value
from hamr.procedures.words import Split, Words, customer_turns

CustomerTurn = tuple[str, dict[str, Value], Walk]
"""Message, fields shown so far and progress of the procedure."""

CustomerSource = Literal["intent", "path", "file"]
DialogueOutcome = Literal[
    "ended", "max_turns", "user_ended_at_once", "user_broke_character", "context_full", "user_failed", "agent_failed"
]
AgentFault = Literal["tool_rounds", "malformed_call", "function_failed", "function_timeout"]
REPLACEMENT = "+"
"""Mark in the id of a customer that replaces another: `telecom_package/0004+1`."""
_REPLACED = re.compile(r"\+\d+\Z")


def original_of(dialogue: str) -> str:
    """Return the id of the customer that this one replaces, or its own."""
    return _REPLACED.sub("", dialogue)


FAILED: tuple[DialogueOutcome, ...] = ("user_failed", "agent_failed")
"""Outcomes where a pool did not answer: the same command tries the dialogue again."""


@dataclass(frozen=True, kw_only=True)
class DialoguePlan:
    """One customer: intent, persona and knowledge.

    `fields` is what the customer's words should show, `system` the ticket (its variables and facts), `source` the
    reason for this customer: its intent, or a path that had too few. The customer of a finished dialogue comes from a
    file, and its `fields` may be unknown (empty).
    """

    id: str
    scenario: str
    intent: str
    persona: str
    level: str
    fields: Mapping[str, Value]
    system: Mapping[str, Value]
    source: CustomerSource
    language: str
    seed: int

    def replacement(self, number: int) -> DialoguePlan:
        """Return the customer that replaces this one: the same case with other seeds. 0: this one."""
        return replace(self, id=f"{self.id}{REPLACEMENT}{number}") if number else self

    def case(self, fields: Mapping[str, Value]) -> CustomerCase:
        """Return the case that the customer's messages are audited against, with those fields that it knows."""
        return CustomerCase(fields=fields, system=self.system, intent=self.intent, language=self.language)

    def seed_of(self, *what: object) -> int:
        """Return a seed for one question of this dialogue, the same in every run."""
        text = "/".join(map(str, (self.seed, self.id, *what)))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1

    def prompt(self, scenario: Scenario) -> str:
        """Return the system prompt of a model that speaks for the customer."""
        return user_prompt(
            scenario,
            intent=self.intent,
            persona=self.persona,
            level=self.level,
            fields=self.fields,
            system=self.system,
            language=self.language,
        )

    def messages(self, scenario: Scenario, words: Words, split: Split, rng: Random) -> Iterator[CustomerTurn]:
        """Yield the customer's turns in the scenario's wordings."""
        return customer_turns(
            scenario,
            words,
            split,
            fields=self.fields,
            ticket=self.system,
            intent=self.intent,
            persona=self.persona,
            level=self.level,
            rng=rng,
        )


@dataclass(frozen=True, kw_only=True)
class ToolUse:
    """One tool call and its result.

    `action`: the action of the scenario that it did, "" where the call was refused. `wrong_amount`: the procedure
    demands another amount.
    """

    name: str
    arguments: str
    result: str
    action: str = ""
    wrong_amount: bool = False


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """One turn: the customer's and the agent's text, unmodified except for a code fence that `fence=strip` removes.

    `fenced`: there was a code fence around the agent's JSON. `cut_off`: the agent's text was truncated. `calls`: the
    tools that it called before its text; None if it states its action in the JSON of the contract. `fault`: why there
    is no text, with its `detail`: too many rounds of tool calls, a malformed call, or a failure of the user's own
    function.
    """

    user: str
    agent: str
    fenced: bool = False
    cut_off: bool = False
    calls: tuple[ToolUse, ...] | None = None
    fault: AgentFault | None = None
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One dialogue. `detail`: the customer's fault, or the failure that ended it. `parting`: the customer's last
    message, which has no answer. `resolved`, `taken_over`: outcome of a dialogue in production, if it is known."""

    agent: str
    simulator: str
    plan: DialoguePlan
    turns: tuple[Exchange, ...]
    outcome: DialogueOutcome
    detail: str = ""
    parting: str = ""
    resolved: bool | None = None
    taken_over: bool | None = None

    @property
    def is_finished(self) -> bool:
        return self.outcome not in FAILED


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
