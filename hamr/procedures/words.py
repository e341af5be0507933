"""Wordings of customers and agents in generated dialogues: `words/<scenario>.<language>.yaml` next to the scenario
file.

Each split has its own wordings, so a model trained on the sentences of one split has not seen those of another.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from random import Random
from string import Formatter
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator

from hamr.config.resources import resource
from hamr.config.yaml_files import place, read_checked
from hamr.errors import BadInput, did_you_mean
from hamr.procedures import Scenario, Walk
from hamr.procedures.schema import Strict, Value

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
Relation = Literal["reworded", "partial", "negated"]
RELATIONS: tuple[Relation, ...] = get_args(Relation)
WordingKey = tuple[Value, ...]
"""Part, name and, for `show`, the option: ("show", "EmotionTag", "Calm")."""
WordingFault = tuple[tuple[str, ...], object, str]
_VARIANTS = 500
_CHOICE = re.compile(r"\[([^]]*)\]")
_END = re.compile(r"[.!?。！？\n]+")


def _readable(text: str) -> str:
    try:
        list(Formatter().parse(text))
    except ValueError as error:
        raise ValueError(f"{error}; braces mark variables: {{Name}}") from error
    if prod(found.count("|") + 1 for found in _CHOICE.findall(text)) > _VARIANTS:
        raise ValueError(f"expands to more than {_VARIANTS} texts; write several instead")
    return text


Texts = tuple[Annotated[str, AfterValidator(_readable)], ...]
ByValue = Texts | Mapping[str, Texts]
"""Texts, or texts by the value of another field."""


class Wordings(Strict):
    """Wordings of one split. One alternative of [a|b|c] is drawn; {Name} is a variable of the ticket.

    `manner`: the beginning of a persona's message. `opening`: the first message by intent, which states what the intent
    pins. `show`: sentence of the customer that shows the value of a field. `ask`: sentence of the agent that asks for
    it, optionally by the value of another field ("Profile=Data"). `say`: the text of an action, alone or with a call;
    {amount} is the amount of the action. `adversity`: sentences that a customer of a level adds, which show no field.

    For scorers only, by field for questions and by action for the rest: `reworded`, further right wordings; `partial`,
    wordings that lack a detail or have one too many; `negated`, the opposite.
    """

    manner: Mapping[str, Texts]
    opening: Mapping[str, Texts]
    show: Mapping[str, Mapping[Value, Texts]] = {}
    ask: Mapping[str, ByValue] = {}
    say: Mapping[str, Texts] = {}
    adversity: Mapping[str, Texts] = {}
    reworded: Mapping[str, ByValue] = {}
    partial: Mapping[str, ByValue] = {}
    negated: Mapping[str, ByValue] = {}


class Words(Strict):
    """Wordings of all splits. `opens_with`: fields that the first message shows, regardless of the procedure."""

    opens_with: Texts = ()
    train: Wordings
    validation: Wordings
    test: Wordings

    def of(self, split: Split) -> Wordings:
        return {"train": self.train, "validation": self.validation, "test": self.test}[split]


def words_file(scenario: Scenario, language: str) -> Path:
    """Return the file of a scenario's wordings in a language."""
    assert scenario.source is not None
    return scenario.source.parent / "words" / f"{scenario.source.stem}.{language}.yaml"


def read_words(path: Path) -> Words:
    """Read a file of wordings, which may be incomplete. BadInput names file and line."""
    return read_checked(path, Words, "words")[0]


def load_words(scenario: Scenario, language: str) -> Words:
    """Load the wordings; those of `adversity` are the shipped ones if the file has none.

    BadInput names file and line: no such file, a missing wording, or a sentence in two splits.
    """
    path = words_file(scenario, language)
    if not path.is_file():
        there = sorted(p.name for p in path.parent.glob(f"{path.stem.rpartition('.')[0]}.*.yaml"))
        remedy = "dialogues need wordings; `hamr data words` writes them"
        raise BadInput("words", str(path), f"no such file; {remedy}. Found: {there or 'none'}")
    assert scenario.source is not None
    content = (path.read_bytes(), scenario.source.read_bytes())
    if content not in _checked:
        words, tree = read_checked(path, Words, "words")
        words = _with_adversity(words, language)
        fault = next(itertools.chain(_missing(scenario, words), _slots(scenario, words), _check_shared(words)), None)
        if fault is not None:
            where, value, why = fault
            raise BadInput(place(path, tree, where), value, why)
        _checked[content] = words
    return _checked[content]


