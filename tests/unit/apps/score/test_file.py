"""Scoring a file in one process: bounded memory, stable order, and the same output after any interruption."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from hamr.apps.score.file import score_file, scoring_progress
from hamr.apps.score.output import SIDECAR, ScoreOutput
from hamr.apps.score.summary import Tally
from hamr.bench.folder import differences
from hamr.cascade.router import RewardRouter
from hamr.config.rewards import RewardsConfig
from hamr.data.responses import ResponseGroup
from hamr.errors import BadInput, DataError
from hamr.telemetry.record_json import record_from_json
from hamr.types import Answer, Failure, Question, RewardRecord, Scored
from tests.unit.apps.score.rows import ROW

SETTINGS = {"rewards": {"weight": 1.0}, "labels": ("yes", "no")}


def write_input(path: Path, sizes: Sequence[int], start: int = 0) -> Path:
    with path.open("w") as file:
        for line, size in enumerate(sizes, start=start):
            texts = [f"Answer {line}.{i}: well, we will see." for i in range(size)]
            file.write(json.dumps({**ROW, "id": f"s{line % 3}", "responses": texts}) + "\n")
    return path


async def reranker(question: Question) -> Answer:
    """A score that follows from the words alone."""
    await asyncio.sleep(0)
    return Answer(score=(len(question.variables["statement_b"]) * 37 % 100) / 100, verdict="yes")


async def judge(question: Question) -> Answer:
    await asyncio.sleep(0)
    return Answer(score=0.5, verdict="part")


def scripted(cache_size: int = 16) -> RewardRouter:
    """The real router on scorers in this process."""
    rewards = RewardsConfig.model_validate({"format": {"weight": 0.2}, "length": {"weight": 0.1}})
    return RewardRouter(
        rewards,
        {"reranker": reranker, "judge": judge},
        count_tokens=lambda text: len(text.split()),
        deadline_s=60.0,
        cache_size=cache_size,
        clock=lambda: 0.0,
    )


def run(
    source: Path,
    target: Path,
    *,
    resume: bool = False,
    at_once: int = 8,
    watch: Callable[[int, int], None] = lambda size, responses: None,
    score: Callable | None = None,
) -> Tally:
    tally = Tally()

    async def work() -> None:
        router = scripted()

        async def group(g: ResponseGroup) -> Sequence[RewardRecord]:
            return await asyncio.gather(*(router.score(g.sample, r) for r in g.rollouts("score")))

        await score_file(output, groups, score or group, tally, at_once=at_once, report=watch)

    with ScoreOutput(target, source, SETTINGS, resume=resume) as output:
        groups = ((group, raw, ()) for group, raw in output.remaining(tally.add))
        asyncio.run(work())
    return tally


@pytest.mark.slow
def test_memory_is_independent_of_the_number_of_responses(tmp_path: Path) -> None:
    """Between the first tenth and the end, fewer than one object per ten responses is added, and at most eight groups
    are in flight.
    """
    source = write_input(tmp_path / "in.jsonl", [4] * 2500)
    target = tmp_path / "out.jsonl"
    router = scripted()
    under_way = most = 0
    held: list[int] = []

    async def score(group: ResponseGroup) -> Sequence[RewardRecord]:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        records = await asyncio.gather(*(router.score(group.sample, r) for r in group.rollouts("score")))
        under_way -= 1
        return records

    def watch(size: int, responses: int) -> None:
        if responses in (1000, 10_000):
            gc.collect()
            held.append(len(gc.get_objects()))

    tally = run(source, target, watch=watch, score=score)
    assert (tally.groups, tally.responses) == (2500, 10_000)
    assert 1 < most <= 8
    early, late = held
    assert late - early < 900
    keys = [record_from_json(line).key for line in target.read_text().splitlines()]
    assert [(k.step, k.sample) for k in keys] == [(line, i) for line in range(1, 2501) for i in range(4)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes, bytes]:
    folder = tmp_path_factory.mktemp("scored")
    source = write_input(folder / "in.jsonl", [2, 1, 3, 2, 1])
    run(source, folder / "out.jsonl")
    return source, (folder / "out.jsonl").read_bytes(), (folder / f"out.jsonl{SIDECAR}").read_bytes()


@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_resumed_output_equals_the_uninterrupted_one(
    finished: tuple[Path, bytes, bytes], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    source, whole, sidecar = finished
    cut = data.draw(st.integers(0, len(whole)))
    target = tmp_path_factory.mktemp("cut") / "out.jsonl"
    target.write_bytes(whole[:cut])
    target.with_name(target.name + SIDECAR).write_bytes(sidecar)
    tally = run(source, target, resume=True)
    assert target.read_bytes() == whole
    assert (tally.groups, tally.responses) == (5, 9), "what was there already counts into the summary"
    assert target.with_name(target.name + SIDECAR).read_bytes() == sidecar


@pytest.mark.parametrize("after", range(1, 5))
def test_stopped_run_writes_whole_groups_and_resumes_after_them(
    finished: tuple[Path, bytes, bytes], tmp_path: Path, after: int
) -> None:
    source, whole, _ = finished
    target = tmp_path / "out.jsonl"
    groups = count(1)

    def stop(size: int, responses: int) -> None:
        if next(groups) == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(source, target, watch=stop)
    left = target.read_bytes()
    assert whole.startswith(left) and left.endswith(b"\n")
    scored_again: list[int] = []
    router = scripted()

    async def score(group: ResponseGroup) -> Sequence[RewardRecord]:
        scored_again.append(group.number)
        return await asyncio.gather(*(router.score(group.sample, r) for r in group.rollouts("score")))

    run(source, target, resume=True, score=score)
    assert target.read_bytes() == whole
    assert scored_again == list(range(after + 1, 6))


def test_a_finished_output_is_resumed_without_scoring(finished: tuple[Path, bytes, bytes], tmp_path: Path) -> None:
    source, whole, sidecar = finished
    target = tmp_path / "out.jsonl"
    target.write_bytes(whole)
    target.with_name(target.name + SIDECAR).write_bytes(sidecar)
    with ScoreOutput(target, source, SETTINGS, resume=True) as output:
        assert list(output.remaining(lambda records: None)) == []
        assert (output.done.groups, output.done.responses) == (5, 9)
        with pytest.raises(BadInput, match="another `hamr score` is writing it"):
            ScoreOutput(target, source, SETTINGS, resume=True)
    assert target.read_bytes() == whole


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("settings", r"was started with rewards\.weight=1\.0, which is now 2\.0"),
        ("early line", r"input: .*has changed in its first \d+ bytes"),
        ("shorter input", r"input: .*has changed in its first \d+ bytes"),
        ("no sidecar", "sidecar|is missing or unreadable"),
        ("other records", r"the record of response 1 of .*in\.jsonl:3 belongs to another"),
        ("damaged middle", r"the record of response 1 of .*in\.jsonl:2 is damaged, others follow"),
        ("longer output", "more records than the input"),
    ],
)
def test_output_of_other_work_is_rejected_unchanged(
    finished: tuple[Path, bytes, bytes], tmp_path: Path, change: str, says: str
) -> None:
    original, whole, sidecar = finished
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(original.read_bytes())
    lines = whole.splitlines(keepends=True)
    now = dict(SETTINGS)
    if change == "settings":
        now["rewards"] = {"weight": 2.0}
    elif change == "early line":
        source.write_bytes(source.read_bytes().replace(b'"hi"', b'"ho"', 1))
    elif change == "shorter input":
        source.write_bytes(b"".join(source.read_bytes().splitlines(keepends=True)[:-1]))
    elif change == "other records":
        lines[3], lines[4] = lines[4], lines[3]
    elif change == "damaged middle":
        lines[2] = lines[2][:40] + b"\n"
    elif change == "longer output":
        lines.append(lines[-1])
    target.write_bytes(b"".join(lines))
    if change != "no sidecar":
        target.with_name(target.name + SIDECAR).write_bytes(sidecar)
    with pytest.raises(BadInput, match=says), ScoreOutput(target, source, now, resume=True) as output:
        list(output.remaining(lambda records: None))
    assert target.read_bytes() == b"".join(lines)


def test_corrected_or_appended_line_is_scored_on_resume(tmp_path: Path) -> None:
    source, target = write_input(tmp_path / "in.jsonl", [1, 2]), tmp_path / "out.jsonl"
    good = source.read_text()
    source.write_text(good + '{"id": 3}\n')
    with pytest.raises(DataError, match=r"in\.jsonl:3: id"):
        run(source, target)
    assert len(target.read_text().splitlines()) == 3, "all that came before the fault is kept"
    source.write_text(good + json.dumps({**ROW, "response": "mended"}) + "\n")
    assert run(source, target, resume=True).responses == 4
    assert all(isinstance(record_from_json(line).total, Scored) for line in target.read_text().splitlines())


def test_records_hide_secrets_and_keep_the_response(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure may contain a key; the response is compared on resume."""
    monkeypatch.setenv("FOO_API_KEY", "canary-7f3a")
    source, target = write_input(tmp_path / "in.jsonl", [1]), tmp_path / "out.jsonl"

    async def score(group: ResponseGroup) -> Sequence[RewardRecord]:
        failed = Failure(detail="rejected canary-7f3a")
        return [RewardRecord(key=r.key, total=failed, response=r.text) for r in group.rollouts("score")]

    run(source, target, score=score)
    assert "canary" not in target.read_text() and "rejected [redacted]" in target.read_text()
    assert run(source, target, resume=True).responses == 1


def test_non_empty_existing_output_is_rejected(tmp_path: Path) -> None:
    source, target = write_input(tmp_path / "in.jsonl", [1]), tmp_path / "deep" / "out.jsonl"
    run(source, target)
    with pytest.raises(BadInput, match=r"output: .*exists; continue with resume=true"):
        run(source, target)
    target.write_bytes(b"")
    assert run(source, target, resume=True).responses == 1


def test_differences_name_the_innermost_key() -> None:
    assert list(differences({"a": [1], "b": {"c": None}}, {"a": [2], "d": 1})) == [
        ("a", [1], [2]), ("b", {"c": None}, None), ("d", None, 1)
    ]  # fmt: skip


def test_progress_on_a_terminal_shows_rate_and_remaining_time(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as file:
        console = Console(file=file, width=140, force_terminal=True)
        with scoring_progress(1000, 0, console) as report:
            report(500, 7)
    said = (tmp_path / "log").read_text()
    assert "7 responses" in said and "50%" in said
