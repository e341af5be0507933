"""Scripted agents, customers and judges without a model: the ends of the scale, and the cost of single flaws.

They know the customer's plan, which no model does. `scripted:<name>` can be used in place of a pool's name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from random import Random
from typing import Any

from hamr.bench.sage.traces import REPLACEMENT, DialoguePlan
from hamr.config.sage import SCRIPTED
from hamr.errors import BadInput, did_you_mean
from hamr.procedures.acts import call_of
from hamr.procedures.graph import Scenario
from hamr.procedures.prompts import (
    ACTION,
    CHAT,
    CLASSIFICATION,
    CLASSIFICATION_OUTPUT,
    COT,
    DIMENSIONS,
    END_MARK,
    FINALS,
    NOW_PATH,
    QUALITY,
)
from hamr.procedures.rules import Walk
from hamr.procedures.schema import Value
from hamr.procedures.words import load_words
from hamr.protocols import Ask
from hamr.types import Answer, Question, RequestedCall

TALK = 10
"""Number of messages of a scripted customer, so that turns 1, 5 and 10 are judged."""

Say = Callable[[Scenario, DialoguePlan, Question], str]


def scripted_pool(kind: str, name: str, scenarios: Mapping[str, Scenario], plans: Mapping[str, DialoguePlan]) -> Ask:
    """Return a function that answers as the script `name` (without the prefix) of `kind`: agent, simulator or judges.

    A question's affinity names the dialogue. Raises BadInput for an unknown name.
    """
    known = KINDS[kind]
    if name not in known:
        scripts = [SCRIPTED + script for script in known]
        hint = did_you_mean(SCRIPTED + name, scripts)
        raise BadInput(kind, SCRIPTED + name, f"no such script; {hint}there are: {', '.join(scripts)}")
    say = known[name]

    async def ask(question: Question) -> Answer:
        plan = _plan_of(question.affinity.removesuffix("/user"), plans)
        scenario = scenarios[plan.scenario]
        text = say(scenario, plan, question)
        if kind == "agent" and question.schema is None:  # only questions for the JSON of the contract have its schema
            return _act(scenario, plan, question, text)
        return Answer(text=text)

    return ask


def _plan_of(name: str, plans: Mapping[str, DialoguePlan]) -> DialoguePlan:
    """Return the customer of a dialogue, or the one that replaces it."""
    if name in plans:
        return plans[name]
    original, _, number = name.rpartition(REPLACEMENT)
    return plans[original].replacement(int(number))


def _act(scenario: Scenario, plan: DialoguePlan, question: Question, output: str) -> Answer:
    """Return an agent's output as the answers of one with tools: first the call of its action, then its text."""
    if not output.startswith("{"):
        return Answer(text=output)
    written = json.loads(output)
    name = written[FINALS][ACTION]
    action, last = scenario.file.actions[name], question.messages[-1]
    if action.reply or last["role"] == "tool" or str(last["content"]).startswith("<tool_result>"):
        return Answer(text=written[CHAT])
    amount = 0
    with suppress(BadInput):  # another case's action may have no amount in this one
        amount = scenario.amount(action.amount, plan.system) if action.amount else 0
    call = call_of(name, action, {"amount": amount})
    return Answer(text="", tool_calls=(RequestedCall(name=call.name, arguments=json.dumps(dict(call.parameters))),))


# --- agents ------------------------------------------------------------------------------------


def perfect(scenario: Scenario, plan: DialoguePlan, question: Question) -> str:
    """Right labels, right path, right action."""
    return _output(plan, plan.fields, scenario.walk(plan.fields, plan.system))


def wrong_branch(scenario: Scenario, plan: DialoguePlan, question: Question) -> str:
    """Mislabels the first deciding field whose wrong label leads to another path, and follows the procedure from
    there."""
    right = scenario.walk(plan.fields, plan.system)
    for name in (name for name in right.read if name in scenario.file.fields):
        for option in scenario.file.fields[name].options or ():
            other = {**plan.fields, name: option}
            walked = scenario.walk(other, plan.system)
            if walked.nodes != right.nodes:
                return _output(plan, other, walked)
    return _output(plan, plan.fields, right)


