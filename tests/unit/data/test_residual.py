"""The scan for what may still be private, found names, and answers to a question."""

from __future__ import annotations

from collections import Counter

import pytest

from hamr.data.hiding import hide_in
from hamr.data.residual import residual_risks
from hamr.data.trajectories import Trajectory, Turn


def _ticket(*texts: str, identity: str = "T1") -> Trajectory:
    roles = ("customer", "agent")
    turns = tuple(Turn(role=roles[i % 2], content=text) for i, text in enumerate(texts))
    return Trajectory(id=identity, ticket={}, policy="", tools=(), turns=turns)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Hello, my name is Mia.", "names after an introduction or title"),
        ("Frau Weber hat angerufen", "names after an introduction or title"),
        ("你好，我叫张伟", "names after an introduction or title"),
        ("the card ending in 4242", "last digits of a card or account"),
        ("尾号4242的卡", "last digits of a card or account"),
        ("near 10115 somewhere", "numbers of five or six digits"),
        ("it says QX7-4410Z", "codes of letters and digits"),
        ("on 12/03/1985 already", "dates of 1920 to 2012"),
        ("follow @mia_bakes", "handles"),
        ("write to mia@work", "texts with @, such as an e-mail address"),
        ("my password is correcthorse", "passwords without a digit"),
        ("密码是天王盖地虎", "passwords without a digit"),
        ("one three eight double five two nine", "numbers in words"),
        ("一三八一二三四五六七八", "numbers in words"),
    ],
)
def test_scan_names_kind_and_ticket(text: str, kind: str) -> None:
    found = residual_risks([_ticket("Hi", "Hello", identity="T0"), _ticket(text, "I see.")])
    assert (found[kind].hits, found[kind].tickets, found[kind].first) == (1, 1, "T1")


def test_ordinary_ticket_has_no_risk() -> None:
    told = (
        "The 20 GB plan costs $29.90 from 12.05.2026, does it?",
        "Yes, and 1,000 points. Is that fine?",
        "My password is wrong.",
    )
    assert residual_risks([_ticket(*told)]) == {}


def test_private_id_of_a_ticket_is_a_risk() -> None:
    assert residual_risks([_ticket("Hi", "Hello", identity="mia@example.com")])["ids of tickets"].hits == 1


def test_answer_is_hidden_by_the_label_of_the_question() -> None:
    told = ("Hi", "What is your order number?", "48213", "And your date of birth, please?", "12/03/1985")
    (hidden,) = hide_in([_ticket(*told)], Counter())
    assert [turn.content for turn in hidden.turns[2::2]] == ["[ACCOUNT_1]", "[BIRTHDATE_1]"]


def test_number_after_a_statement_is_no_answer() -> None:
    (kept,) = hide_in([_ticket("Hi", "I have your order number.", "48213 people wait")], Counter())
    assert kept.turns[2].content == "48213 people wait"


def test_found_names_are_hidden_everywhere_in_the_ticket() -> None:
    hidden: Counter[str] = Counter()

    def find(text: str) -> list[str]:
        return ["Mia Li"] if "I am Mia Li" in text else []

    (made,) = hide_in([_ticket("I am Mia Li", "Hello Mia Li, mia@example.com?")], hidden, find)
    assert [turn.content for turn in made.turns] == ["I am [NAME_1]", "Hello [NAME_1], [EMAIL_1]?"]
    assert hidden == {"name": 1, "email": 1}
