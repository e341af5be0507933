"""Acts of a scenario's agent: the texts and actions of each, for the context of one decision point.

An act is an action of the scenario (`GoodBye`, `ChangeOrder`) or a question that leads to a field (`ask EmotionTag`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from hamr.errors import BadInput
from hamr.procedures import Scenario, load_scenario, scenario_names
from hamr.procedures.schema import ScenarioAction, Value
from hamr.procedures.words import ByValue, Relation, Split, Texts, Words, expansions, fitting, load_words, one_of
from hamr.types import Action, Reply, ServiceSample, ToolCall

ASK = "ask "


@dataclass(frozen=True, kw_only=True)
class Context:
    """Context of a text at a decision point: the split, the fields shown so far, and the values of the ticket."""

    split: Split
    shown: Mapping[str, Value]
    values: Mapping[str, Value]

    @classmethod
    def of(cls, sample: ServiceSample) -> Context:
        """Return the context of a generated sample."""
        meta = sample.meta
        return cls(split=meta["split"], shown=meta["fields"], values={**sample.ticket, **meta["system"]})


@dataclass(frozen=True, kw_only=True)
class SageActs:
    """All acts of one scenario in one language."""

    scenario: Scenario
    words: Words

    @classmethod
    def of(cls, sample: ServiceSample) -> SageActs | None:
        """Return the acts of the scenario that generated the sample, or None if it is not a shipped one."""
        meta = sample.meta
        if meta.get("scenario") not in _names() or not {"act", "split", "fields", "system", "language"} <= meta.keys():
            return None
        return _shipped_acts(meta["scenario"], meta["language"])

    def names(self, split: Split) -> tuple[str, ...]:
        """Return the names of all acts, questions first."""
        return (*(f"{ASK}{name}" for name in self.words.of(split).ask), *self.scenario.file.actions)

    def texts(self, act: str, context: Context) -> list[str]:
        """Return every reference text of the act. Empty if its wordings do not fit the context."""
        return list(self._fill(act, self._own_wordings(act, context), context))

    def right(self, act: str, context: Context) -> list[str]:
        """Return every right text of the act: those of its references and its further wordings."""
        return list(dict.fromkeys((*self.texts(act, context), *self.related_wordings(act, context, "reworded"))))

    def related_wordings(self, act: str, context: Context, relation: Relation) -> list[str]:
        """Return further right wordings of the act, partial ones or opposites. Empty if there are none."""
        known: Mapping[str, ByValue] = getattr(self.words.of(context.split), relation)
        return list(self._fill(act, fitting(known.get(act.removeprefix(ASK), ()), context.shown), context))

    def actions(self, act: str, context: Context, rng: Random) -> list[Action]:
        """Return the gold actions of the act: one tool call, or a reply in each of its wordings. Empty if the act is
        impossible in the context."""
        action, values = self.scenario.file.actions.get(act), self.values(act, context)
        if values is None:
            return []
        if action is not None and not action.reply:
            return [call_of(act, action, values)]
        return [Reply(content=one_of((text,), values, rng)) for text in self._own_wordings(act, context)]

    def _own_wordings(self, act: str, context: Context) -> Texts:
        wordings = self.words.of(context.split)
        if act.startswith(ASK):
            return fitting(wordings.ask[act.removeprefix(ASK)], context.shown)
        return wordings.say[act]

    def complete(self, context: Context, rng: Random) -> Context:
        """Return the context with every field shown and no amount of zero, so that each act has a text."""
        file = self.scenario.file
        shown = {name: rng.choice(field.options or ()) for name, field in file.fields.items()} | dict(context.shown)
        return replace(context, shown=shown, values=self._positive(context.values, rng))

    def elsewhere(self, context: Context, rng: Random) -> Context:
        """Return the context with every field and every number of the system redrawn."""
        file = self.scenario.file
        shown = {name: rng.choice(field.options or ()) for name, field in file.fields.items()}
        drawn = {
            name: rng.choice([n for n in variable.examples if n != context.values.get(name)] or [context.values[name]])
            for name, variable in file.system.items()
            if variable.examples
        }
        return replace(context, shown=shown, values={**context.values, **drawn})

    def _positive(self, values: Mapping[str, Value], rng: Random) -> dict[str, Value]:
        examples = {name: v.examples for name, v in self.scenario.file.system.items() if v.examples}
        return {
            name: rng.choice([n for n in examples[name] if n] or [value]) if name in examples and value == 0 else value
            for name, value in values.items()
        }

    def _fill(self, act: str, texts: Sequence[str], context: Context) -> Iterator[str]:
        values = self.values(act, context)
        if values is not None:
            yield from dict.fromkeys(variant.format(**values) for text in texts for variant in expansions(text))

    def values(self, act: str, context: Context) -> dict[str, Value] | None:
        """Return the values that the texts of the act may use, including its amount. None if the amount cannot be
        computed."""
        action = self.scenario.file.actions.get(act)
        if action is None or action.amount is None:
            return dict(context.values)
        try:
            return {**context.values, "amount": self.scenario.amount(action.amount, context.values)}
        except BadInput:
            return None


@functools.cache
def _names() -> frozenset[str]:
    return frozenset(scenario_names())


@functools.cache
def _shipped_acts(name: str, language: str) -> SageActs:
    scenario = load_scenario(name)
    return SageActs(scenario=scenario, words=load_words(scenario, language))


def call_of(name: str, action: ScenarioAction, values: Mapping[str, Value]) -> ToolCall:
    """Return the tool call of a scenario's action; `values` has its amount."""
    parameters = {"amount": values["amount"]} if action.amount is not None else {}
    if action.option is not None:
        parameters["option"] = action.option
    return ToolCall(name=action.tool(name), parameters=parameters)
