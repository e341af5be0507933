"""Rewords customers of generated dialogues with a teacher, so that the shown fields of their case are preserved.

A message shows some of the customer's fields, in wordings that the scenario has for each value. A teacher rewords it.
The result is kept if it is one message in character and in its language, has the same numbers, the same names of the
ticket and as many negations, occurs in no other split, and still shows those fields. Two checks can confirm the fields:

    words   it has more units (words, or Chinese characters) that are unique to this value's wordings than units of any
            other value of the field
    judge   a pool reads the fields from the message; then the words only must not indicate another value

A rejected message keeps its generated wording, so a dialogue always shows the fields of its gold case.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from hamr.apps.data.recipes.runner import Desk, Dropped, WritingRecipe
from hamr.apps.data.recipes.teachers import CheckFailure, teacher_problem, without_thought
from hamr.bench.sage.judging import read_vote
from hamr.data.customer_audit import customer_wordings, out_of_role
from hamr.data.progress import ItemResult, WorkItem, item_key
from hamr.data.splits import Splits
from hamr.procedures import Scenario
from hamr.procedures.contract import words as count_words
from hamr.procedures.prompts import CLASSIFICATION, plain
from hamr.procedures.schema import Value
from hamr.procedures.words import SPLITS, Split, Words, expansions, load_words, sentences
from hamr.prompting.reading import object_schema
from hamr.types import Language, Question, ServiceSample, Turn

_UNIT = re.compile(r"[\u4e00-\u9fff]|[^\W\d_\u4e00-\u9fff]+(?:['’][^\W\d_]+)?")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_NEGATION = re.compile(r"\b(?:no|not|never|none|nothing|neither|nor|without|cannot)\b|n['’]t\b|[不没别无未]")
_SLOT = re.compile(r"\{[^}]*\}")


@dataclass(frozen=True, kw_only=True)
class RewordRecipe(WritingRecipe):
    max_new_tokens: int | None = 160
    temperature: float = 0.8
    judged: bool = False
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class CustomerText:
    """A customer's message, with the fields that it shows and the ticket's values that it names."""

    scenario: Scenario
    split: Split
    text: str
    shows: Mapping[str, Value]
    names: tuple[str, ...]


def reword_items(splits: Splits, scenarios: Mapping[str, Scenario], recipe: RewordRecipe, by: str) -> list[WorkItem]:
    """Return every distinct message of every split once."""
    settings, items = dataclasses.asdict(recipe), {}
    for split in SPLITS:
        for sample in getattr(splits, split):
            scenario = scenarios[sample.meta["scenario"]]
            for turn in sample.history:
                name = f"{scenario.name}-{split}-{item_key(turn.content)}"
                if turn.role != "customer" or name in items:
                    continue
                shows = fields_shown(scenario, recipe.language, split, turn.content, sample.meta["fields"])
                values = {str(value) for value in sample.ticket.values() if not _NUMBER.fullmatch(str(value))}
                names = tuple(sorted(value for value in values if value.lower() in turn.content.lower()))
                message = CustomerText(scenario=scenario, split=split, text=turn.content, shows=shows, names=names)
                items[name] = WorkItem(id=name, key=item_key("reword", turn.content, settings, by), content=message)
    return list(items.values())


@dataclass(frozen=True)
class Reword:
    """The recipe's steps for one message."""

    recipe: RewordRecipe

    async def __call__(self, item: WorkItem, desk: Desk) -> ItemResult:
        message: CustomerText = item.content
        language = self.recipe.language
        question = Question(
            prompt=f"sage_reword.{language}",
            variables={"desk": message.scenario.file.description.of(language), "message": message.text},
            temperature=self.recipe.temperature,
            max_new_tokens=self.recipe.max_new_tokens,
            seed=self.recipe.seed,
        )
        text = without_thought(await desk.teacher("reword", question))
        problem = message_problem(message, text, language)
        if problem is not None:
            raise Dropped(problem.check, problem.detail)
        lost = field_lost(message, text, language, judged=self.recipe.judged)
        if lost is not None:
            raise Dropped("field lost", lost)
        if self.recipe.judged and message.shows:
            vote = await read_fields(message, text, language, desk)
            other = [name for name, value in message.shows.items() if vote.get(name) != value]
            if other:
                raise Dropped("judge: reads another field", ", ".join(other))
        return ItemResult(kept={"text": text})


