"""System prompts of the agent under test, the simulated customer and the judges, rendered from the scenario (SAGE
B.3.2).

The fixed texts are in `prompts/sage_{service,user,wording,judge,policy,customer,phrases}.<language>.yaml`.
Scenario-specific texts are in the scenario file only. The prompts do not contain the dialogue: callers add it as
untrusted text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache

from hamr.errors import BadInput, did_you_mean
from hamr.procedures.graph import Scenario
from hamr.procedures.procedure import plain, sop_text
from hamr.procedures.rules import stage_name
from hamr.procedures.schema import Fact, Value, Variable
from hamr.procedures.templates import Phrases, TextPrompt, phrases_in

END_MARK = "[END]"
"""Mark that the simulated customer writes after the last message."""
CHAT_WORDS = 40
"""Maximum length of `chat`, in words. A Chinese character counts as one."""

CLASSIFICATION_OUTPUT, COT, NOW_PATH, FINALS, CHAT = "classification_output", "cot", "now_path", "finals", "chat"
"""Keys of the agent's answer, one JSON object with exactly these keys (Eq. 2)."""
ACTION = "Action"
"""The only key of `finals`."""

CLASSIFICATION, QUALITY = "classification", "chat_quality_dimensions"
JUDGE_REASONS = ("classification_reasoning", "chat_quality_reasoning")
"""Keys of the judge's answer, one JSON object with exactly these keys."""
DIMENSIONS: Mapping[str, int] = {
    "linguistic_quality": 20,
    "anthropomorphism_emotion": 25,
    "content_utility": 25,
    "user_satisfaction": 15,
    "instruction_compliance": 15,
}
"""Five dimensions of chat quality with their weights in percent."""
GRADES = (3, 6, 9)


def prompt_ids(language: str) -> dict[str, str]:
    """Return name, version and digest of every template used in this language, for the records."""
    phrases = phrases_in(language).id
    roles = ("service", "user", "judge", "policy", "customer")
    return {**{role: TextPrompt.load(f"sage_{role}.{language}").id for role in roles}, "phrases": phrases}


def service_prompt(scenario: Scenario, system: Mapping[str, Value], *, language: str) -> str:
    """Return the system prompt of the agent under test: fields, procedure, actions, system facts and answer format.

    `system` holds the system variables and the visible facts of the ticket. It is empty if the ticket of a sample has
    them.
    """
    words = phrases_in(language)
    variables = {
        "desk": _desk(scenario, words, language),
        "fields": _fields(scenario, words, language),
        "system": _known_facts(scenario, system, words, language),
        "catalogue": _catalogue(scenario, words, language),
        "procedure": sop_text(scenario, language=language),
        "actions": _actions(scenario, words, language),
        "answer": _service_answer(scenario, words),
    }
    return TextPrompt.load(f"sage_service.{language}").render(variables)


def user_prompt(
    scenario: Scenario,
    *,
    intent: str,
    persona: str,
    level: str,
    fields: Mapping[str, Value],
    system: Mapping[str, Value],
    language: str,
) -> str:
    """Return the system prompt of the simulated customer: persona, intent, difficulty, and the values of `fields` to
    show.

    Facts that the system hides from customers are omitted.

    Raises:
        BadInput: The scenario does not have the intent, persona or level, or the intent excludes the fields.
    """
    words, file = phrases_in(language), scenario.file
    for key, name, known in (
        ("intent", intent, file.intents),
        ("persona", persona, file.personas),
        ("level", level, file.adversity),
    ):
        if name not in known:
            raise BadInput(f"{scenario.name}.{key}", name, f"{did_you_mean(name, known)}known: {list(known)}")
    if not file.intents[intent].allows(fields):
        raise BadInput(f"{scenario.name}.intent", intent, f"pins {dict(file.intents[intent].pins)}; the fields differ")
    shown = {name: value for name, value in system.items() if not _entry(scenario, name).hidden}
    variables = {
        "desk": _desk(scenario, words, language),
        "person": file.personas[persona].description.of(language),
        "wish": file.intents[intent].description.of(language),
        "difficulty": words.say("difficulty", level=level, description=file.adversity[level].of(language)),
        "behaviour": _behaviour(scenario, fields, system, words, language),
        "known": _known_facts(scenario, shown, words, language),
        "end_mark": END_MARK,
    }
    return TextPrompt.load(f"sage_user.{language}").render(variables)


