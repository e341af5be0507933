"""Readings of a simulated customer's messages by the judges, and their use in the audit."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict

import pytest
from pydantic import TypeAdapter

from hamr.bench.sage.customer_reading import CustomerReading, CustomerVote, customer_question, read_customer
from hamr.bench.sage.customers import CustomerAuditor
from hamr.bench.sage.traces import DialoguePlan, Exchange, Trace
from hamr.config.sage import SageConfig
from hamr.procedures import load_scenario
from hamr.types import Answer

AIRLINE = load_scenario("airline_refund")
AUDITOR = CustomerAuditor({AIRLINE.name: AIRLINE}, "en")
PLAN = DialoguePlan(
    id="airline_refund/0001",
    scenario=AIRLINE.name,
    intent="change_of_plans",
    persona="family",
    level="zero",
    fields={
        "CoreDemand": "RescheduleOrRefund",
        "ChangeReason": "Personal",
        "UserEmotion": "Normal",
        "DocumentValidity": "Valid",
        "IsInfoComplete": "Complete",
    },
    system={"memberLevel": "VIP", "hasInsurance": False, "Flight": "HM204", "TicketPrice": 300, "HoursToDeparture": 12},
    source="path",
    language="en",
    seed=0,
)
OPENING = ((1, "CoreDemand", "RescheduleOrRefund"), (1, "ChangeReason", "Personal"))
CODE, PAPER = (2, "IsInfoComplete", "Complete"), (3, "DocumentValidity", "Valid")
WHOLE = (*OPENING, CODE, PAPER)
NAMES = dict(enumerate(("first", "second", "third")))


def trace(outcome="ended"):
    said = ("Our holiday fell through, so HM204 is no use to us.", "Sure: ABC123, Miller.", "The certificate is here.")
    turns = tuple(Exchange(user=text, agent="Of course.") for text in said)
    return Trace(agent="a", simulator="talk", plan=PLAN, turns=turns, outcome=outcome)


def audit(*votes, **changes):
    given = [CustomerVote(judge=NAMES[i], shown=shown) for i, shown in enumerate(votes)]
    return AUDITOR.audit(trace(**changes), CustomerReading(agent="a", dialogue=PLAN.id, votes=tuple(given)))


def test_messages_in_unknown_wordings_are_decided_by_the_judges():
    assert AUDITOR.audit(trace()).disclosed is None
    found = audit(WHOLE)
    assert (found.faults, found.understood, found.disclosed, found.goal) == ((), 1.0, 1.0, True)


@pytest.mark.parametrize(
    ("shown", "kind", "at"),
    [
        ((*OPENING, (2, "IsInfoComplete", "Incomplete"), PAPER), "said_more", 1),
        ((*WHOLE, (3, "ChangeReason", "Airline")), "other_goal", 2),
        ((*OPENING, PAPER), "said_less", 3),
        ((*OPENING, CODE), "ended_early", 3),
    ],
)
def test_faults_of_meaning_are_found_in_any_wording(shown, kind, at):
    [fault] = audit(shown).faults
    assert (fault.kind, fault.message) == (kind, at)


def test_field_that_the_customer_was_not_told_contradicts_nothing():
    """The path of a change of one's own plans does not read the emotion, so that a simulator chooses it."""
    assert audit((*WHOLE, (1, "UserEmotion", "Dissatisfied"))).faults == ()


def test_message_that_shows_nothing_is_no_evasion():
    """A customer by template that shows nothing withholds what is due; a model's may have asked back."""
    assert audit((*OPENING, (3, "IsInfoComplete", "Complete"))).kinds == ("ended_early",)
    assert audit((*OPENING, CODE), outcome="max_turns").kinds == ("said_less",)


def test_most_of_the_judges_decide():
    wrong = (*OPENING, (2, "IsInfoComplete", "Incomplete"), PAPER)
    assert audit(wrong, WHOLE, WHOLE).faults == ()
    assert audit(wrong, wrong, WHOLE).kinds == ("said_more",)
    assert audit(wrong, WHOLE).kinds == ("said_less",), "of two judges both have to agree"


def answer(*shown):
    rows = [{"message": m, "field": name, "value": value} for m, name, value in shown]
    return Answer(text=json.dumps({"shown": rows}))


def read(*answers):
    """Return the reading of one judge that gives these answers one after the other."""
    left = list(answers)

    async def ask(question):
        return left.pop(0)

    config = SageConfig(longest_wait_s=0.001)
    return asyncio.run(read_customer({"first": ask}, AIRLINE, trace(), config))


def test_invalid_entries_of_an_answer_are_skipped():
    found = read(answer(*WHOLE, (2, "IsInfoComplete", "Perhaps"), (0, "UserEmotion", "Normal"), (1, "Mood", "Normal")))
    assert found.votes[0].shown == WHOLE
    assert TypeAdapter(CustomerReading).validate_json(json.dumps(asdict(found))) == found


def test_entry_whose_field_is_no_text_is_skipped():
    assert read(answer(*WHOLE, (1, ["UserEmotion"], "Normal"), (1, {}, "Normal"))).votes[0].shown == WHOLE


def test_two_values_of_a_field_in_one_message_are_none():
    found = read(answer(*OPENING, CODE, (2, "IsInfoComplete", "Incomplete"), PAPER))
    assert found.votes[0].shown == (*OPENING, PAPER)


def test_unparsable_answer_is_asked_again_and_a_missing_one_decides_nothing():
    assert read(Answer(text="no idea"), answer(*WHOLE)).votes[0].shown == WHOLE
    lost = read(*[Answer(failure="unavailable")] * 3)
    assert lost.is_open and lost.meanings(3) is None
    assert AUDITOR.audit(trace(), lost) == AUDITOR.audit(trace())


def test_question_has_numbered_messages_and_no_case():
    question = customer_question(AIRLINE, trace())
    system, user = (message["content"] for message in question.messages)
    assert "Customer, message 2: Sure: ABC123, Miller.\nAgent: " in user
    assert "has papers that are in order" in system
    assert not any(text in system + user for text in ("memberLevel = ", "TicketPrice", PLAN.persona))
