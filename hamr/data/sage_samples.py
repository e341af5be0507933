"""Generated dialogues for any scenario: decision points with gold actions, from graph, intents and personas.

A customer has a setting of all fields that the agent does not know. The fields shown by the first message and by each
answer go through the rule engine. The field that it waits for, or its final action, is the correct act of the agent. A
sample is one such point: the dialogue before it, with the correct act as its references.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Literal

from hamr.config.schema import SageDataConfig
from hamr.data.noise import corrupt
from hamr.data.splits import Splits
from hamr.errors import BadInput, DataError
from hamr.procedures import Route, Scenario, Walk, load_scenario, scenario_names
from hamr.procedures.acts import ASK, Context, SageActs
from hamr.procedures.prompts import policy_text, service_answer, service_prompt
from hamr.procedures.schema import Value
from hamr.procedures.words import SPLITS, Split, Words, ask_of, customer_fields, customer_turns, load_words, one_of
from hamr.types import Action, Reference, Reply, ServiceSample, Turn

Form = Literal["actions", "sage"]
"""Form of the references: a reply or a tool call, or the JSON object that SAGE requires of its agents."""
ENDS = 0.6
"""Share of samples of the form `sage` at the end of a dialogue. The others are at a question before it."""
_FORMS = {"en": "The customer {seen}. {next}", "zh": "客户{seen}。{next}"}
_ASKED = {"en": "I have to find out {field}.", "zh": "我需要了解{field}。"}
_NUMBER = {"en": "says {value} for {field}", "zh": "给出的{field}是{value}"}
_OPENING = {"en": "has just written", "zh": "刚刚来询"}
_FILLINGS = 48
"""Draws per walk of the variables that it does not read."""
_TRIES = 40
"""Draws per requested sample before the wordings count as exhausted."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """All fields and system variables of one customer. No setting occurs in two splits."""

    fields: Mapping[str, Value]
    system: Mapping[str, Value]


def generate_samples(config: SageDataConfig, *, form: Form = "actions") -> Splits:
    """Return the splits of `data.sage`, with noisy references for SFT if configured. Raise BadInput."""
    scenarios = [load_scenario(name) for name in scenario_choices(config.scenario)]
    sizes: dict[Split, int] = {"train": config.train, "validation": config.validation, "test": config.test}
    splits = generate(scenarios, sizes, seed=config.seed, language=config.language, form=form)
    if not config.procedure:
        kept = {split: tuple(replace(s, policy="") for s in getattr(splits, split)) for split in SPLITS}
        splits = replace(splits, **kept)
    if not config.noise:
        return splits
    acts = {s.name: SageActs(scenario=s, words=load_words(s, config.language)) for s in scenarios}

    def render(sample: ServiceSample, act: str, rng: Random) -> Sequence[Action]:
        own = acts[sample.meta["scenario"]]
        return own.actions(act, own.complete(Context.of(sample), rng), rng)

    return replace(splits, sft=corrupt(splits.train, config.noise, config.seed, render))


def scenario_choices(scenario: str) -> list[str]:
    """Return the scenarios of a name: all shipped ones for `all`, else the one."""
    return scenario_names() if scenario == "all" else [scenario]


def generate(
    scenarios: Sequence[Scenario],
    sizes: Mapping[Split, int],
    *,
    seed: int,
    language: str = "en",
    form: Form = "actions",
) -> Splits:
    """Return the three splits, reproducible on every machine. `sizes` are totals that the scenarios share.

    In the form `actions`, the acts of a scenario take turns, and so do the paths to each act. In the form `sage`, whose
    answers contain the whole path, the routes take turns, and 60 % of the samples are at the end of a dialogue.

    Raises:
        BadInput: Wordings are missing or duplicate (`load_words`), or insufficient for the requested number of samples.
    """
    made: dict[Split, list[ServiceSample]] = {split: [] for split in SPLITS}
    for number, scenario in enumerate(scenarios):
        words = load_words(scenario, language)
        # Independent of the seed, so that files made with different seeds also have disjoint splits.
        settings = deal(scenario, Random(f"sage/{scenario.name}"))
        policy, tools = policy_text(scenario, language=language), tools_of(scenario, language)
        if form == "sage":
            policy, tools = service_prompt(scenario, {}, language=language), ()
        for split in SPLITS:
            # The remainder goes to the first scenarios.
            size = sizes[split] // len(scenarios) + (number < sizes[split] % len(scenarios))
            maker = SampleMaker(
                scenario, words, split, language, form, policy, tools, Random(f"{scenario.name}/{seed}/{split}")
            )
            made[split] += maker.samples(settings[split], size, f"{scenario.name}-{split}-{seed}")
    for split in SPLITS:
        Random(f"sage/{seed}/{split}").shuffle(made[split])
    return Splits(train=tuple(made["train"]), validation=tuple(made["validation"]), test=tuple(made["test"]))


def deal(scenario: Scenario, rng: Random) -> dict[Split, dict[Route, list[Setting]]]:
    """Return settings by split and route: every walk, with random values for the variables that it does not read.

    Of the settings of a route, one each goes to train, test and validation, in this order, and of the others six of
    eight to train. Every split therefore has every route with at least three settings.
    """
    by_route: dict[Route, dict[str, Setting]] = {}
    for read, system, walk in scenario.settings():
        assert walk.action is not None
        kept = by_route.setdefault(Route(walk.path, walk.action), {})
        for setting in _fillings(scenario, read, system, rng):
            kept[json.dumps([setting.fields, setting.system])] = setting
    order: tuple[Split, ...] = ("train", "test", "validation", *(("train",) * 6 + ("test", "validation")))
    dealt: dict[Split, dict[Route, list[Setting]]] = {split: {} for split in SPLITS}
    for route, kept in by_route.items():
        settings = list(kept.values())
        rng.shuffle(settings)
        for index, setting in enumerate(settings):
            split = order[index] if index < 3 else order[3 + (index - 3) % 8]
            dealt[split].setdefault(route, []).append(setting)
    return dealt


def _fillings(
    scenario: Scenario, read: Mapping[str, Value], system: Mapping[str, Value], rng: Random
) -> Iterator[Setting]:
    """Yield complete settings with these values of the variables that the walk reads, consistent with some intent."""
    for _ in range(_FILLINGS):
        fields = {
            name: read[name] if name in read else rng.choice(variable.options or ())
            for name, variable in scenario.file.fields.items()
        }
        if scenario.intents_of(fields):
            yield Setting(fields=fields, system=_vary_numbers(scenario, fields, system, rng))


def _vary_numbers(
    scenario: Scenario, fields: Mapping[str, Value], system: Mapping[str, Value], rng: Random
) -> dict[str, Value]:
    """Return the state with other numbers that give the same walk. Zero is kept: procedures often branch on it."""
    varied = dict(system)
    for name, variable in scenario.file.system.items():
        if system[name] == 0:
            continue
        for number in rng.sample(variable.examples, len(variable.examples)):
            other = {**varied, name: number}
            if scenario.file.refusal(other) is None and scenario.walk(fields, other) == scenario.walk(fields, system):
                varied = other
                break
    return varied


def tools_of(scenario: Scenario, language: str) -> tuple[Mapping[str, Any], ...]:
    """Return a tool for every action that is not a reply, with `amount` if the action has one.

    The actions of a group are one tool with an `option`.
    """
    tools: dict[str, dict[str, Any]] = {}
    for name, action in scenario.file.actions.items():
        if action.reply:
            continue
        text = action.description.of(language)
        tool = tools.setdefault(action.tool(name), {"name": action.tool(name), "description": "", "parameters": {}})
        tool["description"] = f"{tool['description']} {text}".strip()
        if action.option is not None:
            known = tool["parameters"].get("properties", {}).get("option", {"enum": []})["enum"]
            tool["parameters"] = _schema("option", {"type": "string", "enum": [*known, action.option]})
        elif action.amount is not None:
            tool["parameters"] = _schema("amount", {"type": "integer"})
        else:
            tool["parameters"] = {"type": "object", "properties": {}}
    return tuple(tools.values())


def _schema(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {name: spec}, "required": [name]}


def act_of_walk(walk: Walk) -> str:
    """Return the act that the procedure requires of the agent at this point."""
    return walk.action or f"{ASK}{walk.awaits}"


# --- one split of one scenario -----------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Point:
    """A decision point: the agent turn with this number, from 0, in the dialogue of a customer."""

    setting: Setting
    intent: str
    turn: int


@dataclass(frozen=True)
class SampleMaker:
    """Maker of the samples of one split of a scenario."""

    scenario: Scenario
    words: Words
    split: Split
    language: str
    form: Form
    policy: str
    tools: tuple[Mapping[str, Any], ...]
    rng: Random

    @property
    def acts(self) -> SageActs:
        return SageActs(scenario=self.scenario, words=self.words)

    def samples(self, settings: Mapping[Route, list[Setting]], size: int, prefix: str) -> list[ServiceSample]:
        """Return samples with different tickets or dialogues. Raise BadInput if there are not enough."""
        if size and not settings:
            remedy = f"{self.scenario.name} has too few settings for separate splits; request 0, or add fields"
            raise BadInput(f"data.sage.{self.split}", size, remedy)
        points = self._by_act(settings) if self.form == "actions" else self._by_route(settings)
        made: dict[object, ServiceSample] = {}
        for _ in range(size * _TRIES):
            if len(made) == size:
                break
            sample = self._sample(next(points), f"{prefix}-{len(made):06d}")
            made.setdefault((sample.history, tuple(sample.ticket.items())), sample)
        if len(made) < size:
            where = f"data.sage.{self.split}"
            remedy = f"the wordings of {self.scenario.name} give only {len(made)} different samples; request fewer"
            raise BadInput(where, size, remedy)
        return list(made.values())

    def _by_route(self, settings: Mapping[Route, list[Setting]]) -> Iterator[_Point]:
        """Cycle through the routes, with the end or an earlier question of each."""
        for route in itertools.cycle(self.rng.sample(sorted(settings), len(settings))):
            setting = self.rng.choice(settings[route])
            intent = self.rng.choice(self.scenario.intents_of(setting.fields))
            end = len(list(self._outline(setting, intent))) - 1
            turn = end if not end or self.rng.random() < ENDS else self.rng.randrange(end)
            yield _Point(setting=setting, intent=intent, turn=turn)

    def _by_act(self, settings: Mapping[Route, list[Setting]]) -> Iterator[_Point]:
        """Cycle through the acts, and for each act through the paths to it, in any state of the system."""
        # Settings of one route, intent and state have the same acts at the same turns. Numbers count as zero or not.
        alike: dict[tuple[Route, str, tuple[object, ...]], list[Setting]] = {}
        for route in sorted(settings):
            for setting in settings[route]:
                state = tuple(v if isinstance(v, bool | str) else bool(v) for v in setting.system.values())
                for intent in self.scenario.intents_of(setting.fields):
                    alike.setdefault((route, intent, state), []).append(setting)
        found: dict[str, dict[tuple[str, ...], list[tuple[list[Setting], str, int]]]] = {}
        for (_, intent, _), group in alike.items():
            for turn, walk in enumerate(self._outline(group[0], intent)):
                by_path = found.setdefault(act_of_walk(walk), {})
                by_path.setdefault(tuple(walk.path), []).append((group, intent, turn))
        paths = [itertools.cycle(self.rng.sample(list(by_path.values()), len(by_path))) for by_path in found.values()]
        self.rng.shuffle(paths)
        for of_act in itertools.cycle(paths):
            group, intent, turn = self.rng.choice(next(of_act))
            yield _Point(setting=self.rng.choice(group), intent=intent, turn=turn)

    def _outline(self, setting: Setting, intent: str) -> Iterator[Walk]:
        """Return the progress of the procedure at each agent turn."""
        turns = customer_fields(self.scenario, self.words, fields=setting.fields, ticket=setting.system, intent=intent)
        return (walk for _, walk in turns)

    def _sample(self, point: _Point, identity: str) -> ServiceSample:
        file, rng, setting, intent = self.scenario.file, self.rng, point.setting, point.intent
        persona = rng.choice(list(file.personas))
        ticket = self.scenario.furnish(setting.system, seed=rng.random())
        turns = list(self._turns(setting, intent, persona, ticket))
        history, shown, walk = turns[point.turn]
        route = turns[-1][2]
        act = act_of_walk(walk)
        return ServiceSample(
            id=identity,
            # In the notation of the procedure: true, not True.
            ticket={name: json.dumps(v) if isinstance(v, bool) else v for name, v in ticket.items()},
            policy=self.policy,
            tools=self.tools,
            history=history,
            references=tuple(Reference(action=a, source="generated") for a in self.gold_acts(act, walk, shown, ticket)),
            privileged={
                "ticket_summary": file.intents[intent].description.of(self.language),
                "fields": shown,
                "path": list(walk.path),
                "action": walk.action,
                "awaits": walk.awaits,
                "case": {"fields": dict(setting.fields), "path": list(route.path), "action": route.action},
            },
            meta={
                "act": act,
                "scenario": file.name,
                "stage": walk.path[-1],
                "path": list(walk.path),
                "fields": shown,
                "system": dict(setting.system),
                "intent": intent,
                "persona": persona,
                "language": self.language,
                "split": self.split,
            },
        )

    def _turns(
        self, setting: Setting, intent: str, persona: str, ticket: Mapping[str, Value]
    ) -> Iterator[tuple[tuple[Turn, ...], dict[str, Value], Walk]]:
        """Yield (dialogue, fields shown, progress of the procedure) at each agent turn."""
        turns = customer_turns(
            self.scenario,
            self.words,
            self.split,
            fields=setting.fields,
            ticket=ticket,
            intent=intent,
            persona=persona,
            rng=self.rng,
        )
        history: list[Turn] = []
        for message, shown, walk in turns:
            history.append(Turn(role="customer", content=message))
            yield tuple(history), shown, walk
            if walk.awaits is not None:
                question = ask_of(self.words.of(self.split), walk.awaits, shown)
                history.append(Turn(role="agent", content=one_of(question, ticket, self.rng)))

    def gold_acts(self, act: str, walk: Walk, shown: Mapping[str, Value], ticket: Mapping[str, Value]) -> list[Action]:
        """Return the gold acts, each in another wording. Raise BadInput if the amount of the action has no value."""
        context = Context(split=self.split, shown=shown, values=ticket)
        action = self.scenario.file.actions.get(act)
        if action is not None and action.amount is not None:
            self.scenario.amount(action.amount, ticket)
        if self.form == "actions":
            return self.acts.actions(act, context, self.rng)
        wordings = self.words.of(self.split)
        texts = wordings.say[str(walk.action)] if walk.awaits is None else ask_of(wordings, walk.awaits, shown)
        values = self.acts.values(act, context) or {}
        system = {variable: ticket[variable] for variable in self.scenario.file.system}
        replies = [one_of((text,), values, self.rng) for text in texts]
        return [
            Reply(content=service_answer(self.scenario, shown, system, text, language=self.language))
            for text in replies
        ]


# --- reasons -----------------------------------------------------------------------------------


def thought_of(sample: ServiceSample, scenarios: Mapping[str, Scenario] | None = None) -> str:
    """Return the fact that the dialogue showed last and the resulting act, derived from the procedure.

    It is correct by construction, and replaces the reasoning of a teacher if there is none. `scenarios`: the user's
    own, by name.

    Raises:
        DataError: The sample is from none of them and not from a shipped scenario.

    >>> thought_of(sample)                                                       # doctest: +SKIP
    'The customer wants to be rid of the package. Carry out the change or the cancellation.'
    """
    scenario = (scenarios or {}).get(str(sample.meta.get("scenario")))
    if scenario is None:
        acts = SageActs.of(sample)
        if acts is None:
            raise DataError(f"sample {sample.id}", sample.meta.get("act"), "is not a dialogue of a known scenario")
        scenario = acts.scenario
    file = scenario.file
    act, language = str(sample.meta["act"]), str(sample.meta["language"])
    seen = _OPENING[language]
    if shown := sample.meta["fields"]:
        name, value = list(shown.items())[-1]
        meaning = (file.fields[name].meanings or {}).get(value)  # numbers have none
        described = file.fields[name].description.of(language)
        seen = meaning.of(language) if meaning else _NUMBER[language].format(value=value, field=described)
    if act.startswith(ASK):
        follows = _ASKED[language].format(field=file.fields[act.removeprefix(ASK)].description.of(language))
    else:
        follows = file.actions[act].description.of(language)
    return _FORMS[language].format(seen=seen.rstrip(".。"), next=follows)
