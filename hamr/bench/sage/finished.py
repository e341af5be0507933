"""Finished dialogues of an agent, read from a file, as traces that are judged and scored like simulated ones.

A line has the messages in OpenAI's format and what the back end knew:

    {"id": "d1", "ticket": {"PackageStatus": "Contracted", "Penalty": 0},
     "messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}

`scenario` names the procedure where there are several. `fields` is the customer's own case, if it is known. `intent`,
`persona` and `level` are for the tables. `resolved` and `taken_over` say of a dialogue of a service in production
whether the issue was resolved, and whether a person took over; their rates are reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from hamr.bench.sage.agents import exchange_of, read_answer
from hamr.bench.sage.desk import ServiceDesk
from hamr.bench.sage.traces import DialoguePlan, Exchange, ToolUse, Trace
from hamr.config.sage import SageConfig
from hamr.data.samples import read_unique
from hamr.data.shapes import check_shape
from hamr.errors import DataError, did_you_mean
from hamr.files import encodable
from hamr.pools.chat_reply import ReplyMessage, ReplyToolCall
from hamr.procedures.graph import Scenario
from hamr.procedures.schema import Value
from hamr.types import Answer, MalformedResponse, RequestedCall


class _Call(ReplyToolCall):
    id: str | None = None


class _Message(ReplyMessage):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    tool_calls: list[_Call] | None = None  # type: ignore[assignment]
    tool_call_id: str | None = None


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid")

    id: str = Field(min_length=1)
    messages: list[_Message]
    ticket: dict[str, Value]
    scenario: str | None = None
    fields: dict[str, Value] = {}
    intent: str = ""
    persona: str = ""
    level: str = ""
    resolved: bool | None = None
    taken_over: bool | None = None


def read_dialogues(path: Path, scenarios: Mapping[str, Scenario], config: SageConfig, *, agent: str) -> list[Trace]:
    """Return the dialogues of a file, the first `config.limit` of them.

    Messages before the customer's first, such as a greeting, are skipped. Messages of the agent until the customer's
    next are one turn. Without `config.agent_prompt` the agent acts by tools; with `service` or `sample` its text is the
    JSON of the contract.

    Raises:
        DataError: A line is invalid (file, line and field).
    """

    def parse(row: Any, where: str) -> Trace:
        return _trace(check_shape(_Row, row, where), where, scenarios, config, agent)

    return [trace for _, trace in islice(read_unique(path, parse, lambda trace: trace.plan.id), config.limit)]


def _trace(row: _Row, where: str, scenarios: Mapping[str, Scenario], config: SageConfig, agent: str) -> Trace:
    name = row.scenario or (next(iter(scenarios)) if len(scenarios) == 1 else "")
    if name not in scenarios:
        hint = did_you_mean(name, scenarios)
        raise DataError(f"{where}: scenario", name, f"{hint}must be one of scenario={','.join(scenarios)}")
    scenario = scenarios[name]
    _check_case(scenario, row, where)
    plan = DialoguePlan(
        id=row.id,
        scenario=name,
        intent=row.intent,
        persona=row.persona,
        level=row.level,
        fields=row.fields,
        system=row.ticket,
        source="file",
        language=config.language,
        seed=config.seed,
    )
    turns, parting = _exchanges(row.messages, ServiceDesk(scenario, plan), config)
    if not turns:
        raise DataError(f"{where}: messages", len(row.messages), "has no answer to a customer; give whole dialogues")
    return Trace(
        agent=agent,
        simulator="file",
        plan=plan,
        turns=tuple(turns),
        outcome="ended",
        parting=parting,
        resolved=row.resolved,
        taken_over=row.taken_over,
    )


def _check_case(scenario: Scenario, row: _Row, where: str) -> None:
    """Raise DataError unless the ticket has every system variable and no unknown one, the numbers of formulas are whole
    numbers, and the fields, if given, lead to an action."""
    file = scenario.file
    for key, given, known in (("ticket", row.ticket, file.system), ("fields", row.fields, file.fields)):
        for name, variable in known.items():
            if name in given and (problem := variable.problem(given[name])):
                raise DataError(f"{where}: {key}.{name}", given[name], problem)
            if name not in given and key == "ticket":
                raise DataError(f"{where}: ticket", sorted(given), f"missing variable; add {name!r}")
    for name, fact in file.facts.items():
        value = row.ticket.get(name, 0)
        if fact.number and (isinstance(value, bool) or not isinstance(value, int)):
            raise DataError(f"{where}: ticket.{name}", value, "must be a whole number")
    allowed = (("ticket", "variable", [*file.system, *file.facts]), ("fields", "field", [*file.fields]))
    for key, kind, names in allowed:
        unknown = next((name for name in getattr(row, key) if name not in names), None)
        if unknown is not None:
            hint = did_you_mean(unknown, names)
            raise DataError(f"{where}: {key}", unknown, f"no such {kind}; {hint}{kind}s: {', '.join(names)}")
    if refused := file.refusal(row.ticket):
        raise DataError(f"{where}: ticket", row.ticket, refused.why)
    if row.fields and (awaits := scenario.walk(row.fields, row.ticket).awaits):
        raise DataError(f"{where}: fields", sorted(row.fields), f"missing field; add {awaits!r}, or leave fields out")


def _exchanges(messages: Sequence[_Message], desk: ServiceDesk, config: SageConfig) -> tuple[list[Exchange], str]:
    """Return the turns, and the customer's last message if it has no answer."""
    acts = config.agent_prompt in (None, "actions")
    turns: list[Exchange] = []
    used: list[ToolUse] = []
    user: list[str] = []
    replies: list[_Message] = []

    def end_turn() -> None:
        answers = [message for message in replies if message.role == "assistant"]
        if acts:
            exchange, calls = _acting_turn("\n".join(user), answers, config)
            mine: list[ToolUse] = []
            for call, result in zip(calls, _results(answers, calls, replies), strict=True):
                use = desk.use(call, [*used, *mine])
                mine.append(use if result is None else replace(use, result=encodable(result)))
            used.extend(mine)
            turns.append(replace(exchange, calls=tuple(mine)))
        else:
            text = "\n".join(message.text for message in answers if message.text)
            turns.append(exchange_of("\n".join(user), text, config))

    for message in messages:
        if message.role == "user":
            if replies:
                end_turn()
                user, replies = [], []
            user.append(encodable(message.text))
        elif message.role in ("assistant", "tool") and user:
            replies.append(message)
    if replies:
        end_turn()
        user = []
    return turns, "\n".join(user)