_checked: dict[tuple[bytes, bytes], Words] = {}
"""Wordings by the content of their file and of their scenario's: a check takes longer than a dialogue."""


class _Adversity(Strict):
    train: Mapping[str, Texts]
    validation: Mapping[str, Texts]
    test: Mapping[str, Texts]


def _with_adversity(words: Words, language: str) -> Words:
    path = resource("conf", "scenarios") / "words" / f"adversity.{language}.yaml"
    if any(words.of(split).adversity for split in SPLITS) or not path.is_file():
        return words
    shipped = read_checked(path, _Adversity, "words")[0]
    added: dict[str, Wordings] = {}
    for split in SPLITS:
        added[split] = words.of(split).model_copy(update={"adversity": getattr(shipped, split)})
    return words.model_copy(update=added)


def wording_at(wordings: Wordings, key: WordingKey) -> ByValue:
    """Return the texts at a key; empty if there are none."""
    part, name, *option = key
    texts = getattr(wordings, str(part)).get(name, ())
    return texts.get(option[0], ()) if option and texts else texts


def ask_of(wordings: Wordings, field: str, shown: Mapping[str, object]) -> Texts:
    """Return the sentences of the agent that ask for `field` when `shown` is known. Raise BadInput if none fits."""
    texts = wordings.ask[field]
    found = fitting(texts, shown)
    if not found:
        raise BadInput(f"words: ask.{field}", dict(shown), f"none of {list(texts)} fits; add one that does")
    return found


def fitting(texts: ByValue, shown: Mapping[str, object]) -> Texts:
    """Return the texts, or those of the first value that the shown fields have. Empty if none fits."""
    if not isinstance(texts, Mapping):
        return texts
    return next((found for key, found in texts.items() if _fits(key, shown)), ())


def _fits(key: str, shown: Mapping[str, object]) -> bool:
    field, _, value = key.partition("=")
    return str(shown.get(field)) == value


def customer_turns(
    scenario: Scenario,
    words: Words,
    split: Split,
    *,
    fields: Mapping[str, Value],
    ticket: Mapping[str, Value],
    intent: str,
    persona: str,
    level: str = "",
    rng: Random,
) -> Iterator[tuple[str, dict[str, Value], Walk]]:
    """Yield (message, fields shown so far, progress of the procedure) for each turn of a customer.

    At every turn the customer shows the field that the procedure waits for, until it has all that it needs. At an
    adversarial level with wordings it adds one of them to every message, at "weak" to every second one.
    """
    wordings, names = words.of(split), _first_fields(scenario, words, intent)
    parts = [wordings.manner[persona], wordings.opening[intent], *(wordings.show[name][fields[name]] for name in names)]
    message = " ".join(one_of(texts, ticket, rng) for texts in parts)
    added = wordings.adversity.get(level, ())
    turns = customer_fields(scenario, words, fields=fields, ticket=ticket, intent=intent)
    for number, (shown, walk) in enumerate(turns):
        adds = added and (level != "weak" or number % 2 == 0)
        yield f"{message} {one_of(added, ticket, rng)}" if adds else message, shown, walk
        if walk.awaits is not None:
            message = one_of(wordings.show[walk.awaits][fields[walk.awaits]], ticket, rng)


def customer_fields(
    scenario: Scenario, words: Words, *, fields: Mapping[str, Value], ticket: Mapping[str, Value], intent: str
) -> Iterator[tuple[dict[str, Value], Walk]]:
    """Yield the last two items of `customer_turns`, which do not depend on the wordings."""
    first = {*scenario.file.intents[intent].pins, *_first_fields(scenario, words, intent)}
    shown = {name: value for name, value in fields.items() if name in first}
    while True:
        walk = scenario.walk(shown, ticket)
        yield dict(shown), walk
        if walk.awaits is None:
            return
        shown[walk.awaits] = fields[walk.awaits]


def _first_fields(scenario: Scenario, words: Words, intent: str) -> list[str]:
    """Return the fields that the first message shows in addition to those that the intent pins."""
    return [name for name in words.opens_with if name not in scenario.file.intents[intent].pins]


