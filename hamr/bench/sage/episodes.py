"""Dialogues of the policy in training with SAGE's customers (`env=sage`), in the scenario's wordings or a pool's.

A training sample is a customer: its case, ticket, intent and persona. At each turn the policy sees the dialogue with
its own earlier replies. The reward system scores the turn as a single decision, with the gold that follows from the
customer's own case.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from random import Random

from hamr.bench.sage.desk import ServiceDesk
from hamr.bench.sage.pool_customers import PoolCustomers
from hamr.bench.sage.simulation import SILENCE, reply_of
from hamr.bench.sage.traces import CustomerTurn, DialoguePlan, ToolUse
from hamr.config.schema import EnvConfig
from hamr.data.actions import ResponseFormat, answer_of, parse_action
from hamr.data.curriculum import LEVEL, customer_path
from hamr.data.customer_audit import Ending, WordingReader, audit_customer
from hamr.data.sage_samples import SampleMaker, act_of_walk
from hamr.data.splits import Splits
from hamr.errors import BadInput, DataError, did_you_mean
from hamr.procedures import Scenario, Walk
from hamr.procedures.acts import Context, SageActs
from hamr.procedures.contract import read_output
from hamr.procedures.schema import Value
from hamr.procedures.words import SPLITS, Wordings, Words, load_words
from hamr.rewards.truth import says
from hamr.types import (
    AskPolicy,
    Component,
    CustomerFaultError,
    Episode,
    EpisodeLimit,
    EpisodeOutcome,
    MalformedResponse,
    Reply,
    RequestedCall,
    Scored,
    ServiceSample,
    ToolCall,
    Turn,
)

_words = lru_cache(maxsize=64)(load_words)


@lru_cache(maxsize=64)
def _reader(scenario: Scenario, language: str) -> WordingReader:
    return WordingReader(scenario, _words(scenario, language))


_META = ("scenario", "split", "fields", "system", "language", "intent", "persona")


@dataclass(frozen=True, kw_only=True)
class SageEnvironment:
    """Episode function of `env=sage`. `max_turns` is that of the rollout; `format_of` is the format of a response.

    `pool` words the customers' messages. None: they have the scenario's wordings.
    """

    config: EnvConfig
    scenarios: Mapping[str, Scenario]
    max_turns: int
    format_of: Callable[[ServiceSample], ResponseFormat]
    pool: PoolCustomers | None = None

    async def __call__(self, episode: Episode, ask: AskPolicy) -> Episode:
        """Hold one dialogue. Raises CustomerFaultError if the audit of the customer's messages finds a fault, and
        CustomerUnavailableError if a pool of the customers does not answer.

        A reply leads to the customer's next message, a tool call to its result. A response that is neither gets no
        answer, and the customer repeats itself. The dialogue ends with the reply to the customer's last message, or
        with an action of the scenario that a tool has done then.
        """
        customer = self.customer(episode)
        dialogue = _Dialogue(customer, ServiceDesk(customer.scenario, customer.plan))
        outcome: EpisodeOutcome = "ended"
        turns: Iterable[CustomerTurn] = customer.messages()
        if self.pool is not None:
            turns = await self.pool.reword(customer.scenario, customer.plan, customer.wordings, turns)
        try:
            for message, shown, walk in turns:
                dialogue.history.append(Turn(role="customer", content=message))
                dialogue.messages.append(message)
                while not dialogue.answered:
                    sample = customer.decision(dialogue.history, shown, walk)
                    answer = await ask(sample)
                    dialogue.tokens += len(answer.token_ids)
                    dialogue.take(answer.text, self.format_of(sample), message, last=walk.awaits is None)
                dialogue.answered = False
        except EpisodeLimit as limit:
            outcome = limit.outcome
        self.audit(customer, dialogue.messages, outcome)
        return replace(
            episode.end(outcome=outcome, path=customer.path), components=self._rewards(dialogue, outcome == "ended")
        )

    def customer(self, episode: Episode) -> Customer:
        return Customer.of(episode, self.scenarios)

    def audit(self, customer: Customer, messages: Sequence[str], outcome: EpisodeOutcome) -> None:
        """Raise CustomerFaultError for the first fault in the customer's messages."""
        plan, scenario = customer.plan, customer.scenario
        ending: Ending = "left" if outcome == "ended" else "cut"
        reader = _reader(scenario, plan.language)
        found = audit_customer(scenario, plan.case(plan.fields), messages, reader, ending=ending)
        if found.faults:
            raise CustomerFaultError(str(found.faults[0]))

    def _rewards(self, dialogue: _Dialogue, ended: bool) -> tuple[Component, ...]:
        excess = max(0, dialogue.turns - len(dialogue.messages)) / self.max_turns
        values = {
            "completion": (float(ended and dialogue.completed), self.config.completion),
            "extra_turns": (-excess, self.config.extra_turns),
            "violations": (-float(dialogue.violations), self.config.violations),
            "cost": (-dialogue.tokens / 1000.0, self.config.cost),
        }
        return tuple(Component(name=n, outcome=Scored(value=v), weight=w) for n, (v, w) in values.items())


