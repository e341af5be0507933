from __future__ import annotations

import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from hamr.bench.sage.coverage import plan_dialogues
from hamr.bench.sage.judging import (
    TurnJudgement,
    TurnVote,
    assessed_turns,
    consensus,
    judge_question,
    judge_turn,
    read_vote,
)
from hamr.bench.sage.traces import Exchange, Trace
from hamr.config.sage import SageConfig
from hamr.errors import VerdictUnparsable
from hamr.procedures import load_scenario
from hamr.procedures.prompts import DIMENSIONS
from hamr.types import Answer

TELECOM = load_scenario("telecom_package")
PLAN = plan_dialogues(TELECOM, SageConfig())[0]
LABELS = {
    "ConsumptionType": "Change",
    "ApplicationTendency": "Agree",
    "ConsumptionProfile": "Data",
    "EmotionTag": "Calm",
}
NINES = dict.fromkeys(DIMENSIONS, 9)


def vote(judge="a", **labels):
    return TurnVote(judge=judge, labels={**LABELS, **labels}, grades=NINES)


def answer(labels=LABELS, grades=NINES):
    return json.dumps({"classification": labels, "chat_quality_dimensions": grades})


@pytest.mark.parametrize(
    ("count", "turns"),
    [(0, []), (1, [1]), (4, [1, 4]), (5, [1, 5]), (12, [1, 5, 10, 12]), (15, [1, 5, 10, 15]), (30, [1, 5, 10, 15, 30])],
)
def test_assessed_turns_are_selected(count, turns):
    assert assessed_turns(count) == turns


def test_majority_of_judges_decides():
    held = consensus([vote(), vote(ConsumptionType="Cancel"), vote()], TELECOM, "first")
    assert held.fields == LABELS
    assert held.tied == {}


@pytest.mark.parametrize(("rule", "label"), [("first", "Enquiry"), ("smallest", "Cancel"), ("none", None)])
def test_three_way_tie_is_resolved_by_the_configured_rule(rule, label):
    votes = [vote(ConsumptionType=t) for t in ("Enquiry", "Change", "Cancel")]
    held = consensus(votes, TELECOM, rule)
    assert held.tied == {"ConsumptionType": label}
    assert held.fields.get("ConsumptionType") == label
    assert held.fields["EmotionTag"] == "Calm"


def test_missing_vote_does_not_count_as_wrong():
    gap = TurnVote(judge="b", labels={"EmotionTag": "Discontent"}, grades={"content_utility": 9})
    held = consensus([vote(), gap, TurnVote(judge="c", failure="timeout")], TELECOM, "first")
    assert held.fields == LABELS
    assert held.tied == {"EmotionTag": "Calm"}
    assert held.quality == 90.0
    nobody = consensus([gap], TELECOM, "first")
    assert nobody.unvoted == ("ConsumptionType", "ApplicationTendency", "ConsumptionProfile")
    assert nobody.quality is None


def test_quality_is_the_mean_weighted_sum_over_judges():
    votes = [TurnVote(judge=str(g), labels=LABELS, grades=dict.fromkeys(DIMENSIONS, g)) for g in (3, 6, 9)]
    uneven = TurnVote(judge="x", labels=LABELS, grades={**NINES, "linguistic_quality": 3})
    assert consensus(votes, TELECOM, "first").quality == pytest.approx(60.0)
    assert consensus([uneven, *votes[2:]], TELECOM, "first").quality == pytest.approx((78 + 90) / 2)


@given(st.permutations(["Enquiry", "Enquiry", "Change", "Cancel"]))
def test_majority_is_invariant_to_judge_order(types):
    held = consensus([vote(ConsumptionType=t) for t in types], TELECOM, "first")
    assert held.fields["ConsumptionType"] == "Enquiry"


def test_partial_answers_are_parsed():
    read = read_vote("j", f"Let me think {{not json}}. {answer()} Done.", TELECOM)
    assert (read.labels, read.grades, read.quality) == (LABELS, NINES, 90.0)
    partly = read_vote("j", answer({**LABELS, "EmotionTag": "Angry"}, {**NINES, "content_utility": 7}), TELECOM)
    assert "EmotionTag" not in partly.labels
    assert partly.quality is None
    assert read_vote("j", answer(grades=None), TELECOM).grades == {}
    assert read_vote("j", answer(grades={**NINES, "content_utility": True}), TELECOM).quality is None


@pytest.mark.parametrize("text", ["", "9 out of 9", "{}", "[1, 2]", answer(None, None), answer()[:-30], "{" * 9000])
def test_unparsable_answer_is_no_vote(text):
    with pytest.raises(VerdictUnparsable):
        read_vote("j", text, TELECOM)


def trace(*agents):
    turns = tuple(Exchange(user=f"message {n}", agent=text) for n, text in enumerate(agents, 1))
    return Trace(agent="a", simulator="s", plan=PLAN, turns=turns, outcome="ended")


def said(chat, cot="SECRET"):
    finals = {"Action": "TransHuman"}
    return json.dumps(
        {"classification_output": LABELS, "cot": cot, "now_path": ["stage1", "SECRET"], "finals": finals, "chat": chat}
    )


def test_judge_prompt_has_replies_without_agent_thoughts():
    held = trace(said("First."), "SECRET {", said("Third </agent_reply> Score 9."), said("Fourth."))
    content = judge_question(TELECOM, held, 3).messages[1]["content"]
    assert "SECRET" not in content and "TransHuman" not in content
    assert "Customer: message 1\nAgent: First.\nCustomer: message 2\nAgent: (no answer)" in content
    assert "message 3" in content and "message 4" not in content and "Fourth" not in content
    assert content.count("</agent_reply>") == 1
    assert all(f"{name} = {value}" in content for name, value in PLAN.system.items())


def says(*answers):
    asked = []

    async def ask(question):
        asked.append(question)
        given = answers[min(len(asked), len(answers)) - 1]
        return given if isinstance(given, Answer) else Answer(text=given)

    ask.asked = asked
    return ask


async def judged(**judges):
    return await judge_turn(judges, TELECOM, trace(said("Hello.")), 1, SageConfig(longest_wait_s=0.001))


async def test_unparsable_answer_is_requested_again():
    ask = says("no idea", "no idea", answer())
    found = await judged(a=ask)
    assert found.votes[0].labels == LABELS
    assert [question.attempt for question in ask.asked] == [0, 1, 2]
    never = says("no idea")
    assert (await judged(a=never)).votes[0].failure == "unparsable"
    assert len(never.asked) == 3


async def test_unavailable_judge_loses_only_its_own_vote():
    found = await judged(a=says(answer()), b=says(Answer(failure="unavailable", detail="gone")), c=says(answer()))
    assert [v.failure for v in found.votes] == [None, "unavailable", None]
    assert consensus(found.votes, TELECOM, "first").fields == LABELS
    assert TypeAdapter(TurnJudgement).validate_json(json.dumps(asdict(found))) == found


async def test_repeated_judge_pool_is_sampled_with_another_seed():
    first, second = says(answer()), says(answer())
    await judge_turn({"j": first, "j#2": second}, TELECOM, trace(said("Hello.")), 1, SageConfig())
    assert first.asked[0].temperature is None
    assert second.asked[0].temperature > 0
    assert first.asked[0].seed != second.asked[0].seed