def one_of(texts: Sequence[str], ticket: Mapping[str, Value], rng: Random) -> str:
    """Draw one of these texts, with the values of the ticket."""
    return draw_alternatives(rng.choice(texts), rng).format(**ticket)


def draw_alternatives(text: str, rng: Random) -> str:
    """Return the text with one alternative of each [a|b|c].

    >>> draw_alternatives("a [good|bad] plan", Random(1))
    'a good plan'
    """
    return _CHOICE.sub(lambda found: rng.choice(found[1].split("|")), text)


def expansions(text: str) -> Iterator[str]:
    """Yield every text that `draw_alternatives` may return."""
    parts = _CHOICE.split(text)
    choices = [part.split("|") if index % 2 else [part] for index, part in enumerate(parts)]
    yield from map("".join, itertools.product(*choices))


@functools.lru_cache(maxsize=100_000)
def sentences(text: str) -> tuple[str, ...]:
    """Return the sentences of a text in comparable form: lower case, no punctuation, one space.

    >>> sentences("Hi there! I want {Plan}.")
    ('hi there', 'i want plan')
    """
    parts = (" ".join(re.findall(r"\w+", part.lower())) for part in _END.split(text))
    return tuple(part for part in parts if part)


def needed_wordings(scenario: Scenario, opens_with: Sequence[str] = ()) -> list[WordingKey]:
    """Return the keys of the wordings that a dialogue of this scenario may need, the same for every split."""
    file = scenario.file
    open_fields = {
        variable
        for fields, _, walk in scenario.settings()
        for intent in scenario.intents_of(fields)
        for variable in walk.read
        if variable in file.fields and variable not in file.intents[intent].pins
    }
    shown = sorted(open_fields | set(opens_with))
    return [
        *(("manner", name) for name in file.personas),
        *(("opening", name) for name in file.intents),
        *(("show", name, option) for name in shown for option in file.fields[name].options or ()),
        *(("ask", name) for name in sorted(open_fields - set(opens_with))),
        *(("say", name) for name in file.actions),
    ]


def _missing(scenario: Scenario, words: Words) -> Iterator[WordingFault]:
    """Yield the wordings that a dialogue of this scenario may need and that are missing."""
    file = scenario.file
    for name in words.opens_with:
        if name not in file.fields:
            yield ("opens_with",), name, f"is not a field; known: {list(file.fields)}"
            return
    for split in SPLITS:
        one = words.of(split)
        for key in needed_wordings(scenario, words.opens_with):
            if not wording_at(one, key):
                yield (split, *map(str, key)), None, "has no wording; write at least one, or see `hamr data words`"
        acts = {*one.ask, *one.say}
        for relation in RELATIONS:
            for name in getattr(one, relation).keys() - acts:
                yield (split, relation, name), name, f"is not an act; {did_you_mean(name, acts)}known: {sorted(acts)}"


def _slots(scenario: Scenario, words: Words) -> Iterator[WordingFault]:
    """Check that every {name} is a variable of the ticket, or the amount of the action."""
    file = scenario.file
    for split in SPLITS:
        for where, text in all_texts(words.of(split).model_dump()):
            action = file.actions.get(where[1]) if where[0] in ("say", *RELATIONS) else None
            known = {*file.system, *file.facts, *(("amount",) if action and action.amount else ())}
            for name in (slot for _, slot, _, _ in Formatter().parse(text) if slot is not None):
                if name not in known:
                    yield (split, *where), name, f"no such variable; {did_you_mean(name, known)}known: {sorted(known)}"


def _check_shared(words: Words) -> Iterator[WordingFault]:
    home: dict[str, Split] = {}
    for split in SPLITS:
        for where, text in all_texts(words.of(split).model_dump()):
            for sentence in (s for variant in expansions(text) for s in sentences(variant)):
                if home.setdefault(sentence, split) != split:
                    yield (split, *where), sentence, f"is also in {home[sentence]}; use different wordings"


def all_texts(part: object, where: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield (keys, text) of every text in a part of a file of wordings."""
    if isinstance(part, str):
        yield where, part
    elif isinstance(part, Mapping):
        for key, value in part.items():
            yield from all_texts(value, (*where, str(key)))
    elif isinstance(part, tuple | list):
        for value in part:
            yield from all_texts(value, where)
