"""Failed responses of a scored file: exit code, last line, scoring them again, and invalid lines of the input."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hamr.apps.score import run as score_run
from hamr.apps.score.run import score
from hamr.config.load import load_config
from hamr.config.schema import Config
from hamr.data.responses import ResponseGroup
from hamr.errors import BadInput, DataError
from hamr.telemetry.record_json import record_from_json
from hamr.types import Component, FunctionFailed, JudgeUnavailable, RewardRecord, Scored
from tests.unit.apps.score.rows import ROW

CONFIG = load_config(["experiment=smoke", "score.groups_in_flight=2"])
Place = tuple[int, int]
"""Line of the input, and response of the line."""


class ScriptedSystem:
    """Scores every response 1.0, except those in `down`. Ends like Ctrl-C at the group of line `stop`."""

    down: ClassVar[Collection[Place]] = ()
    stop: ClassVar[int] = 0
    asked: ClassVar[list[int]] = []

    def __init__(self, config: Config, **_: Any) -> None: ...

    def __enter__(self) -> ScriptedSystem:
        return self

    def __exit__(self, *_: object) -> None: ...

    async def ascore_group(self, group: ResponseGroup) -> Sequence[RewardRecord]:
        if group.number == self.stop:
            raise KeyboardInterrupt
        self.asked.append(group.number)
        return [
            RewardRecord(
                key=rollout.key,
                total=JudgeUnavailable() if (group.number, index) in self.down else Scored(value=1.0),
                components=(),
                action=None,
                band="none",
                response=rollout.text,
            )
            for index, rollout in enumerate(group.rollouts("score"))
        ]


@pytest.fixture(scope="module", autouse=True)
def scripted() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(score_run, "RewardSystem", ScriptedSystem)
        patch.setattr(score_run, "plot", lambda tally, path: None)
        yield


def run(source: Path, *, down: Collection[Place] = (), stop: int = 0, config: Config = CONFIG, **options: bool) -> int:
    """Score `source` into `out.jsonl` next to it."""
    ScriptedSystem.down, ScriptedSystem.stop, ScriptedSystem.asked = down, stop, []
    return score(config, source, source.with_name("out.jsonl"), **options)


def write_input(folder: Path, sizes: Sequence[int]) -> Path:
    rows = [{**ROW, "id": f"s{n}", "responses": [f"{n}.{i}" for i in range(size)]} for n, size in enumerate(sizes)]
    return write_lines(folder, *map(json.dumps, rows))


def write_lines(folder: Path, *lines: str) -> Path:
    path = folder / "in.jsonl"
    path.write_text("".join(line + "\n" for line in lines))
    return path


def failed(source: Path) -> list[bool]:
    lines = source.with_name("out.jsonl").read_text().splitlines()
    return [not record_from_json(line).total.ok for line in lines]


@given(st.data())
def test_a_retry_scores_failed_groups_again_and_keeps_the_others(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    sizes = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=5))
    places = [(line, i) for line, size in enumerate(sizes, start=1) for i in range(size)]
    down = data.draw(st.sets(st.sampled_from(places)))
    stop = data.draw(st.integers(0, len(sizes)))
    source = write_input(tmp_path_factory.mktemp("retry"), sizes)
    output = source.with_name("out.jsonl")
    run(source)
    sound = output.read_bytes()
    output.unlink()
    run(source, down=down)
    before = output.read_bytes()
    assert sum(failed(source)) == len(down)
    to_score = sorted({line for line, _ in down})
    if stop in to_score:
        with pytest.raises(KeyboardInterrupt):
            run(source, retry=True, stop=stop)
        assert output.read_bytes() == before, "the old file stays until the new one is complete"
        assert ScriptedSystem.asked in ([line for line in to_score if line < stop], to_score)
    assert run(source, retry=True) == 0
    assert set(ScriptedSystem.asked) <= set(to_score)
    assert output.read_bytes() == sound
    assert sorted(path.name for path in source.parent.iterdir()) == ["in.jsonl", "out.jsonl", "out.jsonl.resume.json"]
    assert run(source, resume=True) == 0 and ScriptedSystem.asked == []


def test_a_retry_also_continues_an_interrupted_output(tmp_path: Path) -> None:
    source = write_input(tmp_path, [1, 1, 1, 1, 1])
    with pytest.raises(KeyboardInterrupt):
        run(source, down=[(1, 0)], stop=4)
    assert failed(source)[0] and 1 <= len(failed(source)) <= 3
    assert run(source, retry=True) == 0
    assert failed(source) == [False] * 5


def test_a_retry_ignores_an_interrupted_one_of_a_removed_output(tmp_path: Path) -> None:
    source = write_input(tmp_path, [1] * 6)
    run(source, down=[(1, 0), (6, 0)])
    with pytest.raises(KeyboardInterrupt):
        run(source, retry=True, down=[(1, 0)], stop=6)
    assert source.with_name("out.jsonl.retry").exists()
    source.with_name("out.jsonl").unlink()
    run(source, down=[(6, 0)])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl", "out.jsonl.resume.json"]
    assert run(source, retry=True) == 0
    assert ScriptedSystem.asked == [6] and failed(source) == [False] * 6


@pytest.mark.parametrize(
    ("down", "most", "code", "last"),
    [
        (0, 0.0, 0, "0 of 4 responses have no score"),
        (1, 0.25, 0, "1 of 4 responses have no score; retry=failed scores them again"),
        (
            2,
            0.25,
            1,
            "2 of 4 responses have no score, more than score.max_failed_frac=0.25; retry=failed scores them again",
        ),
        (4, 1.0, 0, "4 of 4 responses have no score; retry=failed scores them again"),
    ],
)
def test_the_exit_code_follows_the_share_of_failures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], down: int, most: float, code: int, last: str
) -> None:
    config = load_config(["experiment=smoke", f"score.max_failed_frac={most}"])
    source = write_input(tmp_path, [4])
    assert run(source, down=[(1, i) for i in range(down)], config=config) == code
    assert capsys.readouterr().out.splitlines()[-1] == last
    # A file that was scored before has the same exit code.
    assert run(source, config=config, resume=True) == code


def test_failing_function_shows_its_cause_and_advises_another_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    function = tmp_path / "mine.py"
    function.write_text("def f(sample, response): return 1.0\n")
    config = load_config(["experiment=smoke", f"rewards.custom.f.path={function}:f"])
    source = write_input(tmp_path, [2])
    cause = FunctionFailed(detail="f (mine.py:f) raised KeyError: 'b'\n(mine.py, line 3)")
    failing = (Component(name="f", outcome=cause, weight=1.0),)

    class FailingSystem(ScriptedSystem):
        async def ascore_group(self, group: ResponseGroup) -> Sequence[RewardRecord]:
            records = await super().ascore_group(group)
            return [replace(record, total=cause, components=failing) for record in records]

    monkeypatch.setattr(score_run, "RewardSystem", FailingSystem)
    assert run(source, config=config) == 1
    shown = capsys.readouterr().out.splitlines()
    assert shown[-2] == "first failure of f: function_failed: f (mine.py:f) raised KeyError: 'b' (mine.py, line 3)"
    assert shown[-1].endswith("; if you change f, name another output; otherwise retry=failed scores them again")
    assert run(source, config=config, retry=True) == 1
    function.write_text("def f(sample, response): return 0.5\n")
    with pytest.raises(BadInput, match="name another file"):
        run(source, config=config, retry=True)


def test_share_of_failures_may_equal_the_limit(tmp_path: Path) -> None:
    """In floating point, 0.29 * 100 is below 29."""
    config = load_config(["experiment=smoke", "score.max_failed_frac=0.29"])
    assert run(write_input(tmp_path, [100]), down=[(1, i) for i in range(29)], config=config) == 0


def test_invalid_lines_are_named_and_skipped_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = [json.dumps({**ROW, "id": name, "response": "Hi."}) for name in "ab"]
    both = json.dumps({**ROW, "response": "Hi.", "responses": ["Hi."]})
    source = write_lines(
        tmp_path, "not json", good[0], both, '"\\ud800"', good[1], json.dumps({**ROW, "reply": "[b]Hi."})
    )
    with pytest.raises(DataError, match=r"in\.jsonl:1: line"):
        run(source)
    assert not source.with_name("out.jsonl").exists()
    with pytest.raises(KeyboardInterrupt):
        run(source, skip=True, stop=5)
    assert run(source, skip=True, resume=True) == 0
    lines = source.with_name("out.jsonl").read_text().splitlines()
    assert [(r.key.step, r.key.prompt) for r in map(record_from_json, lines)] == [(2, "a"), (5, "b")]
    shown = capsys.readouterr().out
    for fault in ("in.jsonl:3: response: 'Hi.': the line has `responses` too", "in.jsonl:6: reply: '[b]Hi.': unknown"):
        assert fault in shown
    assert shown.endswith("0 of 2 responses have no score; 4 invalid lines skipped\n")


def test_run_without_a_record_leaves_no_output(tmp_path: Path) -> None:
    source = write_input(tmp_path, [1])
    with pytest.raises(KeyboardInterrupt):
        run(source, stop=1)
    assert list(tmp_path.iterdir()) == [source]


def test_input_without_a_valid_line_is_rejected(tmp_path: Path) -> None:
    source = write_lines(tmp_path, "not json", json.dumps(ROW))
    with pytest.raises(BadInput, match="has no valid line"):
        run(source, skip=True)
    assert not source.with_name("out.jsonl").exists()
