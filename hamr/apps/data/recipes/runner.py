"""Runner of all recipes: processes items concurrently and stores each finished item immediately.

A recipe is a coroutine `make(item, desk) -> ItemResult`. It queries its pools through the desk, which stores every
returned text. The runner keeps `at_once` items in progress, appends each finished one to a progress file and reports
progress. The same call resumes an interrupted one.

A transient failure (unavailable, timeout) is independent of the item, which is retried once at the end of the run and
again by the next call. Every other result is final, kept or dropped.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from hamr.apps.data.recipes.teachers import CheckFailure, Teachers, without_thought
from hamr.bench.answers import process_all
from hamr.data.progress import ItemResult, WorkItem, WorkProgress
from hamr.errors import VerdictUnparsable
from hamr.protocols import Ask
from hamr.types import TRANSIENT, Answer, Language, Question, ServiceSample

Read = TypeVar("Read")
Kept = TypeVar("Kept")
Judge = Literal["judge", "second"]


@dataclass(frozen=True, kw_only=True)
class WritingRecipe:
    """Settings of a recipe whose texts a teacher writes. `max_new_tokens` None: the teacher pool's own."""

    language: Language = "en"
    max_new_tokens: int | None = None

    def question(self, sample: ServiceSample, prompt: str, variables: Mapping[str, str], attempt: int) -> Question:
        """Return the question to a teacher, by a prompt's name and variables."""
        return Question(
            variables=variables,
            affinity=sample.id,
            prompt=f"{prompt}.{self.language}",
            attempt=attempt,
            max_new_tokens=self.max_new_tokens,
        )


class Dropped(Exception):
    """Ends an item: `reason` is the check's name, `detail` its finding."""

    def __init__(self, reason: str, detail: str = "", *, passing: bool = False) -> None:
        super().__init__(reason, detail)
        self.reason, self.detail, self.passing = reason, detail, passing


@dataclass(frozen=True, kw_only=True)
class Pools:
    """The pools of a run: teachers that share the items, a judge, and a second judge of another kind."""

    teachers: Teachers
    judge: Ask | None = None
    second: Ask | None = None


class Desk:
    """Access to the pools for one item. Stores each text with its step and its author."""

    def __init__(self, pools: Pools) -> None:
        self._pools, self._teacher = pools, ""
        self.texts: list[dict[str, Any]] = []
        self.notes: list[str] = []

    async def teacher(self, step: str, question: Question) -> str:
        """Return a teacher's text. An item stays with its first teacher as long as that one answers.

        Raises Dropped where none answers or the answer was truncated.
        """
        return text_of(await self.ask_teacher(step, question), "teacher")

    async def teacher_answer(self, step: str, question: Question) -> Answer:
        """Return a teacher's answer, truncated or not. Raises Dropped where none answers."""
        return _in_time(await self.ask_teacher(step, question), "teacher")

    async def ask_teacher(self, step: str, question: Question, turn: int | None = None) -> Answer:
        """Return a teacher's answer or failure. `turn`: ask the teachers in turn, this one by its number."""
        names = self._pools.teachers.names
        first = self._teacher if turn is None else names[turn % len(names)]
        self._teacher, answer = await self._pools.teachers.ask(question, first)
        self._keep(step, self._teacher, answer)
        return answer

    async def ask_until_valid(
        self,
        step: str,
        question: Callable[[dict[str, str], int], Question],
        check: Callable[[str], Awaitable[Kept | CheckFailure]],
    ) -> Kept:
        """Return the result of `check` on a teacher's text, with one retry.

        `question(shown, attempt)`: `shown` are the template's variables `previous` and `fault`, both "" at first, then
        the first text without its thoughts and its fault. Raises Dropped with the second text's fault.
        """
        shown = {"previous": "", "fault": ""}
        for attempt in (0, 1):
            text = await self.teacher("repair" if attempt else step, question(shown, attempt))
            found = await check(text)
            if not isinstance(found, CheckFailure):
                return found
            fault = found
            shown = {"previous": without_thought(text), "fault": f"{fault.check}: {fault.detail}"}
            if not attempt:
                self.notes.append(f"to be repaired: {fault.check}")
        raise Dropped(fault.check, fault.detail)

    async def read_judge(
        self, step: str, ask: Callable[[int], Question], read: Callable[[str], Read], by: Judge = "judge"
    ) -> Read:
        """Return a judge's parsed text; retry once (attempt 1) where it cannot be parsed. Raises Dropped."""
        for attempt in (0, 1):
            text = text_of(await self.verdict(step, ask(attempt), by), by)
            try:
                return read(text)
            except VerdictUnparsable as error:
                unread = str(error)
        raise Dropped(f"{by}: unparsable", unread)

    async def verdict(self, step: str, question: Question, by: Judge = "judge") -> Answer:
        """Return a judge's whole answer, including label and score. Raises Dropped on a transient failure."""
        ask = self._pools.judge if by == "judge" else self._pools.second
        assert ask is not None, "the recipe uses this judge, so it was started"
        answer = await ask(question)
        self._keep(step, by, answer)
        return _in_time(answer, by)

    def _keep(self, step: str, name: str, answer: Answer) -> None:
        text = answer.text if answer.text is not None else answer.reasoning
        verdict = {} if answer.verdict is None else {"verdict": answer.verdict}
        self.texts.append({"step": step, "by": name, "text": text, **verdict})


def _in_time(answer: Answer, who: str) -> Answer:
    if answer.failure in TRANSIENT:
        raise Dropped(f"{who}: {answer.failure}", answer.detail, passing=True)
    return answer


def text_of(answer: Answer, who: str) -> str:
    """Return the text of an answer. Raises Dropped where there is none."""
    if answer.failure is not None or answer.text is None:
        passing = answer.failure in TRANSIENT
        raise Dropped(f"{who}: {answer.failure or 'unparsable'}", answer.detail, passing=passing)
    return answer.text


Make = Callable[[WorkItem, Desk], Awaitable[ItemResult]]


# --- running -----------------------------------------------------------------------------------


async def run_recipe(
    items: Sequence[WorkItem],
    make: Make,
    pools: Pools,
    progress: WorkProgress,
    *,
    at_once: int,
    report: Callable[[int], None] = lambda done: None,
    tell: Callable[[str], None] = print,
) -> None:
    """Process the unfinished items.

    `at_once` bounds the items in progress, not the requests. An item queries one pool after the other, so as many items
    as all pools can process together keep every pool busy. `report` gets the number of items that this call has
    finished.

    An exception other than Dropped ends the run; finished items are in the progress file.
    """

    async def work(item: WorkItem) -> bool:
        progress.finish(item, await make_one(item, make, pools))
        return True

    left = [item for item in items if item.id not in progress.done or progress.done[item.id].passing]
    try:
        await process_all(left, work, at_once, report)
        again = [item for item in left if progress.done[item.id].passing]
        if again and len(again) < len(left):  # if no pool ever answered, an immediate retry is useless
            tell(f"{len(again)} items had transient failures and are retried")
            await process_all(again, work, at_once, lambda done: report(len(left) - len(again) + done))
    finally:
        progress.close()


async def make_one(item: WorkItem, make: Make, pools: Pools) -> ItemResult:
    """Process one item to its end, with every requested text."""
    desk = Desk(pools)
    try:
        made = await make(item, desk)
    except Dropped as end:
        made = ItemResult(reason=end.reason, detail=end.detail, passing=end.passing)
    return dataclasses.replace(made, notes=(*desk.notes, *made.notes), texts=tuple(desk.texts))
