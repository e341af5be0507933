"""Wordings of a scenario from a teacher: what customers and agents say in generated dialogues.

For each key (how a persona begins, an intent's first message, a field's value, a question, an action) the teacher
writes several texts, which are dealt to the splits. A text is kept if it is one line in the language and in character,
has no variable that the ticket lacks, and no sentence of another split. Where a judge is named, it has to read the
value off a text that shows one.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Any

import yaml

from hamr.apps.data.recipes.rewording import CustomerText, read_fields
from hamr.apps.data.recipes.runner import Desk, Dropped, WritingRecipe
from hamr.apps.data.recipes.teachers import teacher_problem, without_thought
from hamr.data.customer_audit import out_of_role
from hamr.data.progress import ItemResult, WorkItem, item_key
from hamr.procedures import Scenario
from hamr.procedures.prompts import plain
from hamr.procedures.schema import Fact, Value, Variable
from hamr.procedures.words import (
    SPLITS,
    Split,
    WordingKey,
    Words,
    all_texts,
    needed_wordings,
    sentences,
    wording_at,
)
from hamr.prompting.reading import object_schema
from hamr.types import Language, Question

TextsBySplit = Mapping[Split, Mapping[WordingKey, Sequence[str]]]
_LONGEST = 300
_OBJECT = re.compile(r"\{\s*\"texts\".*\}", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class WordingRecipe(WritingRecipe):
    """Settings of the recipe. `texts`: wordings of each key in each split."""

    max_new_tokens: int | None = 600
    texts: int = 2
    temperature: float = 0.9
    judged: bool = False
    seed: int = 0


def wording_items(scenario: Scenario, keys: Sequence[WordingKey], recipe: WordingRecipe, by: str) -> list[WorkItem]:
    """Return one item for each key."""
    settings = dataclasses.asdict(recipe)
    return [
        WorkItem(
            id=key_name(key),
            key=item_key("words", scenario.name, task_of(scenario, key, recipe.language), settings, by),
            content=(scenario, key),
        )
        for key in keys
    ]


def key_name(key: WordingKey) -> str:
    return ".".join(map(plain, key))


@dataclass(frozen=True)
class WriteWordings:
    """The recipe's steps for one key: kept is {"texts": [...]}, at least one for each split."""

    recipe: WordingRecipe

    async def __call__(self, item: WorkItem, desk: Desk) -> ItemResult:
        scenario, key = item.content
        language = self.recipe.language
        known = slots_of(scenario, key)
        question = Question(
            prompt=f"sage_words.{language}",
            variables={
                "desk": scenario.file.description.of(language),
                "task": task_of(scenario, key, language),
                "slots": ", ".join(f"{{{name}}}" for name in known) or "-",
                "count": str(len(SPLITS) * self.recipe.texts + 2),
            },
            schema=object_schema(texts={"type": "array", "items": {"type": "string"}}),
            temperature=self.recipe.temperature,
            max_new_tokens=self.recipe.max_new_tokens,
            seed=self.recipe.seed,
        )
        kept: list[str] = []
        seen: set[str] = set()
        problem = ""
        for text in _read_texts(without_thought(await desk.teacher("words", question))):
            own = set(sentences(text))
            found = (
                "repeated" if own & seen or not own else text_problem(text, known, language, customer=_is_customer(key))
            )
            if found is None and self.recipe.judged and key[0] == "show":
                found = await _misread(scenario, key, text, language, desk)
            if found is not None:
                problem = f"{found}: {text[:60]}"
                continue
            seen |= own
            kept.append(text)
        if len(kept) < len(SPLITS):
            raise Dropped("too few texts", f"{len(kept)} usable, {len(SPLITS)} are needed; {problem}")
        return ItemResult(kept={"texts": kept})


def _read_texts(text: str) -> list[str]:
    found = _OBJECT.search(text)
    try:
        given = json.loads(found.group()) if found else {}
    except ValueError:
        given = {}
    texts = given.get("texts", []) if isinstance(given, dict) else []
    return [" ".join(one.split()) for one in texts if isinstance(one, str)] if isinstance(texts, list) else []


def text_problem(text: str, known: Sequence[str], language: Language, *, customer: bool) -> str | None:
    """Return the reason why a text cannot be a wording; None if it can."""
    if len(text) > _LONGEST:
        return "too long"
    try:
        slots = [name for _, name, _, _ in Formatter().parse(text) if name is not None]
    except ValueError:
        return "unbalanced braces"
    if unknown := [name for name in slots if name not in known]:
        return f"unknown variable {unknown[0]!r}"
    if "[" in text or "|" in text:
        return "has alternatives"
    problem = teacher_problem(text, language, may_refuse=True)
    if problem is not None:
        return problem.check
    return out_of_role(re.sub("[{}]", "", text)) if customer else None


async def _misread(scenario: Scenario, key: WordingKey, text: str, language: Language, desk: Desk) -> str | None:
    name, value = str(key[1]), key[2]
    message = CustomerText(scenario=scenario, split="train", text=text, shows={name: value}, names=())
    read = await read_fields(message, text, language, desk)
    return None if read.get(name) == value else f"judge: reads {name}={read.get(name)}"


def _is_customer(key: WordingKey) -> bool:
    return key[0] in ("manner", "opening", "show")


