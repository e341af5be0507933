"""Fidelity of the simulated customers of an evaluation: the audit of each dialogue, and their measures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hamr.bench.sage.customer_reading import CustomerReading, JudgedReader
from hamr.bench.sage.reader_exam import known_fields
from hamr.bench.sage.traces import Trace, read_turn
from hamr.data.customer_audit import (
    CustomerAudit,
    CustomerFault,
    CustomerReader,
    WordingReader,
    audit_customer,
)
from hamr.procedures.graph import Scenario
from hamr.procedures.words import load_words, words_file

USER_WORDS = (5, 15)
"""Length of a customer's message in words, by the paper's prompt (B.3.2)."""


class CustomerAuditor:
    """Audits the dialogues of some scenarios in one language."""

    def __init__(self, scenarios: Mapping[str, Scenario], language: str) -> None:
        """Raises BadInput for wordings of a scenario that are invalid. A scenario without wordings has fewer checks."""
        self._scenarios = scenarios
        self._readers: dict[str, CustomerReader] = {}
        for name, scenario in scenarios.items():
            has_words = scenario.source is not None and words_file(scenario, language).is_file()
            self._readers[name] = WordingReader(scenario, load_words(scenario, language) if has_words else None)

    def audit(self, trace: Trace, reading: CustomerReading | None = None) -> CustomerAudit | None:
        """Return the audit of a finished dialogue. None for an interrupted one, and for one from a file, whose customer
        is not simulated.

        Messages with unknown wordings are taken as the judges read them, if there is a `reading`. A model's customer
        knew only the fields that its path reads, so that others cannot contradict its case.
        """
        plan = trace.plan
        if plan.source == "file" or not trace.is_finished:
            return None
        scenario = self._scenarios[plan.scenario]
        output = read_turn(scenario, trace.turns).output if trace.turns else None
        reader, fields = self._readers[plan.scenario], plan.fields
        meanings = reading.meanings(len(trace.turns)) if reading is not None else None
        if meanings is not None:
            reader, fields = JudgedReader(wordings=reader, meanings=meanings), known_fields(scenario, plan)
        found = audit_customer(
            scenario,
            plan.case(fields),
            [turn.user for turn in trace.turns],
            reader,
            ending="left" if trace.outcome == "ended" else "limit" if trace.outcome == "max_turns" else "cut",
            action=output.action if output is not None else "",
        )
        end = _fault_at_end(trace)
        return found if end is None else replace(found, faults=(*found.faults, end))


def _fault_at_end(trace: Trace) -> CustomerFault | None:
    """Return the fault that ended the dialogue, whose message is not part of it."""
    at = len(trace.turns)
    if trace.outcome == "user_broke_character":
        return CustomerFault(kind="left_role", message=at, detail=trace.detail)
    if trace.outcome == "user_ended_at_once":
        return CustomerFault(kind="ended_early", message=at, detail=trace.detail)
    return None


def is_undecided(audit: CustomerAudit | None) -> bool:
    """Return whether no fault was found but a message was not understood."""
    return audit is not None and not audit.faults and audit.understood < 1


def is_faulty(audit: CustomerAudit | None) -> bool:
    return audit is not None and bool(audit.faults)


def fidelity(audits: Sequence[CustomerAudit]) -> dict[str, Any]:
    """Return the fidelity of some customers: counts, mean words per message, and shares in percent.

    `disclosed` and `goal` are means over the customers whose every sentence was understood; None if there are none.
    """
    words = [count for audit in audits for count in audit.words]
    low, high = USER_WORDS
    return {
        "customers": len(audits),
        "faulty": sum(bool(audit.faults) for audit in audits),
        "faults": dict(Counter(kind for audit in audits for kind in audit.kinds).most_common()),
        "words": _mean(words),
        "words_in_range": _mean([low <= count <= high for count in words], 100),
        "own_language": _mean([audit.own_language for audit in audits], 100),
        "in_role": _mean([audit.in_role for audit in audits], 100),
        "understood": _mean([audit.understood for audit in audits], 100),
        "disclosed": _mean([audit.disclosed for audit in audits if audit.disclosed is not None], 100),
        "goal": _mean([audit.goal for audit in audits if audit.goal is not None], 100),
    }


def _mean(values: Sequence[float], scale: float = 1) -> float | None:
    return scale * (sum(values) / len(values)) if values else None