def _acting_turn(user: str, answers: Sequence[_Message], config: SageConfig) -> tuple[Exchange, list[RequestedCall]]:
    """Return the turn of an agent with tools, without its calls, and these. They are read as in a simulation."""
    turn, texts, calls = Exchange(user=user, agent=""), list[str](), list[RequestedCall]()
    for message in answers:
        text, found, fenced = read_answer(Answer(text=message.text, tool_calls=message.tool_requests), config)
        texts += [text] * bool(text)
        turn = replace(turn, fenced=turn.fenced or fenced)
        if not isinstance(found, MalformedResponse):
            calls += found
        elif text.strip():
            turn = replace(turn, fault="malformed_call", detail=encodable(found.detail)[:300])
    return replace(turn, agent=encodable("\n".join(texts))), calls


def _results(
    answers: Sequence[_Message], calls: Sequence[RequestedCall], replies: Sequence[_Message]
) -> list[str | None]:
    """Return the result of each call of a turn, None if there is none: by the calls' ids, or else in their order."""
    results = [message for message in replies if message.role == "tool"]
    ids = [call.id for message in answers for call in message.tool_calls or ()]
    if len({*ids} - {None}) < len(calls):
        texts: list[str | None] = [message.text for message in results]
        return (texts + [None] * len(calls))[: len(calls)]
    by_id = {message.tool_call_id: message.text for message in reversed(results)}
    return [by_id.get(each) for each in ids]