# --- checks ------------------------------------------------------------------------------------


def message_problem(message: CustomerText, text: str, language: Language) -> CheckFailure | None:
    """Return the failure of a text that cannot replace the message, whatever its fields."""
    problem = teacher_problem(text, language, may_refuse=True)
    if problem is not None:
        return problem
    strange = out_of_role(text)
    if strange is not None:
        return CheckFailure(check="out of character", detail=strange)
    if "\n" in text.strip():
        return CheckFailure(check="several lines")
    if count_words(text) > 2 * count_words(message.text) + 8:
        return CheckFailure(check="too long", detail=f"{count_words(text)} words for {count_words(message.text)}")
    if sentences(text) == sentences(message.text):
        return CheckFailure(check="unchanged")
    lost = [name for name in message.names if name.lower() not in text.lower()]
    if lost:
        return CheckFailure(check="name lost", detail=", ".join(lost))
    return facts_changed(message.text, text)


def facts_changed(before: str, text: str) -> CheckFailure | None:
    """Return the failure of a rewording that has other numbers, or another number of negations."""
    if Counter(_NUMBER.findall(text)) != Counter(_NUMBER.findall(before)):
        return CheckFailure(check="other numbers", detail=", ".join(_NUMBER.findall(text)))
    if len(_NEGATION.findall(text.lower())) != len(_NEGATION.findall(before.lower())):
        return CheckFailure(check="other negations", detail=", ".join(_NEGATION.findall(text.lower())))
    return None


def fields_shown(
    scenario: Scenario, language: str, split: Split, text: str, fields: Mapping[str, Value]
) -> dict[str, Value]:
    """Return those of the customer's `fields` that this generated message shows.

    A field is shown if one of the split's wordings for its value occurs in the message, unit by unit.
    """
    words = " ".join(_units(text))
    wordings = _wordings(scenario, language)[split]
    return {
        name: value
        for name, value in fields.items()
        if any(_occurs_in(wording, words) for wording in wordings.get((name, value), ()))
    }


def field_lost(message: CustomerText, text: str, language: str, *, judged: bool) -> str | None:
    """Return the first field that the words no longer show, with the number of units for each value.

    With a judge, words only must not indicate another value, unless those of the generated message already did.
    """
    for name, value in message.shows.items():
        votes = _votes(message.scenario, language, name, text)
        if judged:
            before = _votes(message.scenario, language, name, message.text)
            lost = votes[value] < _rival(votes, value) and before[value] >= _rival(before, value)
        else:
            lost = votes[value] <= _rival(votes, value)
        if lost:
            return f"{name}: {votes}"
    return None


def _votes(scenario: Scenario, language: str, field: str, text: str) -> dict[Value, int]:
    mentioned = set(_units(text))
    return {option: len(units & mentioned) for option, units in _own_units(scenario, language, field).items()}


def _rival(votes: Mapping[Value, int], value: Value) -> int:
    return max((count for option, count in votes.items() if option != value), default=0)


@lru_cache(maxsize=64)
def _wordings(scenario: Scenario, language: str) -> dict[Split, dict[tuple[str, Value], list[str]]]:
    """Return split -> (field, value) -> its wordings, and the openings of intents that imply it."""
    words = load_words(scenario, language)
    found: dict[Split, dict[tuple[str, Value], list[str]]] = {split: {} for split in SPLITS}
    for split, texts in found.items():
        for text, meaning in customer_wordings(scenario, words, (split,)):
            for field in meaning.items():
                texts.setdefault(field, []).extend(expansions(text))
    return found


