"""Items of all three kinds from SAGE scenarios, whose rule engine determines the right answer.

A generated decision point (`hamr.data.sage_samples`) is presented to the model in one of three forms. As an agent item,
with the procedure and its tools. As the last node of a workflow, whose other nodes have read the case and followed the
procedure. Or with pairs retrieved from a knowledge base that is the procedure, path by path: "what is done if ...?".
One pair fits the case, the others are its nearest neighbours with another outcome.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from hamr.bench.olabench.drafts import RETRIEVED, ItemDraft, Proportions, Slot, add_temptation, skill_nodes, slots
from hamr.bench.olabench.items import BenchItem, ItemEvidence, Subset
from hamr.bench.olabench.words import BenchWords, bench_words
from hamr.data.sage_samples import generate
from hamr.errors import BadInput
from hamr.procedures import Scenario
from hamr.procedures.prompts import plain
from hamr.procedures.schema import Value
from hamr.types import Reference, Reply, ServiceSample

_SPARE = 6
"""Additional samples beyond twice the items: only those that end a dialogue can be used with a knowledge base."""


@dataclass(frozen=True, kw_only=True)
class _Way:
    """One path through the procedure: the values that were read on it, and the action at its end."""

    read: Mapping[str, Value]
    action: str


def draft_scenarios(
    scenarios: Sequence[Scenario],
    sizes: Mapping[Subset, int],
    *,
    seed: int,
    language: str,
    proportions: Proportions = "equal",
) -> list[ItemDraft]:
    """Return the items of each subset, from the scenarios in turn. The result is deterministic across machines.

    Raises BadInput where wordings are missing or too few, and for a scenario without tools or with a single outcome.
    """
    dealt: dict[str, list[Slot]] = {scenario.name: [] for scenario in scenarios}
    turn: dict[tuple[str, str], int] = {}
    for slot in slots(sizes, proportions=proportions):
        number = turn.get((slot.kind, slot.subset), 0)
        dealt[scenarios[number % len(scenarios)].name].append(slot)
        turn[slot.kind, slot.subset] = number + 1
    found = []
    for scenario in scenarios:
        found += _Maker(scenario, seed, language).drafts(dealt[scenario.name])
    # Shuffled, so that the first few cover all kinds.
    return Random(f"olabench/{seed}").sample(found, len(found))


class _Maker:
    """Builds the drafts of one scenario."""

    def __init__(self, scenario: Scenario, seed: int, language: str) -> None:
        self.scenario, self.seed, self.language = scenario, seed, language
        self.words: BenchWords = bench_words(language)
        self.rng = Random(f"olabench/{scenario.name}/{seed}")
        self.ways = list(_ways(scenario).values())
        if len({way.action for way in self.ways}) < 2:
            raise BadInput("scenario", scenario.name, "has only one outcome; give a scenario with several")

    def drafts(self, wanted: Sequence[Slot]) -> list[ItemDraft]:
        if not wanted:
            return []
        sizes = {"train": 0, "validation": 0, "test": 2 * len(wanted) + _SPARE}
        made = generate([self.scenario], sizes, seed=self.seed, language=self.language).test  # type: ignore[arg-type]
        left = list(made)
        found = []
        for number, slot in enumerate(wanted):
            sample = next((s for s in left if slot.kind != "rag" or s.privileged["action"] is not None), None)
            if sample is None:
                raise BadInput("core", len(wanted), f"{self.scenario.name} gives fewer items; ask for fewer")
            left.remove(sample)
            sample = dataclasses.replace(sample, id=f"{self.scenario.name}-{slot.kind}-{slot.subset}-{number:04d}")
            found.append(self._draft(add_temptation(sample, slot.trap, self.words, self.rng), slot))
        return found

    def _draft(self, sample: ServiceSample, slot: Slot) -> ItemDraft:
        step = self._step(sample)
        if slot.kind == "agent":
            return self._agent(sample, slot, step)
        bare = dataclasses.replace(sample, tools=())
        return self._rag(bare, slot, step) if slot.kind == "rag" else self._workflow(bare, slot, step)

    # --- the three kinds -----------------------------------------------------------------------

    def _agent(self, sample: ServiceSample, slot: Slot, step: str) -> ItemDraft:
        if not sample.tools:
            raise BadInput("scenario", self.scenario.name, "has no tools; an agent item needs tools")
        item = BenchItem(sample=sample, kind="agent", subset=slot.subset, trap=slot.trap)
        return ItemDraft(item=item, replies=self._replies(sample, step), aside=self._aside(sample, ()), step=step)

    def _workflow(self, sample: ServiceSample, slot: Slot, step: str) -> ItemDraft:
        file, shown = self.scenario.file, sample.meta["fields"]
        pinned = file.intents[sample.meta["intent"]].pins
        intent = self.words.joint.join(self._meaning(name, value) for name, value in pinned.items())
        facts = self.words.joint.join(f"{name} = {plain(value)}" for name, value in shown.items())
        outputs = (intent or sample.meta["intent"], facts or self.words.no_facts, step)
        replies = self._replies(sample, step)
        item = BenchItem(
            sample=self._with_policy(sample, self.words.workflow_policy, replies),
            kind="workflow",
            subset=slot.subset,
            nodes=skill_nodes(self.words, outputs),
            trap=slot.trap,
        )
        return ItemDraft(item=item, replies=replies, aside=self._aside(sample, ()), step=step)

    def _rag(self, sample: ServiceSample, slot: Slot, step: str) -> ItemDraft:
        fitting = self._way_of(sample)
        others = self._neighbours(fitting)[: RETRIEVED - 1]
        retrieved = self.rng.sample([fitting, *others], 1 + len(others))
        replies = (self._reply_from(self._pair(fitting, sample).answer),)
        item = BenchItem(
            sample=self._with_policy(sample, self.words.rag_policy, replies),
            kind="rag",
            subset=slot.subset,
            evidence=tuple(self._pair(way, sample) for way in retrieved),
            trap=slot.trap,
        )
        misuse = tuple(self._reply_from(self._pair(way, sample).answer) for way in others)
        return ItemDraft(item=item, replies=replies, misuse=misuse, aside=self._aside(sample, others), step=step)

    # --- the knowledge base --------------------------------------------------------------------

    def _way_of(self, sample: ServiceSample) -> _Way:
        known = {**sample.meta["fields"], **sample.meta["system"]}
        walk = self.scenario.walk(sample.meta["fields"], sample.meta["system"])
        return _Way(read={name: known[name] for name in walk.read}, action=str(walk.action))

    def _neighbours(self, fitting: _Way) -> list[_Way]:
        """Return paths to other actions, one per action, by descending similarity to the fitting one."""

        def apart(way: _Way) -> int:
            return sum(fitting.read.get(name) != value for name, value in way.read.items())

        nearest: dict[str, _Way] = {}
        for way in sorted(self.rng.sample(self.ways, len(self.ways)), key=apart):
            if way.action != fitting.action:
                nearest.setdefault(way.action, way)
        return list(nearest.values())

    def _aside(self, sample: ServiceSample, retrieved: Sequence[_Way]) -> ItemEvidence | None:
        """Return a pair with an action other than the right and the retrieved ones; None where there is none."""
        taken = {sample.privileged["action"], *(way.action for way in retrieved)}
        others = [way for way in self.ways if way.action not in taken]
        return self._pair(self.rng.choice(others), sample) if others else None

    def _pair(self, way: _Way, sample: ServiceSample) -> ItemEvidence:
        parts = []
        for name, value in way.read.items():
            variable = self.scenario.file.fields.get(name) or self.scenario.file.system[name]
            description = variable.description.of(self.language)
            parts.append(self.words.condition.format(description=description, meaning=self._meaning(name, value)))
        answer = self._say(sample, way.action, self.words.answer, self.words.answer_amount)
        return ItemEvidence(question=self.words.question.format(conditions=self.words.joint.join(parts)), answer=answer)

    # --- words ---------------------------------------------------------------------------------

    def _meaning(self, name: str, value: Value) -> str:
        variable = self.scenario.file.fields.get(name) or self.scenario.file.system[name]
        return variable.meanings[value].of(self.language) if variable.meanings else plain(value)

    def _with_policy(self, sample: ServiceSample, policy: str, replies: tuple[str, ...]) -> ServiceSample:
        """Return the sample under another policy and with only replies as its references."""
        title, description = self.scenario.file.title, self.scenario.file.description
        desk = f"{title.of(self.language)}. {description.of(self.language)}"
        references = tuple(Reference(action=Reply(content=text), source="generated") for text in replies)
        return dataclasses.replace(sample, policy=policy.format(desk=desk), references=references)

    def _reply_from(self, what: str) -> str:
        """Return a reply that states only what the material says."""
        return self.words.reply.format(what=what)

    def _replies(self, sample: ServiceSample, step: str) -> tuple[str, ...]:
        """Return replies that the material supports.

        These are questions, which state nothing, or the statement that the required step will be done. The scenario's
        wordings of an action may state more (that it has been done, a reason), which the material does not support.
        """
        if sample.privileged["action"] is not None:
            return (self._reply_from(step),)
        return tuple(r.action.content for r in sample.references if isinstance(r.action, Reply))

    def _step(self, sample: ServiceSample) -> str:
        action, awaits = sample.privileged["action"], sample.privileged["awaits"]
        if action is None:
            return self.words.step_ask.format(what=self.scenario.file.fields[awaits].description.of(self.language))
        return self._say(sample, action, self.words.step_do, self.words.step_amount)

    def _say(self, sample: ServiceSample, name: str, template: str, with_amount: str) -> str:
        """Return an action in words, `with_amount` where it has one."""
        action = self.scenario.file.actions[name]
        what, values = action.description.of(self.language), {**sample.ticket, **sample.meta["system"]}
        if action.amount is None:
            return template.format(what=what)
        return with_amount.format(what=what, amount=self.scenario.amount(action.amount, values))


def _ways(scenario: Scenario) -> dict[str, _Way]:
    found = {}
    for fields, system, walk in scenario.settings():
        known = {**fields, **system}
        read = {name: known[name] for name in walk.read}
        found[json.dumps(read)] = _Way(read=read, action=str(walk.action))
    return found
