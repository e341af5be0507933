"""Exam of the judges as readers of customers, before they may exclude a dialogue: customers by template, whose case and
words are known."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from random import Random

from hamr.bench.sage.coverage import plan_dialogues
from hamr.bench.sage.customer_reading import CustomerReading, JudgedReader, read_customer
from hamr.bench.sage.traces import DialoguePlan, Exchange, Trace
from hamr.config.sage import SageConfig
from hamr.data.customer_audit import WordingReader, audit_customer
from hamr.errors import BadInput
from hamr.procedures.graph import Scenario
from hamr.procedures.schema import Value
from hamr.procedures.words import ask_of, load_words
from hamr.protocols import Ask

CUSTOMERS = 10
"""Customers of an exam, each with one question to each judge."""
MOST_ALARMS, LEAST_FOUND = 0.1, 0.9


@dataclass(frozen=True, kw_only=True)
class ReaderExam:
    """Result of an exam: `alarms` of `customers` seemed faulty although they are not; `found` of `changed` cases, in
    each of which one field was changed to another value than the customer shows."""

    scenario: str
    customers: int = 0
    alarms: int = 0
    changed: int = 0
    found: int = 0

    @property
    def may_read(self) -> bool:
        """Return whether the judges may read. False for a scenario without wordings, which has no exam."""
        enough = self.alarms <= MOST_ALARMS * self.customers and self.found >= LEAST_FOUND * self.changed
        return self.customers > 0 and enough


async def examine_readers(judges: Mapping[str, Ask], scenario: Scenario, config: SageConfig) -> tuple[ReaderExam, bool]:
    """Let the judges read customers by template and count their errors. A judge's failure is never raised.

    Return the exam, and whether it is final: no pool was unavailable.
    """
    try:
        traces = list(exam_dialogues(scenario, config))
    except BadInput:  # no wordings, or incomplete ones
        return ReaderExam(scenario=scenario.name), True
    readings = await asyncio.gather(*(read_customer(judges, scenario, trace, config) for trace in traces))
    alarms = changed = found = 0
    for trace, reading in zip(traces, readings, strict=True):
        fields = known_fields(scenario, trace.plan)
        alarms += _seems_faulty(scenario, trace, reading, fields)
        for case in _changed_cases(scenario, trace.plan, fields):
            changed += 1
            found += _seems_faulty(scenario, trace, reading, case)
    exam = ReaderExam(scenario=scenario.name, customers=len(traces), alarms=alarms, changed=changed, found=found)
    return exam, not any(reading.is_open for reading in readings)


def known_fields(scenario: Scenario, plan: DialoguePlan) -> dict[str, Value]:
    """Return the fields that a model's customer knows: those that its path reads, and those of its intent."""
    names = {*scenario.walk(plan.fields, plan.system).read, *scenario.file.intents[plan.intent].pins}
    return {name: value for name, value in plan.fields.items() if name in names}


def exam_dialogues(scenario: Scenario, config: SageConfig) -> Iterator[Trace]:
    """Yield dialogues of customers by template with an agent that asks for what the procedure needs next.

    Raises BadInput for missing wordings.
    """
    words = load_words(scenario, config.language)
    for plan in plan_dialogues(scenario, config.model_copy(update={"limit": CUSTOMERS})):
        plan, turns = replace(plan, id=f"exam/{plan.id}"), []
        for message, shown, walk in plan.messages(scenario, words, "test", Random(plan.seed_of("exam"))):
            reply = "" if walk.awaits is None else ask_of(words.test, walk.awaits, shown)[0]
            turns.append(Exchange(user=message, agent=reply, calls=()))
        yield Trace(agent="exam", simulator="exam", plan=plan, turns=tuple(turns), outcome="ended")


def _changed_cases(scenario: Scenario, plan: DialoguePlan, fields: Mapping[str, Value]) -> Iterator[dict[str, Value]]:
    """Yield the case with one of its fields changed, in turn, except for those of its intent."""
    rng = Random(plan.seed_of("change"))
    for name, value in fields.items():
        others = [option for option in scenario.file.fields[name].options or () if option != value]
        if name not in scenario.file.intents[plan.intent].pins and others:
            yield {**fields, name: rng.choice(others)}


def _seems_faulty(scenario: Scenario, trace: Trace, reading: CustomerReading, fields: Mapping[str, Value]) -> bool:
    """Return whether the audit finds a fault in a customer with these fields; True if no judge answered."""
    meanings = reading.meanings(len(trace.turns))
    if meanings is None:
        return True
    audit = audit_customer(
        scenario,
        trace.plan.case(fields),
        [turn.user for turn in trace.turns],
        JudgedReader(wordings=WordingReader(scenario, None), meanings=meanings),
        ending="cut" if fields != known_fields(scenario, trace.plan) else "limit",
    )
    return bool(audit.faults)
