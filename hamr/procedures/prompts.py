"""System prompts of the agent under test, the simulated customer and the judges, rendered from the scenario (SAGE
B.3.2).

The fixed texts are in `prompts/sage_{service,user,wording,judge,policy,customer,phrases}.<language>.yaml`.
Scenario-specific texts are in the scenario file only. The prompts do not contain the dialogue: callers add it as
untrusted text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from pydantic import StrictStr

from hamr.errors import BadInput, did_you_mean
from hamr.procedures.graph import Scenario
from hamr.procedures.rules import stage_name
from hamr.procedures.schema import LANGUAGES, Condition, Fact, Formula, ProcedureStage, Value, Variable
from hamr.prompting.templates import PromptFile, TaggedText, fill_template

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


class TextPrompt(PromptFile):
    """A text with variables, each alone in a tag.

    >>> TextPrompt.load("sage_user.en").language
    'en'
    """

    text: TaggedText

    def render(self, variables: Mapping[str, str]) -> str:
        """Return the text with the variables. Raise DataError for a variable that is missing or not a text."""
        return fill_template(self.text, variables, self.name)


class Phrases(PromptFile):
    """Sentences by name."""

    phrases: dict[StrictStr, StrictStr]

    def say(self, phrase: str, **values: object) -> str:
        return self.phrases[phrase].format(**values)


def phrases_in(language: str) -> Phrases:
    """Return the shipped sentences of a language. Raise BadInput for an unknown language."""
    if language not in LANGUAGES:
        raise BadInput("language", language, f"known: {list(LANGUAGES)}")
    return Phrases.load(f"sage_phrases.{language}")


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
    parts = ("desk", "fields", "catalogue", "procedure", "actions")
    own = {"system": _known_facts(scenario, system, words, language), "answer": _service_answer(scenario, words)}
    return _render("sage_service", scenario, language, *parts, **own)


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
        BadInput: The scenario does not have the intent, persona, level or a variable, or the intent excludes the
            fields.
    """
    words, file, read = phrases_in(language), scenario.file, scenario.walk(fields, system).read
    for key, name, known in (
        ("intent", intent, file.intents),
        ("persona", persona, file.personas),
        ("level", level, file.adversity),
    ):
        if name not in known:
            raise BadInput(f"{scenario.name}.{key}", name, f"{did_you_mean(name, known)}known: {list(known)}")
    if not file.intents[intent].allows(fields):
        raise BadInput(f"{scenario.name}.intent", intent, f"pins {dict(file.intents[intent].pins)}; the fields differ")
    # Fillers of the fields that the path does not read may contradict the others.
    meanings = [(file.fields[name].meanings or {})[value] for name, value in fields.items() if name in read]
    shown = {name: value for name, value in system.items() if not _entry(scenario, name).hidden}
    return _render(
        "sage_user",
        scenario,
        language,
        "desk",
        person=file.personas[persona].description.of(language),
        wish=file.intents[intent].description.of(language),
        difficulty=words.say("difficulty", level=level, description=file.adversity[level].of(language)),
        behaviour="\n".join(words.say("behaviour", meaning=meaning.of(language)) for meaning in meanings),
        known=_known_facts(scenario, shown, words, language),
        end_mark=END_MARK,
    )


@lru_cache(maxsize=256)
def wording_prompt(scenario: Scenario, *, persona: str, level: str, language: str) -> str:
    """Return the system prompt of a model that words a customer's messages. An empty `level` is none."""
    person = scenario.file.personas[persona].description.of(language)
    difficulty = scenario.file.adversity[level].of(language) if level else ""
    return _render("sage_wording", scenario, language, "desk", person=person, difficulty=difficulty)


@lru_cache(maxsize=64)
def judge_prompt(scenario: Scenario, *, language: str) -> str:
    """Return the system prompt of a judge, who classifies the fields at one turn and grades the reply to it."""
    answer = _judge_answer(scenario, phrases_in(language))
    return _render("sage_judge", scenario, language, "desk", "fields", "procedure", "actions", answer=answer)


