"""What every recipe runs on: items through a recipe's own steps, some at once, each finished one written down at once.

A recipe is a coroutine `make(item, desk) -> Made`. It asks its pools through the desk, which keeps every text that came
back. The runner keeps `at_once` items under way, appends each finished one to a progress file and tells how far it is;
the same call goes on where an earlier one stopped.

A failure in passing (nobody there, too late) says nothing about the item: it is put once more at the end of the run,
and again by the next call. Everything else is final, kept or dropped.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from io import TextIOWrapper
from pathlib import Path
from typing import Any, Literal, TypeVar

from hamr.augmentation.teachers import PASSING, Teachers
from hamr.data.samples import read_rows
from hamr.errors import VerdictUnparsable
from hamr.protocols import Ask
from hamr.types import Answer, Question

Read = TypeVar("Read")
Judge = Literal["judge", "second"]

_VERSION = 1
_TELL_EVERY_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Item:
    """One thing to make something of. `key` tells whether what an earlier call made of it still holds
    (`item_key`); `content` is the recipe's own."""

    id: str
    key: str
    content: Any


@dataclass(frozen=True, kw_only=True)
class Made:
    """What became of an item. `kept` is JSON-like; None: dropped, by the check `reason`. `notes` are counted in the
    table (repaired, a candidate rejected by ...). `texts`: every text that was asked for, in order."""

    kept: Mapping[str, Any] | None = None
    reason: str = ""
    detail: str = ""
    notes: tuple[str, ...] = ()
    passing: bool = False
    texts: tuple[Mapping[str, Any], ...] = ()


class Dropped(Exception):
    """Ends an item: `reason` is the check's name, `detail` what it found."""

    def __init__(self, reason: str, detail: str = "", *, passing: bool = False) -> None:
        super().__init__(reason, detail)
        self.reason, self.detail, self.passing = reason, detail, passing


@dataclass(frozen=True, kw_only=True)
class Pools:
    """Who is asked: teachers that share the items among them, a judge, and a second one of another kind; None
    where the recipe has no use for one."""

    teachers: Teachers
    judge: Ask | None = None
    second: Ask | None = None


class Desk:
    """One item's way to the pools. Keeps each text with its step and who wrote it."""

    def __init__(self, pools: Pools) -> None:
        self._pools, self._teacher = pools, ""
        self.texts: list[dict[str, Any]] = []
        self.notes: list[str] = []

    async def teacher(self, step: str, question: Question) -> str:
        """A teacher's text. An item stays with the teacher that it began with while that one answers.

        Raises Dropped where none answers, or what came was cut off.
        """
        answer = await self.teacher_answer(step, question)
        if answer.failure is not None or answer.text is None:
            raise Dropped(f"teacher: {answer.failure or 'unparsable'}", answer.detail)
        return answer.text

    async def teacher_answer(self, step: str, question: Question) -> Answer:
        """A teacher's whole answer, cut off or not. Raises Dropped where none answers."""
        return _in_time(await self.ask_teacher(step, question), "teacher")

    async def ask_teacher(self, step: str, question: Question) -> Answer:
        """A teacher's answer or failure, whatever it is."""
        self._teacher, answer = await self._pools.teachers.ask(question, self._teacher)
        self._keep(step, self._teacher, answer)
        return answer

    async def judge(self, step: str, question: Question, by: Judge = "judge") -> str:
        """A judge's text. Raises Dropped where there is none."""
        answer = await self.verdict(step, question, by)
        if answer.failure is not None or answer.text is None:
            raise Dropped(f"{by}: {answer.failure or 'unparsable'}", answer.detail)
        return answer.text

    async def judged(
        self, step: str, ask: Callable[[int], Question], read: Callable[[str], Read], by: Judge = "judge"
    ) -> Read:
        """A judge's text, read; asked once more (attempt 1) where it cannot be. Raises Dropped."""
        for attempt in (0, 1):
            text = await self.judge(step, ask(attempt), by)
            try:
                return read(text)
            except VerdictUnparsable as error:
                unread = str(error)
        raise Dropped(f"{by}: unparsable", unread)

    async def verdict(self, step: str, question: Question, by: Judge = "judge") -> Answer:
        """A judge's whole answer, label and score included. Raises Dropped where it failed in passing."""
        return _in_time(await self.ask_judge(step, question, by), by)

    async def ask_judge(self, step: str, question: Question, by: Judge = "judge") -> Answer:
        """A judge's answer or failure, whatever it is."""
        ask = self._pools.judge if by == "judge" else self._pools.second
        assert ask is not None, "the recipe asks this judge, so it was started"
        answer = await ask(question)
        self._keep(step, by, answer)
        return answer

    def _keep(self, step: str, name: str, answer: Answer) -> None:
        text = answer.text if answer.text is not None else answer.reasoning
        verdict = {} if answer.verdict is None else {"verdict": answer.verdict}
        self.texts.append({"step": step, "by": name, "text": text, **verdict})


def _in_time(answer: Answer, who: str) -> Answer:
    if answer.failure in PASSING:
        raise Dropped(f"{who}: {answer.failure}", answer.detail, passing=True)
    return answer


Make = Callable[[Item, Desk], Awaitable[Made]]