@dataclass(frozen=True, kw_only=True)
class Customer:
    """The customer of a sample. `path` and `action` are those of its whole case."""

    sample: ServiceSample
    scenario: Scenario
    words: Words
    plan: DialoguePlan
    action: str
    seed: int

    @classmethod
    def of(cls, episode: Episode, scenarios: Mapping[str, Scenario]) -> Customer:
        sample, meta = episode.sample, episode.sample.meta
        scenario, case = scenarios[meta["scenario"]], sample.privileged["case"]
        plan = DialoguePlan(
            id=sample.id,
            scenario=scenario.name,
            intent=meta["intent"],
            persona=meta["persona"],
            level=meta.get(LEVEL, ""),
            fields=case["fields"],
            system=Context.of(sample).values,
            source="path",
            language=meta["language"],
            seed=episode.seed,
        )
        return cls(
            sample=sample,
            scenario=scenario,
            words=_words(scenario, meta["language"]),
            plan=plan,
            action=case["action"],
            seed=episode.seed,
        )

    @property
    def path(self) -> str:
        return customer_path(self.sample)

    @cached_property
    def states_labels(self) -> bool:
        """True if the policy answers with labels, path, action and chat in one JSON object, as the references do."""
        texts = (r.action.content for r in self.sample.references if isinstance(r.action, Reply))
        return any(read_output(text, self.scenario).output is not None for text in texts)

    def is_closed_by(self, reply: str) -> bool:
        """Return whether the case's final action is a reply, and this one says it in a wording of any split."""
        if not self.scenario.file.actions[self.action].reply:
            return False
        acts = SageActs(scenario=self.scenario, words=self.words)
        contexts = (Context(split=split, shown=self.plan.fields, values=self.plan.system) for split in SPLITS)
        return any(says(reply, text) for context in contexts for text in acts.right(self.action, context))

    @property
    def wordings(self) -> Wordings:
        return self.words.of(self.sample.meta["split"])

    def messages(self) -> Iterator[CustomerTurn]:
        """Yield the customer's messages with the fields shown so far and the progress of the procedure."""
        return self.plan.messages(self.scenario, self.words, self.sample.meta["split"], Random(self.seed))

    def decision(self, history: Sequence[Turn], shown: Mapping[str, Value], walk: Walk) -> ServiceSample:
        """Return the decision point after `history`, with the gold that the rule engine gives for the shown fields."""
        act, sample = act_of_walk(walk), self.sample
        maker = SampleMaker(
            self.scenario,
            self.words,
            sample.meta["split"],
            self.plan.language,
            "sage" if self.states_labels else "actions",
            sample.policy,
            sample.tools,
            Random(f"{self.seed}/{len(history)}"),
        )
        gold = {"fields": dict(shown), "path": list(walk.path), "action": walk.action, "awaits": walk.awaits}
        known = {"act": act, "stage": walk.path[-1], "path": list(walk.path), "fields": dict(shown)}
        references = maker.gold_acts(act, walk, shown, self.plan.system)
        return replace(
            sample,
            history=tuple(history),
            references=tuple(replace(sample.references[0], action=action) for action in references),
            privileged={**sample.privileged, **gold},
            meta={**sample.meta, **known},
        )