@lru_cache(maxsize=512)
def _own_units(scenario: Scenario, language: str, field: str) -> dict[Value, frozenset[str]]:
    """Return value -> the units of its wordings, in any split, that the field's other values do not have."""
    every: dict[Value, set[str]] = {option: set() for option in scenario.file.fields[field].options or ()}
    for texts in _wordings(scenario, language).values():
        for (name, value), own in texts.items():
            if name == field:
                every[value] |= {unit for text in own for unit in _units(_SLOT.sub(" ", text))}
    return {
        value: frozenset(units - set().union(*(u for other, u in every.items() if other != value)))
        for value, units in every.items()
    }


def _occurs_in(wording: str, text: str) -> bool:
    parts = (" ".join(_units(part)) for part in _SLOT.split(wording))
    return re.search(".*".join(map(re.escape, parts)), text) is not None


def _units(text: str) -> list[str]:
    return _UNIT.findall(text.lower())


# --- the judge ---------------------------------------------------------------------------------


async def read_fields(message: CustomerText, text: str, language: Language, desk: Desk) -> Mapping[str, Value]:
    """Return the value of each field that `message` shows as the judge reads it from `text`. Raises Dropped."""
    fields = {name: message.scenario.file.fields[name] for name in message.shows}
    lines = []
    for name, field in fields.items():
        lines.append(f"{name}: {field.description.of(language)}")
        lines += [f"  {plain(value)}: {meaning.of(language)}" for value, meaning in (field.meanings or {}).items()]
    labels = object_schema(**{name: {"enum": list(field.options or ())} for name, field in fields.items()})

    def ask(attempt: int) -> Question:
        return Question(
            prompt=f"sage_heard.{language}",
            variables={"fields": "\n".join(lines), "message": text},
            schema=object_schema(**{CLASSIFICATION: labels}),
            attempt=attempt,
        )

    return await desk.read_judge("heard", ask, lambda answer: read_vote("judge", answer, message.scenario).labels)


# --- results -----------------------------------------------------------------------------------


def apply_rewordings(
    splits: Splits, scenarios: Mapping[str, Scenario], done: Mapping[str, ItemResult], language: str
) -> tuple[Splits, Counter[str]]:
    """Return the samples with every kept message inserted, and counts of the outcomes.

    A kept text is left out if it contains a sentence of another split (a wording, a message, or an earlier split's kept
    text): splits share no sentence.
    """
    home = _homes(splits, scenarios, language)
    counts: Counter[str] = Counter()
    texts: dict[str, str] = {}
    for split in SPLITS:
        for name in (name for name in done if f"-{split}-" in name):
            kept = done[name].kept
            if kept is None:
                continue
            parts = sentences(kept["text"])
            if any(home.get(sentence, split) != split for sentence in parts):
                counts["occurs in another split"] += 1
                continue
            home |= dict.fromkeys(parts, split)
            texts[name] = kept["text"]
    counts["in a teacher's words"] = len(texts)
    made = {split: tuple(_with_message(s, split, texts) for s in getattr(splits, split)) for split in SPLITS}
    logged = tuple(_with_message(s, "train", texts) for s in splits.sft)  # the training samples, with errors
    return Splits(train=made["train"], validation=made["validation"], test=made["test"], sft=logged), counts


def _homes(splits: Splits, scenarios: Mapping[str, Scenario], language: str) -> dict[str, Split]:
    home: dict[str, Split] = {}
    for split in SPLITS:
        for scenario in scenarios.values():
            for text in _texts(load_words(scenario, language), split):
                home |= dict.fromkeys(sentences(text), split)
        for sample in getattr(splits, split):
            for turn in sample.history:
                home |= dict.fromkeys(sentences(turn.content), split)
    return home


def _texts(words: Words, split: Split) -> list[str]:
    one = words.of(split)
    found = [*one.manner.values(), *one.opening.values(), *(t for values in one.show.values() for t in values.values())]
    return [variant for texts in found for text in texts for variant in expansions(text)]


def _with_message(sample: ServiceSample, split: Split, texts: Mapping[str, str]) -> ServiceSample:
    def turn_of(turn: Turn) -> Turn:
        name = f"{sample.meta['scenario']}-{split}-{item_key(turn.content)}"
        return dataclasses.replace(turn, content=texts[name]) if turn.role == "customer" and name in texts else turn

    return dataclasses.replace(sample, history=tuple(map(turn_of, sample.history)))