def item_key(*told: Any) -> str:
    """What a result depends on, in few letters: with the same key it need not be made again."""
    text = json.dumps([_VERSION, *told], sort_keys=True, ensure_ascii=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# --- what is done ------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Progress:
    """Results by item id, and the file that they are appended to as they come."""

    path: Path
    done: dict[str, Made] = field(default_factory=dict)
    _file: TextIOWrapper | None = field(default=None, repr=False)

    @classmethod
    def of(cls, path: Path, items: Iterable[Item]) -> Progress:
        """What an earlier call left in `path` of these very items (same id and key)."""
        keys = {item.id: item.key for item in items}
        done = {}
        for row in read_progress(path):
            if isinstance(row, dict) and row.get("id") in keys and keys[row["id"]] == row.get("key"):
                made = row["made"]
                lists = {name: tuple(made[name]) for name in ("notes", "texts")}
                done[row["id"]] = Made(**{**made, **lists})
        return cls(path=path, done=done)

    def finish(self, item: Item, made: Made) -> None:
        """Keeps the result; one that failed in passing is not written down, so that the next call tries it again."""
        self.done[item.id] = made
        if made.passing:
            return
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("a", encoding="utf-8")
        row = {"id": item.id, "key": item.key, "made": vars(made)}
        self._file.write(json.dumps(row, ensure_ascii=True) + "\n")
        self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def read_progress(path: Path) -> list[Any]:
    """The rows of an earlier call; a last line that was cut off when it was killed does not count, and goes."""
    if not path.is_file():
        return []
    raw = path.read_bytes()
    if not raw.endswith(b"\n"):
        path.write_bytes(raw[: raw.rfind(b"\n") + 1])
    return [row for _, row in read_rows(path)] if path.stat().st_size else []


# --- running -----------------------------------------------------------------------------------


async def run_recipe(
    items: Sequence[Item],
    make: Make,
    pools: Pools,
    progress: Progress,
    *,
    at_once: int,
    tell: Callable[[str], None] = print,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Makes what is not made yet. `at_once` bounds the items under way, not the questions: an item asks one pool after
    the other, so as many items as all pools can take together keep each of them busy.

    A recipe that raises anything but Dropped ends the run; what was finished before is in the progress file.
    """
    left = [item for item in items if item.id not in progress.done or progress.done[item.id].passing]
    watch = _Watch(len(items), len(items) - len(left), tell, clock)
    try:
        await _round(left, make, pools, progress, at_once, watch)
        again = [item for item in left if progress.done[item.id].passing]
        if again and len(again) < len(left):  # where nobody ever answered, asking at once again is no use
            watch.back(len(again))
            await _round(again, make, pools, progress, at_once, watch)
    finally:
        progress.close()


async def _round(
    items: Sequence[Item], make: Make, pools: Pools, progress: Progress, at_once: int, watch: _Watch
) -> None:
    waiting = iter(items)

    async def work() -> None:
        for item in waiting:
            progress.finish(item, await make_one(item, make, pools))
            watch.one_more()

    workers = [asyncio.create_task(work()) for _ in range(min(at_once, len(items)))]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()


async def make_one(item: Item, make: Make, pools: Pools) -> Made:
    """One item to its end, with every text that was asked for."""
    desk = Desk(pools)
    try:
        made = await make(item, desk)
    except Dropped as end:
        made = Made(reason=end.reason, detail=end.detail, passing=end.passing)
    return dataclasses.replace(made, notes=(*desk.notes, *made.notes), texts=tuple(desk.texts))


class _Watch:
    """Tells how far it is: every tenth of the way and twice a minute, with an estimate of what is left."""

    def __init__(self, total: int, done: int, tell: Callable[[str], None], clock: Callable[[], float]) -> None:
        self.total, self.done, self.tell, self.clock = total, done, tell, clock
        self.first, self.started = done, clock()
        self.told_at, self.told_done = self.started, done

    def one_more(self) -> None:
        self.done += 1
        now = self.clock()
        if now - self.told_at < _TELL_EVERY_S and self.done - self.told_done < max(1, self.total / 10):
            return
        self.told_at, self.told_done = now, self.done
        rate = (self.done - self.first) / max(now - self.started, 1e-9)
        rest = (self.total - self.done) / rate if rate > 0 else 0.0
        self.tell(f"{self.done}/{self.total} items, {60 * rate:.0f} a minute, about {duration(rest)} left")

    def back(self, count: int) -> None:
        """So many are put once more."""
        self.done -= count
        self.first = min(self.first, self.done)
        self.tell(f"{count} items failed in passing and are tried again")


def duration(seconds: float) -> str:
    """
    >>> duration(40), duration(200), duration(9000)
    ('40 s', '3 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


# --- the end -----------------------------------------------------------------------------------


def summary(made: Iterable[Made]) -> list[tuple[str, int]]:
    """(what, how many): kept, dropped by each check (commonest first), failed in passing, then the notes."""
    results = list(made)
    dropped = Counter(m.reason for m in results if m.kept is None and not m.passing)
    passing = Counter(m.reason for m in results if m.kept is None and m.passing)
    notes = Counter(note for m in results for note in m.notes)
    return [
        ("kept", sum(m.kept is not None for m in results)),
        *((f"dropped: {reason}", count) for reason, count in dropped.most_common()),
        *((f"in passing, to be tried again: {reason}", count) for reason, count in passing.most_common()),
        *notes.most_common(),
    ]