@dataclass(eq=False)
class _Dialogue:
    """State of a dialogue.

    `messages`: the customer's messages. `turns`, `tokens`: those of the policy. `violations`: actions that tools did
    against the procedure, or that the last labels name against it.
    """

    customer: Customer
    desk: ServiceDesk
    history: list[Turn] = field(default_factory=list)
    used: list[ToolUse] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    turns: int = 0
    tokens: int = 0
    violations: int = 0
    answered: bool = False
    completed: bool = False

    def take(self, text: str, response_format: ResponseFormat, message: str, *, last: bool) -> None:
        """Take a response to the customer's `message`. `last`: the customer has no other message."""
        self.turns += 1
        if self.customer.states_labels:
            self._take_labels(text, response_format, message, last)
            return
        action = parse_action(text, response_format)
        if isinstance(action, MalformedResponse):
            self._repeat(message)
        elif isinstance(action, Reply):
            self.history.append(Turn(role="agent", content=action.content))
            self.answered = True
            self.completed = last and not self._actions() and self.customer.is_closed_by(action.content)
        else:
            self._call(action, last)

    def _take_labels(self, text: str, response_format: ResponseFormat, message: str, last: bool) -> None:
        answer = answer_of(text, response_format)
        reading = None if isinstance(answer, MalformedResponse) else read_output(answer, self.customer.scenario)
        if reading is None or reading.output is None:
            self._repeat(message)
            return
        self.history.append(Turn(role="agent", content=reply_of(reading, self.customer.plan.language)))
        self.answered = True
        self.completed = reading.output.action == self.customer.action
        # Earlier answers name an action too, the one that follows from the labels so far.
        named = self.customer.scenario.file.actions.get(reading.output.action)
        self.violations += last and named is not None and not named.reply and not self.completed

    def _call(self, call: ToolCall, last: bool) -> None:
        premature = bool(self._actions())
        use = self.desk.use(RequestedCall(name=call.name, arguments=json.dumps(dict(call.parameters))), self.used)
        self.used.append(use)
        self.history += [
            Turn(role="agent", tool_call=call),
            Turn(role="tool", name=use.name, content=use.result),
        ]
        self.answered = last and bool(use.action)
        due = last and not premature and use.action == self.customer.action and not use.wrong_amount
        self.violations += bool(use.action) and not due
        self.completed = self.answered and due

    def _actions(self) -> list[str]:
        """Return the actions that tools have done so far."""
        return [use.action for use in self.used if use.action]

    def _repeat(self, message: str) -> None:
        silence = Turn(role="agent", content=SILENCE[self.customer.plan.language])
        self.history += [silence, Turn(role="customer", content=message)]


def check_customers(samples: Sequence[ServiceSample], scenarios: Mapping[str, Scenario]) -> None:
    """Raise DataError for a sample that describes no customer of a known scenario, BadInput for missing wordings."""
    for sample in samples:
        missing = [name for name in _META if name not in sample.meta]
        name, case = str(sample.meta.get("scenario")), sample.privileged.get("case")
        if missing or not isinstance(case, Mapping) or not {"fields", "path", "action"} <= case.keys():
            lacks = f"meta.{missing[0]}" if missing else "privileged.case"
            raise DataError(
                f"env.type=sage: sample {sample.id}",
                "no customer",
                f"lacks {lacks}; make samples with `hamr data sage`, or set env=decision",
            )
        if name not in scenarios:
            raise DataError(
                f"env.type=sage: sample {sample.id}",
                name,
                f"no such scenario; known: {', '.join(scenarios)}; name your own in rewards.sage_logic.scenarios",
            )
        _words(scenarios[name], sample.meta["language"])


def with_levels(splits: Splits, scenarios: Mapping[str, Scenario], levels: Sequence[str]) -> Splits:
    """Return the splits with an adversarial level for each customer, drawn by its id from those that fit its case.

    All dialogues with a customer have its level. A customer whose case none of `levels` fits has none. Raises BadInput
    for a level that a customer's scenario does not know or whose wordings are missing.
    """

    def customers(samples: Sequence[ServiceSample]) -> tuple[ServiceSample, ...]:
        return tuple(_with_level(sample, scenarios[sample.meta["scenario"]], levels) for sample in samples)

    for name, language in sorted({(s.meta["scenario"], s.meta["language"]) for s in (*splits.train, *splits.test)}):
        known = scenarios[name].file.levels
        for level in levels:
            if level not in known:
                raise BadInput(
                    "env.levels", level, f"no level of {name}; {did_you_mean(level, known)}known: {', '.join(known)}"
                )
            words = _words(scenarios[name], language)
            if level != known[0] and not all(words.of(split).adversity.get(level) for split in SPLITS):
                raise BadInput(
                    "env.levels", level, f"the {language} wordings of {name} have no adversity.{level}; add it"
                )
    return replace(splits, train=customers(splits.train), test=customers(splits.test))


def _with_level(sample: ServiceSample, scenario: Scenario, levels: Sequence[str]) -> ServiceSample:
    fitting = scenario.levels_of(sample.privileged["case"]["fields"], Context.of(sample).values)
    own = [level for level in levels if level in fitting]
    return replace(sample, meta={**sample.meta, LEVEL: Random(f"{sample.id}/level").choice(own)}) if own else sample
