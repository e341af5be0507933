"""The runner on scripted pools and an injected clock: questions, retries and stored results."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from hamr.apps.data.recipes.runner import Desk, Dropped, Pools, run_recipe
from hamr.apps.data.recipes.teachers import Teacher, Teachers, teacher_problem, without_thought
from hamr.data.progress import ItemResult, WorkItem, WorkProgress, item_key, read_progress, summary
from hamr.errors import VerdictUnparsable
from hamr.types import Answer, Question


def items(*names: str, version: int = 0) -> list[WorkItem]:
    return [WorkItem(id=name, key=item_key(name, version), content=name) for name in names]


def one_teacher(ask, judge=None) -> Pools:
    return Pools(teachers=Teachers({"t": Teacher(ask=ask)}), judge=judge)


async def make(item: WorkItem, desk: Desk) -> ItemResult:
    text = await desk.teacher("write", Question(prompt="x.en", affinity=item.id))
    if text == "bad":
        raise Dropped("tags", "none of them")
    return ItemResult(kept={"text": text}, notes=("written",))


def says(**texts: str | Answer):
    async def ask(question: Question) -> Answer:
        said = texts[question.affinity]
        return said if isinstance(said, Answer) else Answer(text=said)

    return ask


async def run(todo, pools, progress, **settings) -> list[str]:
    told: list[str] = []
    await run_recipe(todo, make, pools, progress, at_once=settings.pop("at_once", 4), tell=told.append, **settings)
    return told


async def test_all_texts_are_recorded_and_drops_name_their_check(tmp_path: Path) -> None:
    todo = items("a", "b", "c")
    progress = WorkProgress.of(tmp_path / "p.jsonl", todo)
    await run(todo, one_teacher(says(a="good", b="bad", c=Answer(failure="unparsable", reasoning="half a"))), progress)
    assert progress.done["a"].kept == {"text": "good"}
    assert (progress.done["b"].reason, progress.done["b"].detail) == ("tags", "none of them")
    assert progress.done["c"].reason == "teacher: unparsable"
    assert [progress.whole(name).texts[0]["text"] for name in "abc"] == ["good", "bad", "half a"]
    assert progress.whole("a").texts[0] == {"step": "write", "by": "t", "text": "good"}
    assert summary(progress.done.values()) == [
        ("kept", 1), ("dropped: tags", 1), ("dropped: teacher: unparsable", 1), ("written", 1),
    ]  # fmt: skip


async def test_resumed_run_retries_only_transient_failures(tmp_path: Path) -> None:
    todo = items("a", "b", "c")
    path = tmp_path / "p.jsonl"
    away = Answer(failure="unavailable")
    first = WorkProgress.of(path, todo)
    told = await run(todo, one_teacher(says(a="good", b="bad", c=away)), first)
    assert first.done["c"].passing
    assert "1 items had transient failures and are retried" in told
    again = WorkProgress.of(path, todo)
    assert set(again.done) == {"a", "b"}
    assert again.done["a"] == first.done["a"]
    asked = []

    async def ask(question: Question) -> Answer:
        asked.append(question.affinity)
        return Answer(text="late")

    await run(todo, one_teacher(ask), again)
    assert asked == ["c"]
    assert again.done["c"].kept == {"text": "late"}
    assert WorkProgress.of(path, items("a", "b", "c", version=1)).done == {}, "another recipe is another result"


async def test_transient_failure_is_retried_in_the_same_run(tmp_path: Path) -> None:
    counts: dict[str, int] = {}

    async def ask(question: Question) -> Answer:
        counts[question.affinity] = counts.get(question.affinity, 0) + 1
        late = question.affinity == "b" and counts["b"] == 1
        return Answer(failure="timeout") if late else Answer(text="good")

    todo = items("a", "b")
    progress = WorkProgress.of(tmp_path / "p.jsonl", todo)
    await run(todo, one_teacher(ask), progress)
    assert counts == {"a": 1, "b": 2}
    assert all(made.kept for made in progress.done.values())
    assert len(list(read_progress(tmp_path / "p.jsonl"))) == 2


async def test_unavailable_pools_are_not_retried_in_the_same_run(tmp_path: Path) -> None:
    counts = 0

    async def ask(question: Question) -> Answer:
        nonlocal counts
        counts += 1
        return Answer(failure="unavailable")

    todo = items("a", "b")
    progress = WorkProgress.of(tmp_path / "p.jsonl", todo)
    await run(todo, one_teacher(ask), progress)
    assert counts == 2
    assert ("temporary failure, to be retried: teacher: unavailable", 2) in summary(progress.done.values())
    assert not (tmp_path / "p.jsonl").exists()


async def test_truncated_row_is_recomputed(tmp_path: Path) -> None:
    todo = items("a", "b")
    path = tmp_path / "p.jsonl"
    await run(todo, one_teacher(says(a="good", b="schön")), WorkProgress.of(path, todo), at_once=1)
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    assert set(WorkProgress.of(path, todo).done) == {"a"}
    assert path.read_bytes() == whole[: whole.index(b"\n") + 1]
    path.write_bytes(whole[:7])
    assert WorkProgress.of(path, todo).done == {}


async def test_texts_are_stored_on_disk_and_not_in_memory(tmp_path: Path) -> None:
    todo = items("a", "b", "c")
    path = tmp_path / "p.jsonl"
    first = WorkProgress.of(path, todo)
    await run(todo[:2], one_teacher(says(a="good", b="schön")), first)
    path.write_bytes(b"\n" + path.read_bytes())
    again = WorkProgress.of(path, todo)
    await run(todo, one_teacher(says(c="x" * (3 << 20))), again)
    for progress in (again, WorkProgress.of(path, todo)):
        assert all(made.texts == () for made in progress.done.values())
        assert [progress.whole(name).kept for name in "ab"] == [{"text": "good"}, {"text": "schön"}]
        assert [len(progress.whole(name).texts[0]["text"]) for name in "abc"] == [4, 5, 3 << 20]


async def test_kill_during_torn_row_repair_loses_no_results(tmp_path: Path, monkeypatch) -> None:
    todo = items("a", "b")
    path = tmp_path / "p.jsonl"
    await run(todo, one_teacher(says(a="good", b="y" * (3 << 20))), WorkProgress.of(path, todo), at_once=1)
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])

    def killed(*_: object) -> None:
        raise RuntimeError("killed")

    monkeypatch.setattr(Path, "write_bytes", killed)
    assert set(WorkProgress.of(path, todo).done) == {"a"}
    assert path.read_bytes() == whole[: whole.index(b"\n") + 1]


async def test_finished_items_are_written_before_a_recipe_error(tmp_path: Path) -> None:
    async def breaks(item: WorkItem, desk: Desk) -> ItemResult:
        if item.id == "b":
            raise KeyError("a mistake in the recipe")
        return await make(item, desk)

    todo = items("a", "b", "c")
    progress = WorkProgress.of(tmp_path / "p.jsonl", todo)
    pools = one_teacher(says(a="good", c="good"))
    with pytest.raises(KeyError):
        await run_recipe(todo, breaks, pools, progress, at_once=1, tell=lambda line: None)
    assert [row["id"] for _, row in read_progress(tmp_path / "p.jsonl")] == ["a"]


async def test_concurrency_reaches_its_limit_and_never_exceeds_it(tmp_path: Path) -> None:
    under_way, most = 0, 0

    async def ask(question: Question) -> Answer:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        return Answer(text="good")

    todo = items(*(f"i{n}" for n in range(40)))
    await run(todo, one_teacher(ask), WorkProgress.of(tmp_path / "p.jsonl", todo), at_once=7)
    assert most == 7


async def test_progress_counts_items_finished_by_this_call(tmp_path: Path) -> None:
    counts: dict[str, int] = {}

    async def ask(question: Question) -> Answer:
        counts[question.affinity] = counts.get(question.affinity, 0) + 1
        late = question.affinity == "b" and counts["b"] == 1
        return Answer(failure="timeout") if late else Answer(text="good")

    todo, done = items("a", "b", "c"), []
    progress = WorkProgress.of(tmp_path / "p.jsonl", todo)
    told = await run(todo, one_teacher(ask), progress, at_once=1, report=done.append)
    assert done == [1, 2, 3, 3]
    assert told == ["1 items had transient failures and are retried"]


async def test_unparsable_verdict_is_requested_once_more() -> None:
    asked = []

    async def judge(question: Question) -> Answer:
        asked.append(question.attempt)
        return Answer(text="no verdict" if question.attempt == 0 else "7")

    def read(text: str) -> int:
        if not text.isdigit():
            raise VerdictUnparsable(text)
        return int(text)

    def ask(attempt: int) -> Question:
        return Question(prompt="x.en", attempt=attempt)

    desk = Desk(one_teacher(says(), judge))
    assert await desk.read_judge("check", ask, read) == 7
    assert asked == [0, 1]
    assert [text["text"] for text in desk.texts] == ["no verdict", "7"]
    with pytest.raises(Dropped) as dropped:
        await desk.read_judge("check", lambda attempt: Question(prompt="x.en", attempt=0), read)
    assert (dropped.value.reason, dropped.value.passing) == ("judge: unparsable", False)


# --- teachers ----------------------------------------------------------------------------------


async def test_teachers_are_balanced_by_capacity_with_item_affinity() -> None:
    async def ask(question: Question) -> Answer:
        await asyncio.sleep(0)
        return Answer(text="x")

    teachers = Teachers({"small": Teacher(ask=ask, capacity=1), "large": Teacher(ask=ask, capacity=3)})
    await asyncio.gather(*(teachers.ask(Question(prompt="x.en")) for _ in range(40)))
    assert teachers.answered == {"small": 10, "large": 30}
    assert (await teachers.ask(Question(prompt="x.en"), "small"))[0] == "small"


async def test_dead_teacher_receives_no_items_and_loses_none(tmp_path: Path) -> None:
    asked = 0

    async def dead(question: Question) -> Answer:
        nonlocal asked
        asked += 1
        return Answer(failure="unavailable")

    async def alive(question: Question) -> Answer:
        await asyncio.sleep(0)
        return Answer(text="good")

    pools = Pools(teachers=Teachers({"dead": Teacher(ask=dead, capacity=4), "alive": Teacher(ask=alive, capacity=4)}))
    todo = items(*(f"i{n}" for n in range(100)))
    progress = WorkProgress.of(tmp_path / "p.jsonl", todo)
    await run(todo, pools, progress, at_once=8)
    assert all(made.kept for made in progress.done.values())
    assert asked < 20


@pytest.mark.parametrize(
    ("text", "language", "check"),
    [
        (" \n", "en", "teacher: nothing"),
        ("I'm sorry, but I can't help with that.", "en", "teacher: refused"),
        ("抱歉，我无法完成这个请求。", "zh", "teacher: refused"),
        ("I call the tool now and then " * 9, "en", "teacher: loops"),
        ("a b c " * 40, "en", "teacher: loops"),
        ("我先查询订单，然后回复客户。", "en", "teacher: other language"),
        ("I look the order up, then I reply.", "zh", "teacher: other language"),
        ("我调用 lookup_order 查询订单状态，然后回复客户。", "zh", None),
        ("I look the order up, then I reply.", "en", None),
        ("I can't refund it before I know the order number, so I ask for it.", "en", None),
    ],
)
def test_unusable_teacher_answers_are_rejected(text: str, language, check: str | None) -> None:
    found = teacher_problem(text, language)
    assert (found and found.check) == check


def test_leading_thought_is_ignored() -> None:
    assert without_thought("<think>hm</think>\n\nfine") == "fine"
    assert without_thought("fine <think>x</think>") == "fine <think>x</think>"


def test_item_keys_differ_by_content() -> None:
    assert item_key({"a": 1, "b": 2}) == item_key({"b": 2, "a": 1})
    assert len({item_key(1), item_key("1"), item_key([1]), item_key(None)}) == 4
    assert json.loads(json.dumps(item_key("x"))) == item_key("x")
