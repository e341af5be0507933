"""Responses with planted faults in a teacher's words, and held-out wordings that no teacher has seen.

Every third wording is held out: its responses keep it, and go into a file of their own. A judge that was tuned or
trained on the others is measured on them. A response whose rewording does not pass the checks keeps its wording too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hamr.apps.data.recipes.rewording import facts_changed
from hamr.apps.data.recipes.runner import Desk, Dropped
from hamr.apps.data.recipes.teachers import teacher_problem, without_thought
from hamr.bench.olabench.labelled import Labelled
from hamr.data.progress import ItemResult, WorkItem, item_key
from hamr.procedures.contract import words as count_words
from hamr.types import Language, Question

HELD_OUT = 3
TEMPERATURE = 0.9


@dataclass(frozen=True, kw_only=True)
class PlantedReword:
    """The recipe's steps for one response: kept is {"text"}."""

    language: Language

    async def __call__(self, item: WorkItem, desk: Desk) -> ItemResult:
        row: Labelled = item.content
        question = Question(
            prompt=f"olabench_reword.{self.language}",
            variables={"kind": row.id.rpartition("/")[2].replace("-", " "), "response": row.response},
            affinity=row.id,
            temperature=TEMPERATURE,
        )
        text = without_thought(await desk.teacher("reword", question))
        problem = teacher_problem(text, self.language, may_refuse=True) or facts_changed(row.response, text)
        if problem is not None:
            raise Dropped(problem.check, problem.detail)
        if "\n" in text or "<" in text:
            raise Dropped("several lines or markup")
        if text == row.response:
            raise Dropped("unchanged")
        if not 0.5 <= count_words(text) / count_words(row.response) <= 2.0:
            raise Dropped("another length", f"{count_words(text)} words for {count_words(row.response)}")
        return ItemResult(kept={"text": text})


def is_held_out(row: Labelled) -> bool:
    """Return whether one of the response's wordings is held out."""
    numbers = [int(name.rpartition("/")[2]) for name in row.template.split("+") if name]
    return any(number % HELD_OUT == HELD_OUT - 1 for number in numbers)


def planted_items(rows: Sequence[Labelled], language: Language, by: str) -> list[WorkItem]:
    """Return an item for every response that shares its wording with others."""
    return [
        WorkItem(id=row.id, key=item_key("planted reword", row.response, language, by), content=row)
        for row in rows
        if row.template
    ]


def apply_planted(rows: Sequence[Labelled], done: Mapping[str, ItemResult]) -> list[Labelled]:
    """Return the responses in the words of their rewordings, where these were kept."""
    found = []
    for row in rows:
        kept = done[row.id].kept if row.id in done else None
        found.append(dataclasses.replace(row, response=kept["text"]) if kept else row)
    return found
