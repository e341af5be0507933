"""Reading of a simulated customer's messages by the judges: the fields that each message shows, in any wording.

One question per judge and dialogue. What most of the judges read counts, as for the labels of the dialogue itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hamr.bench.sage.judging import JudgeVote, ask_judges, last_object
from hamr.bench.sage.simulation import reply_of
from hamr.bench.sage.traces import Trace, read_turn
from hamr.config.sage import SageConfig
from hamr.data.customer_audit import CustomerReader, Meaning, MessageReading
from hamr.data.rendering import one_line
from hamr.errors import VerdictUnparsable
from hamr.procedures.contract import label
from hamr.procedures.graph import Scenario
from hamr.procedures.prompts import customer_reading_prompt
from hamr.procedures.schema import Value
from hamr.prompting.reading import Schema, object_schema
from hamr.prompting.templates import neutralise
from hamr.protocols import Ask
from hamr.types import TRANSIENT, Question

Shown = tuple[int, str, Value]
"""(message counted from 1, field, value)."""


@dataclass(frozen=True, kw_only=True)
class CustomerVote(JudgeVote):
    """One judge's reading of one dialogue."""

    shown: tuple[Shown, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CustomerReading:
    """All judges' readings of one dialogue."""

    agent: str
    dialogue: str
    votes: tuple[CustomerVote, ...]

    @property
    def is_open(self) -> bool:
        """Return whether a judge's pool was unavailable, so that the same command asks again."""
        return any(vote.failure in TRANSIENT for vote in self.votes)

    def meanings(self, count: int) -> list[Meaning] | None:
        """Return the majority's reading of each of `count` messages; None if no judge answered."""
        answered = [vote for vote in self.votes if vote.failure is None]
        if not answered:
            return None
        votes = Counter(shown for vote in answered for shown in vote.shown)
        found: list[dict[str, Value]] = [{} for _ in range(count)]
        for (message, name, value), number in votes.items():
            if 2 * number > len(answered) and message <= count:
                found[message - 1][name] = value
        return list(found)


@dataclass(frozen=True, kw_only=True)
class JudgedReader:
    """Reader that takes a message with unknown wordings as the judges read it."""

    wordings: CustomerReader
    meanings: Sequence[Meaning]

    @property
    def opens_with(self) -> frozenset[str]:
        return self.wordings.opens_with

    def read(self, messages: Sequence[str], system: Mapping[str, Value]) -> list[MessageReading]:
        readings = self.wordings.read(messages, system)
        return [
            MessageReading(sentences=tuple(({name: value},) for name, value in meaning.items()), judged=True)
            if one.unread
            else one
            for one, meaning in zip(readings, self.meanings, strict=True)
        ]


async def read_customer(
    judges: Mapping[str, Ask], scenario: Scenario, trace: Trace, config: SageConfig
) -> CustomerReading:
    """Ask the judges what the customer's messages show. A judge's failure is stored in its vote and never raised."""

    def read(name: str, text: str) -> CustomerVote:
        return CustomerVote(judge=name, shown=read_shown(text, scenario))

    question = customer_question(scenario, trace)
    votes = await ask_judges(CustomerVote, judges, question, (trace.plan, "customer"), config, read)
    return CustomerReading(agent=trace.agent, dialogue=trace.plan.id, votes=votes)


def customer_question(scenario: Scenario, trace: Trace) -> Question:
    """Return the question about the whole dialogue, whose customer messages are numbered from 1."""
    language = trace.plan.language
    lines = []
    for number, turn in enumerate(trace.turns, 1):
        reply = reply_of(read_turn(scenario, trace.turns[:number]), language)
        lines += [f"Customer, message {number}: {one_line(turn.user)}", f"Agent: {one_line(reply)}"]
    transcript = f"<dialogue>\n{neutralise(chr(10).join(lines))}\n</dialogue>"
    instructions = customer_reading_prompt(scenario, language=language)
    return Question(
        messages=({"role": "system", "content": instructions}, {"role": "user", "content": transcript}),
        affinity=trace.plan.id,
        schema=_schema(scenario, len(trace.turns)),
    )


def _schema(scenario: Scenario, messages: int) -> Schema:
    fields = scenario.file.fields
    values = list(dict.fromkeys(str(option) for field in fields.values() for option in field.options or ()))
    entry = object_schema(
        message={"enum": list(range(1, messages + 1))}, field={"enum": list(fields)}, value={"enum": values}
    )
    return object_schema(shown={"type": "array", "items": entry, "maxItems": messages * len(fields)})


def read_shown(text: str, scenario: Scenario) -> tuple[Shown, ...]:
    """Return the entries of a judge's answer, without fields that have two values in one message. Raises
    VerdictUnparsable."""
    shown = dict.fromkeys(_entries(last_object(text), scenario))
    times = Counter((message, name) for message, name, _ in shown)
    return tuple(one for one in shown if times[one[:2]] == 1)


def _entries(found: Mapping[str, Any], scenario: Scenario) -> Iterator[Shown]:
    """Yield the valid entries. Raises VerdictUnparsable where there is no list."""
    rows = found.get("shown")
    if not isinstance(rows, list):
        raise VerdictUnparsable("the JSON object has no list `shown`")
    for row in rows:
        if not isinstance(row, dict):
            continue
        message, name = row.get("message"), row.get("field")
        if not isinstance(name, str) or name not in scenario.file.fields:
            continue
        value = label(row.get("value"), scenario.file.fields[name])
        if isinstance(message, int) and message > 0 and value is not None:
            yield message, name, value
