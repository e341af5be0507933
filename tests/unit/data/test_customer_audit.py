from __future__ import annotations

import dataclasses

import pytest

from hamr.data.customer_audit import CustomerCase, WordingReader, audit_customer, other_language, out_of_role
from hamr.procedures import load_scenario
from hamr.procedures.words import load_words

AIRLINE = load_scenario("airline_refund")
READER = WordingReader(AIRLINE, load_words(AIRLINE, "en"))
CASE = CustomerCase(
    fields={
        "CoreDemand": "RescheduleOrRefund",
        "ChangeReason": "Personal",
        "UserEmotion": "Normal",
        "DocumentValidity": "Valid",
        "IsInfoComplete": "Complete",
    },
    system={"memberLevel": "VIP", "hasInsurance": False, "Flight": "HM204", "TicketPrice": 300, "HoursToDeparture": 12},
    intent="change_of_plans",
    language="en",
)
OPENING = "Morning, airport lounge. I decided to stay, so HM204 goes back. Whenever you get to it."
CODE, PAPER = "PV9C3 for Mbeki.", "An official note, dated yesterday."


def audit(*messages, case=CASE, reader=READER, ending="left", action="RescheduleOrRefund"):
    return audit_customer(AIRLINE, case, messages, reader, ending=ending, action=action)


def test_faultless_customer_shows_its_whole_path():
    found = audit(OPENING, CODE, PAPER)
    assert found.faults == ()
    assert (found.disclosed, found.goal, found.understood) == (1.0, True, 1.0)
    assert found.words == (16, 3, 5)


@pytest.mark.parametrize(
    ("messages", "kind", "at", "detail"),
    [
        ((OPENING, "I deleted the confirmation.", PAPER), "said_more", 1, "IsInfoComplete=Incomplete"),
        ((OPENING, f"{CODE} Worst carrier ever.", PAPER), "said_more", 1, "UserEmotion=Dissatisfied"),
        ((OPENING, CODE, PAPER, "Is HM204 on time?"), "other_goal", 3, "CoreDemand=Inqury"),
        ((OPENING, "Hello hello.", PAPER), "said_less", 3, "never showed IsInfoComplete"),
        ((OPENING, PAPER), "said_less", 2, "never showed IsInfoComplete"),
        ((OPENING, CODE), "ended_early", 2, "left before DocumentValidity"),
        ((OPENING, "As an AI I have no code.", PAPER), "left_role", 1, "As an AI"),
        ((OPENING, CODE, "这是昨天的正式证明。"), "other_language", 2, "这是昨天的正式证明。"),
    ],
)
def test_each_fault_is_typed_and_located(messages, kind, at, detail):
    found = audit(*messages, action="Supplementary")
    [fault] = found.faults
    assert (fault.kind, fault.message) == (kind, at)
    assert fault.detail.startswith(detail)


def test_customer_may_leave_once_the_agent_took_the_right_action():
    assert audit(OPENING, CODE, action="RescheduleOrRefund").faults == ()
    assert audit(OPENING, CODE, action="Reject").kinds == ("ended_early",)


def test_dialogue_cut_off_by_something_else_has_no_omission():
    assert audit(OPENING, ending="cut", action="").faults == ()
    assert audit(OPENING, ending="limit", action="").kinds == ("said_less",)


def test_omissions_are_not_decided_while_a_sentence_is_not_understood():
    found = audit(OPENING, "Well, let me think about that for a moment.", action="")
    assert found.faults == ()
    assert (found.disclosed, found.goal) == (None, None)
    assert 0 < found.understood < 1


def test_unknown_sentences_next_to_a_contradiction_do_not_hide_it():
    assert audit(OPENING, "Hm, well. I deleted the confirmation.").kinds == ("said_more",)


def test_ambiguous_sentence_is_read_in_favour_of_the_customer():
    class Both:
        opens_with = frozenset()

        def read(self, messages, system):
            [first, *_] = READER.read([OPENING], system)
            doubt = ({"DocumentValidity": "Invalid"}, {"IsInfoComplete": "Complete", "DocumentValidity": "Valid"})
            return [first, dataclasses.replace(first, sentences=(doubt,))]

    assert audit(OPENING, "whatever it means", reader=Both()).faults == ()


def test_scenario_without_wordings_still_has_role_and_language():
    reader = WordingReader(AIRLINE, None)
    assert audit(OPENING, "I'm simulating a customer.", reader=reader).kinds == ("left_role",)
    assert audit(OPENING, reader=reader).understood == 0.0


@pytest.mark.parametrize(
    ("text", "caught"),
    [
        ("I'm an AI language model", True),
        ("作为一个人工智能，我没有套餐", True),
        ('{"classification_output": {}}', True),
        ("Agent: how may I help you?", True),
        ("   ", True),
        ("I paid as agreed, my agent said so", False),
        ("我想退订套餐", False),
        ("Is this an aid package?", False),
        ("I read the instructions on your page", False),
    ],
)
def test_out_of_role_messages_are_detected(text, caught):
    assert (out_of_role(text) is not None) == caught


@pytest.mark.parametrize(
    ("text", "language", "caught"),
    [
        ("Мне нужен возврат", "en", True),
        ("Mein Flug HM204 fällt aus", "en", False),  # by script only
        ("I want my money back now", "zh", True),
        ("OK", "zh", False),
        ("我的App显示Error", "zh", False),
        ("12345", "en", False),
    ],
)
def test_other_language_is_detected_by_script(text, language, caught):
    assert (other_language(text, language) is not None) == caught