@lru_cache(maxsize=256)
def wording_prompt(scenario: Scenario, *, persona: str, level: str, language: str) -> str:
    """Return the system prompt of a model that words a customer's messages. An empty `level` is none."""
    words, file = phrases_in(language), scenario.file
    variables = {
        "desk": _desk(scenario, words, language),
        "person": file.personas[persona].description.of(language),
        "difficulty": file.adversity[level].of(language) if level else "",
    }
    return TextPrompt.load(f"sage_wording.{language}").render(variables)


@lru_cache(maxsize=64)
def judge_prompt(scenario: Scenario, *, language: str) -> str:
    """Return the system prompt of a judge, who classifies the fields at one turn and grades the reply to it."""
    words = phrases_in(language)
    variables = {
        "desk": _desk(scenario, words, language),
        "fields": _fields(scenario, words, language),
        "procedure": sop_text(scenario, language=language),
        "actions": _actions(scenario, words, language),
        "answer": _judge_answer(scenario, words),
    }
    return TextPrompt.load(f"sage_judge.{language}").render(variables)


def customer_reading_prompt(scenario: Scenario, *, language: str) -> str:
    """Return the system prompt of a judge that reads off a customer's messages which fields they show."""
    words = phrases_in(language)
    variables = {"desk": _desk(scenario, words, language), "fields": _fields(scenario, words, language)}
    return TextPrompt.load(f"sage_customer.{language}").render(variables)


def service_answer(
    scenario: Scenario, fields: Mapping[str, Value], system: Mapping[str, Value], chat: str, *, language: str
) -> str:
    """Return the correct answer after the dialogue has shown `fields`: one JSON object as `service_prompt` specifies.

    Fields that are not shown take the filler of the scenario, else the first option of the field. Path and action
    follow from all of them.
    """
    file, words = scenario.file, phrases_in(language)
    first = {name: (field.options or ())[0] for name, field in file.fields.items()}
    complete = {**first, **file.coverage.filled, **fields}
    walk = scenario.walk(complete, system)
    known = {**complete, **system}
    reasons = [words.say("equals", variable=name, values=plain(known[name])) for name in walk.read]
    return json.dumps(
        {
            CLASSIFICATION_OUTPUT: {name: complete[name] for name in file.fields},
            COT: words.say("reasons", reasons="; ".join(reasons), action=walk.action),
            NOW_PATH: list(walk.path),
            FINALS: {ACTION: walk.action},
            CHAT: chat,
        },
        ensure_ascii=False,
    )


def policy_text(scenario: Scenario, *, language: str) -> str:
    """Return the policy of a generated sample, for an agent that answers with a reply or a tool call
    (`Action.tool`)."""
    words = phrases_in(language)
    lines = []
    for name, action in scenario.file.actions.items():
        kind = "by_reply" if action.reply else "by_call_amount" if action.amount else "by_call"
        values = {"name": name, "tool": action.tool(name), "amount": action.amount, "option": action.option}
        kind = "by_call_option" if action.option else kind
        lines.append(words.say(kind, **values, description=action.description.of(language)))
    variables = {
        "desk": _desk(scenario, words, language),
        "fields": _fields(scenario, words, language),
        "catalogue": _catalogue(scenario, words, language),
        "procedure": sop_text(scenario, language=language),
        "actions": "\n".join(lines),
    }
    return TextPrompt.load(f"sage_policy.{language}").render(variables)


# --- other parts -------------------------------------------------------------------------------


def _desk(scenario: Scenario, words: Phrases, language: str) -> str:
    file = scenario.file
    return words.say("desk", title=file.title.of(language), description=file.description.of(language))