def wrong_action(scenario: Scenario, plan: DialoguePlan, question: Question) -> str:
    """Right labels and right path, but at its end the scenario's next other action, of another group."""
    walk = scenario.walk(plan.fields, plan.system)
    assert walk.action is not None
    actions = scenario.file.actions
    group = actions[walk.action].group
    others = [name for name in actions if name != walk.action and (group is None or actions[name].group != group)]
    return _output(plan, plan.fields, walk, action=others[0])


def chatty(scenario: Scenario, plan: DialoguePlan, question: Question) -> str:
    """Friendly words without JSON."""
    return _WORDS[plan.language]


def _always(text: str) -> Say:
    """Return a script that always says this text."""
    return lambda scenario, plan, question: text


_WORDS = {
    "en": "Of course, I will gladly look into that for you right away.",
    "zh": "好的，我马上为您查询处理。",
}


def _output(plan: DialoguePlan, fields: Mapping[str, Value], walk: Walk, action: str | None = None) -> str:
    chosen = action or walk.action
    assert chosen is not None
    return json.dumps(
        {
            CLASSIFICATION_OUTPUT: dict(fields),
            COT: f"{' '.join(walk.read)} decide.",
            NOW_PATH: list(walk.path),
            FINALS: {ACTION: chosen},
            CHAT: _WORDS[plan.language],
        },
        ensure_ascii=False,
    )


# --- customers and judges ----------------------------------------------------------------------


def patient(scenario: Scenario, plan: DialoguePlan, question: Question) -> str:
    """States its fields `TALK` times, then leaves."""
    sent = sum(message["role"] == "assistant" for message in question.messages)
    if sent >= TALK:
        return f"{_THANKS[plan.language]} {END_MARK}"
    if plan.language == "zh":
        known = ((scenario.file.fields[name].meanings or {}).get(value) for name, value in plan.fields.items())
        return f"再说一次我的情况（{sent + 1}）：" + "，".join(meaning.zh for meaning in known if meaning is not None)
    return f"My case, once more ({sent + 1}): " + ", ".join(f"{name} {value}" for name, value in plan.fields.items())


_THANKS = {"en": "Thank you, that is all.", "zh": "谢谢，没有别的了。"}


def worded_customer(scenario: Scenario, plan: DialoguePlan, question: Question) -> str:
    """Speaks like the customers of `hamr data sage`, in sentences of the test split, which no training data contains.

    States one field after the other, as the procedure needs them, then leaves. Its adversarial level has wordings too.
    """
    sent = sum(message["role"] == "assistant" for message in question.messages)
    turns = plan.messages(scenario, _words(scenario, plan.language), "test", Random(plan.seed_of("worded")))
    return next((text for text, _, _ in islice(turns, sent, None)), END_MARK)


_words = lru_cache(maxsize=64)(load_words)


def _right_labels(grade: int) -> Say:
    """Return a judge with the plan's labels and this grade in every dimension."""
    return lambda scenario, plan, question: _vote(plan.fields, grade)


def contrary(scenario: Scenario, plan: DialoguePlan, question: Question) -> str:
    """A label other than the plan's for every field, and medium grades."""
    fields: dict[str, Any] = {}
    for name, value in plan.fields.items():
        fields[name] = next(o for o in scenario.file.fields[name].options or () if o is not value and o != value)
    return _vote(fields, 6)


def _vote(fields: Mapping[str, Any], grade: int) -> str:
    return json.dumps({CLASSIFICATION: dict(fields), QUALITY: dict.fromkeys(DIMENSIONS, grade)}, ensure_ascii=False)


KINDS: Mapping[str, Mapping[str, Say]] = {
    "agent": {
        "perfect": perfect,
        "wrong_branch": wrong_branch,
        "wrong_action": wrong_action,
        "chatty": chatty,
        "silent": _always(""),
    },
    "simulator": {
        "patient": patient,
        "worded": worded_customer,
        "hasty": _always(END_MARK),  # leaves before the dialogue starts
        "machine": _always("As an AI language model I have no phone plan."),  # breaks character
    },
    "judges": {"gold": _right_labels(9), "strict": _right_labels(3), "contrary": contrary},
}