def customer_reading_prompt(scenario: Scenario, *, language: str) -> str:
    """Return the system prompt of a judge that reads off a customer's messages which fields they show."""
    return _render("sage_customer", scenario, language, "desk", "fields")


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
    parts = ("desk", "fields", "catalogue", "procedure")
    return _render("sage_policy", scenario, language, *parts, actions="\n".join(lines))


def sop_text(scenario: Scenario, *, language: str) -> str:
    """Return the procedure as text: every stage with its successors, and every amount with its formula."""
    return _procedure(scenario, phrases_in(language), language)


# --- parts of the scenario ---------------------------------------------------------------------


def _render(template: str, scenario: Scenario, language: str, *parts: str, **own: str) -> str:
    """Return the template in a language, with these parts of the scenario (`_PARTS`) and its own variables."""
    words = phrases_in(language)
    common = {part: _PARTS[part](scenario, words, language) for part in parts}
    return TextPrompt.load(f"{template}.{language}").render(common | own)


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
    return scenario.file.system.get(name) or scenario.file.facts[name]


def _catalogue(scenario: Scenario, words: Phrases, language: str) -> str:
    items = scenario.file.catalogue.items()
    return "\n".join(words.say("offer", name=name, description=text.of(language)) for name, text in items)


def _actions(scenario: Scenario, words: Phrases, language: str) -> str:
    lines = []
    for name, action in scenario.file.actions.items():
        kind = "action" if action.amount is None else "action_amount"
        lines.append(words.say(kind, name=name, description=action.description.of(language), amount=action.amount))
    return "\n".join(lines)


def _procedure(scenario: Scenario, words: Phrases, language: str) -> str:
    lines = [_stage(scenario, node, stage, words, language) for node, stage in scenario.file.stages.items()]
    sided = next((node for node in scenario.file.stages if "@" in node), None)
    if sided is not None:
        lines.append(words.say("sides", node=sided, name=stage_name(sided)))
    if scenario.file.formulas:
        lines.append(words.say("amounts"))
        lines += [_formula(name, formula, words, language) for name, formula in scenario.file.formulas.items()]
    return "\n".join(lines)


def _stage(scenario: Scenario, node: str, stage: ProcedureStage, words: Phrases, language: str) -> str:
    title = stage.title.of(language)
    if stage.next is not None:
        return words.say("go", stage=node, title=title, to=stage.next)
    assert stage.reads is not None
    kind = "reads_field" if stage.reads in scenario.file.fields else "reads_system"
    lines = [words.say(kind, stage=node, title=title, variable=stage.reads)]
    for branch in stage.branches:
        end = "to_action" if branch.to in scenario.file.actions else "to_stage"
        lines.append(words.say(end, when=_condition(stage.reads, branch, words), to=branch.to))
    return "\n".join(lines)


def _condition(variable: str, test: Condition, words: Phrases) -> str:
    if test.above is not None:
        return words.say("above", variable=variable, number=test.above)
    return words.say("equals", variable=variable, values=words.say("or").join(map(plain, test.values or ())))


def _formula(name: str, formula: Formula, words: Phrases, language: str) -> str:
    lines = [words.say("formula", name=name, description=formula.description.of(language))]
    for case in formula.cases:
        when = words.say("and").join(_condition(variable, test, words) for variable, test in case.when.items())
        kind = "formula_case" if when else "formula_rest" if len(formula.cases) > 1 else "formula_only"
        lines.append(words.say(kind, when=when, value=case.value.text))
    return "\n".join(lines)


def plain(value: Value) -> str:
    return json.dumps(value) if isinstance(value, bool) else str(value)


_PARTS: Mapping[str, Callable[[Scenario, Phrases, str], str]] = {
    "desk": _desk,
    "fields": _fields,
    "catalogue": _catalogue,
    "procedure": _procedure,
    "actions": _actions,
}


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