def slots_of(scenario: Scenario, key: WordingKey) -> list[str]:
    """Return the variables that the texts of a key may use. A customer does not know hidden ones."""
    file = scenario.file
    entries: dict[str, Variable | Fact] = {**file.system, **file.facts}
    found = [name for name, entry in entries.items() if not (_is_customer(key) and entry.hidden)]
    action = file.actions.get(str(key[1])) if key[0] == "say" else None
    return [*found, "amount"] if action is not None and action.amount else found


_TASKS = {
    "en": {
        "manner": "The beginning of a message by this customer, without what it is about: {what}",
        "opening": "The first message of a customer who wants this: {what}",
        "show": "One sentence of a customer whose case is this ({field}): {what}",
        "ask": "A question of the agent that finds out {field}. The possible answers: {what}",
        "say": "What the agent says when it does this: {what}",
    },
    "zh": {
        "manner": "这位客户一条消息的开头，不提事由：{what}",
        "opening": "有下面诉求的客户的第一条消息：{what}",
        "show": "客户的一句话，能看出他的情况（{field}）：{what}",
        "ask": "客服为了解{field}而问的一句话。可能的答案：{what}",
        "say": "客服做下面这件事时说的话：{what}",
    },
}


def task_of(scenario: Scenario, key: WordingKey, language: Language) -> str:
    """Return the required meaning of the texts of a key."""
    file, (part, name, *option) = scenario.file, key
    name = str(name)
    field = ""
    if part == "manner":
        what = file.personas[name].description.of(language)
    elif part == "opening":
        what = file.intents[name].description.of(language)
    elif part == "say":
        what = file.actions[name].description.of(language)
    else:
        field = file.fields[name].description.of(language)
        meanings = file.fields[name].meanings or {}
        what = meanings[option[0]].of(language) if option else "; ".join(m.of(language) for m in meanings.values())
    return _TASKS[language][str(part)].format(field=field, what=what)


# --- the file ----------------------------------------------------------------------------------


def deal(
    keys: Mapping[WordingKey, Sequence[str]], known: Words | None, texts: int
) -> dict[Split, dict[WordingKey, list[str]]]:
    """Deal up to `texts` new texts of each key to each split, without those with a sentence of another split."""
    home: dict[str, Split] = {}
    for split in SPLITS:
        for _, before in all_texts(known.of(split).model_dump() if known is not None else {}):
            home |= dict.fromkeys(sentences(before), split)
    dealt: dict[Split, dict[WordingKey, list[str]]] = {split: {} for split in SPLITS}
    for key, given in keys.items():
        left = list(given)
        for split in SPLITS * texts:
            text = next((t for t in left if all(home.get(s, split) == split for s in sentences(t))), None)
            if text is not None:
                left.remove(text)
                home |= dict.fromkeys(sentences(text), split)
                dealt[split].setdefault(key, []).append(text)
    return dealt


def missing_keys(scenario: Scenario, words: Words | None) -> list[WordingKey]:
    """Return the keys that a split has no wording for."""
    if words is None:
        return needed_wordings(scenario)
    needed = needed_wordings(scenario, words.opens_with)
    return [key for key in needed if not all(wording_at(words.of(split), key) for split in SPLITS)]


def render_words(scenario: Scenario, language: Language, words: Words | None, more: TextsBySplit) -> str:
    """Return the file of wordings: those known, those of `more`, and an empty list below its task where none is."""
    opens_with = list(words.opens_with) if words is not None else []
    lines = [
        f"# Wordings of generated dialogues of {scenario.name}. No sentence may be in two splits.",
        "# {Name} is a variable of the ticket; of [a|b|c] one is drawn.",
        f"opens_with: {json.dumps(opens_with)}",
    ]
    for split in SPLITS:
        known = words.of(split).model_dump() if words is not None else {}
        tree: dict[str, Any] = {part: dict(known.get(part, {})) for part in ("manner", "opening", "show", "ask", "say")}
        tree |= {part: value for part, value in known.items() if part not in tree and value}
        for key in needed_wordings(scenario, opens_with):
            part, name, *option = key
            own = tree[str(part)].get(name, {} if option else ())
            if option:
                own = {**own, option[0]: own.get(option[0]) or more.get(split, {}).get(key, ())}
            tree[str(part)][name] = own or more.get(split, {}).get(key, ())
        lines += [f"{split}:", *_lines(scenario, language, tree, ())]
    return "\n".join(lines) + "\n"


def _lines(scenario: Scenario, language: Language, tree: Mapping[Any, Any], above: WordingKey) -> Iterator[str]:
    indent = "  " * (len(above) + 1)
    for name, value in tree.items():
        key = (*above, name)
        if isinstance(value, Mapping) and value:
            yield f"{indent}{_key(name)}:"
            yield from _lines(scenario, language, value, key)
            continue
        if not value and above:
            yield f"{indent}# {task_of(scenario, key, language)}"
        yield f"{indent}{_key(name)}: {json.dumps(list(value), ensure_ascii=False)}"


def _key(name: Value) -> str:
    """Return a key as YAML; quoted where YAML would read it as something else, such as `No`."""
    text = plain(name)
    return text if not isinstance(name, str) or yaml.safe_load(f"{text}: 1") == {text: 1} else json.dumps(text)
