"""Text of a scenario's graph, for agents and judges."""

from __future__ import annotations

import json

from hamr.procedures.graph import Scenario
from hamr.procedures.rules import stage_name
from hamr.procedures.schema import Condition, Formula, ProcedureStage, Value
from hamr.procedures.templates import Phrases, phrases_in


def sop_text(scenario: Scenario, *, language: str) -> str:
    """Return the procedure as text: every stage with its successors, and every amount with its formula."""
    words = phrases_in(language)
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