def _fields(scenario: Scenario, words: Phrases, language: str) -> str:
    lines = []
    for name, field in scenario.file.fields.items():
        lines.append(words.say("field", name=name, type=field.type, description=field.description.of(language)))
        for option, meaning in (field.meanings or {}).items():
            lines.append(words.say("option", value=plain(option), meaning=meaning.of(language)))
    return "\n".join(lines)


def _known_facts(scenario: Scenario, system: Mapping[str, Value], words: Phrases, language: str) -> str:
    lines = []
    for name, value in system.items():
        entry = _entry(scenario, name)
        values = {"name": name, "value": plain(value), "description": entry.description.of(language)}
        meanings = entry.meanings if isinstance(entry, Variable) else None
        if meanings:
            lines.append(words.say("variable_meaning", **values, meaning=meanings[value].of(language)))
        else:
            lines.append(words.say("variable", **values))
    return "\n".join(lines)


def _entry(scenario: Scenario, name: str) -> Variable | Fact:
    known: dict[str, Variable | Fact] = {**scenario.file.system, **scenario.file.facts}
    if name not in known:
        raise BadInput(
            f"{scenario.name}.system.{name}", name, f"no such variable; {did_you_mean(name, known)}known: {list(known)}"
        )
    return known[name]


def _catalogue(scenario: Scenario, words: Phrases, language: str) -> str:
    items = scenario.file.catalogue.items()
    return "\n".join(words.say("offer", name=name, description=text.of(language)) for name, text in items)


def _actions(scenario: Scenario, words: Phrases, language: str) -> str:
    lines = []
    for name, action in scenario.file.actions.items():
        kind = "action" if action.amount is None else "action_amount"
        lines.append(words.say(kind, name=name, description=action.description.of(language), amount=action.amount))
    return "\n".join(lines)


def _behaviour(
    scenario: Scenario, fields: Mapping[str, Value], system: Mapping[str, Value], words: Phrases, language: str
) -> str:
    """Return the facts that the customer shows: the fields of its path. Fillers of other fields may contradict them."""
    lines = {}
    for name, value in fields.items():
        problem = scenario.file.fields[name].problem(value) if name in scenario.file.fields else "no such field"
        if problem:
            raise BadInput(f"{scenario.name}.fields.{name}", value, problem)
        meanings = scenario.file.fields[name].meanings
        assert meanings is not None
        lines[name] = words.say("behaviour", meaning=meanings[value].of(language))
    read = scenario.walk(fields, system).read
    return "\n".join(line for name, line in lines.items() if name in read)


# --- answer formats ----------------------------------------------------------------------------


def _service_answer(scenario: Scenario, words: Phrases) -> str:
    start = stage_name(scenario.file.start)
    return _form(
        {
            CLASSIFICATION_OUTPUT: _choices(scenario),
            COT: _quote(words.say(COT)),
            NOW_PATH: f'["{start}", ...]',
            FINALS: f'{{"{ACTION}": {_either(list(scenario.file.actions))}}}',
            CHAT: _quote(words.say(CHAT)),
        }
    )


def _judge_answer(scenario: Scenario, words: Phrases) -> str:
    grades = ", ".join(f'"{dimension}": {_either(GRADES)}' for dimension in DIMENSIONS)
    reasons = {key: _quote(words.say(key)) for key in JUDGE_REASONS}
    return _form({CLASSIFICATION: _choices(scenario), QUALITY: f"{{{grades}}}", **reasons})


def _form(parts: Mapping[str, str]) -> str:
    body = ",\n".join(f'  "{key}": {value}' for key, value in parts.items())
    return f"{{\n{body}\n}}"


def _choices(scenario: Scenario) -> str:
    parts = (f'"{name}": {_either(field.options or ())}' for name, field in scenario.file.fields.items())
    return f"{{{', '.join(parts)}}}"


def _either(values: Sequence[Value]) -> str:
    return " | ".join(json.dumps(value, ensure_ascii=False) for value in values)


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
