"""`hamr generate` on scripted pools: ledger rows with log-probabilities and rewards, the same after a kill."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from hamr.cli import main
from hamr.config.schema import Config
from hamr.data.responses import ResponseGroup
from hamr.telemetry.ledger import Ledger
from hamr.telemetry.record_json import record_to_dict
from hamr.types import (
    Answer,
    Component,
    JudgeUnavailable,
    NotScored,
    Question,
    Reply,
    RewardRecord,
    Scored,
    ScorerCall,
    ToolCall,
)
from tests.tool_models import run_of, tiny_with_tools
from tests.unit.apps.score.rows import ROW

CALL = '<tool_call>{"name": "lookup", "arguments": {}}</tool_call>'


class Writer:
    """Policy whose answer depends on the sample and the seed only; `dies_at` raises as a kill would."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[Question] = []
        self.configs: list[Config] = []
        self.dies_at: int | None = None
        self.failures: dict[tuple[str, int], str] = {}
        monkeypatch.setattr("hamr.apps.generate.run.with_pools", self.with_pools)

    def with_pools(self, config: Config, names: Sequence[str], work: Callable[..., Any], *, run: str) -> Any:
        self.configs.append(config)
        return asyncio.run(work({name: self.ask for name in names}))

    async def ask(self, question: Question) -> Answer:
        if len(self.asked) == self.dies_at:
            raise KeyboardInterrupt
        self.asked.append(question)
        if failure := self.failures.get((question.affinity, question.seed)):
            return Answer(failure=failure, detail="scripted")  # type: ignore[arg-type]
        text = CALL if question.seed % 2 else f"{question.affinity}, {question.seed}."
        call = ScorerCall(
            pool="p", model="m", prompt_version="", replica="", queue_s=0.0, service_s=0.5, prompt_tokens=5,
            output_tokens=4,
        )  # fmt: skip
        return Answer(text=text, call=call, mean_logprob=-0.1 * (1 + question.seed))


class Rewards:
    """Reward system that scores the length of a response."""

    groups: ClassVar[list[str]] = []

    def __init__(self, config: Config, *, run: str, note: Callable[[str], None]) -> None:
        self.run = run

    def __enter__(self) -> Rewards:
        return self

    def __exit__(self, *error: object) -> None: ...

    async def ascore_group(self, group: ResponseGroup) -> list[RewardRecord]:
        self.groups.append(group.sample.id)
        await asyncio.sleep(0.02 if len(self.groups) == 1 else 0)  # the first group ends last
        return [
            RewardRecord(
                key=rollout.key, total=Scored(value=len(rollout.text) / 100), action=Reply(content=rollout.text),
                components=(Component(name="length", outcome=Scored(value=1.0), weight=1.0),), band="none",
                response=rollout.text,
            )
            for rollout in group.rollouts(self.run)
        ]  # fmt: skip


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Writer:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hamr.apps.generate.run.RewardSystem", Rewards)
    monkeypatch.setattr(Rewards, "groups", [])
    rows = [ROW | {"id": name, "references": [{"action": "reply", "content": f"Hello {name}."}]} for name in "abc"]
    Path("in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Writer(monkeypatch)


def generate(*args: str, policy: str = "judge", output: str = "out") -> int:
    return main(["generate", "input=in.jsonl", f"policy={policy}", f"output={output}", "experiment=smoke", *args])


def rows(folder: str = "out") -> list[RewardRecord]:
    with Ledger(Path(folder, "ledger.sqlite"), readonly=True) as ledger:
        return list(ledger.rows())


def test_every_response_is_a_row_with_its_logprob(writer: Writer, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate("n=2", "temperature=0.7", "max_new_tokens=9") == 0
    found = rows()
    assert [(r.key.run, r.key.step, r.key.prompt, r.key.sample) for r in found] == [
        ("judge", 0, name, number) for name in "abc" for number in (0, 1)
    ]
    assert [r.mean_logprob for r in found[:2]] == [-0.1, -0.2]
    assert (found[0].response, found[0].response_tokens, found[0].seconds) == ("a, 0.", 4, 0.5)
    assert (found[0].action, found[1].action) == (Reply(content="a, 0."), ToolCall(name="lookup"))
    assert {type(r.total) for r in found} == {NotScored}
    asked = writer.asked[0]
    assert (asked.temperature, asked.max_new_tokens, asked.affinity, asked.logprobs) == (0.7, 9, "a", True)
    lines = [json.loads(line) for line in Path("out/generated.jsonl").read_text().splitlines()]
    assert [(line["id"], line["responses"]) for line in lines] == [(name, [f"{name}, 0.", CALL]) for name in "abc"]
    assert "with log-probabilities" in capsys.readouterr().out


def test_rewards_are_those_of_the_reward_system(writer: Writer) -> None:
    assert generate("n=3", "with_rewards=true") == 0
    assert [(r.key.prompt, r.key.sample) for r in rows()] == [(name, i) for name in "abc" for i in range(3)]
    assert rows()[0].total == Scored(value=0.05) and rows()[0].mean_logprob == -0.1


@pytest.mark.parametrize("at", [0, 4, 8])
def test_killed_command_gives_the_same_rows_after_its_repetition(writer: Writer, at: int) -> None:
    assert generate("n=3", "with_rewards=true", output="whole") == 0
    writer.asked.clear()
    writer.dies_at = at
    assert generate("n=3", "with_rewards=true") == 130
    writer.dies_at = None
    assert generate("n=3", "with_rewards=true") == 0
    assert len(writer.asked) == 9, "no response is asked for twice"
    assert [record_to_dict(r) for r in rows()] == [record_to_dict(r) for r in rows("whole")]
    assert Path("out/generated.jsonl").read_bytes() == Path("whole/generated.jsonl").read_bytes()
    assert generate("n=3", "with_rewards=true") == 0 and len(writer.asked) == 9


def test_killed_scoring_continues_after_the_last_group(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert generate("with_rewards=true", output="whole") == 0
    score = Rewards.ascore_group

    async def die(self: Rewards, group: ResponseGroup) -> list[RewardRecord]:
        if group.sample.id == "c":
            raise KeyboardInterrupt
        return await score(self, group)

    monkeypatch.setattr(Rewards, "ascore_group", die)
    assert generate("with_rewards=true", "score.groups_in_flight=1") == 130
    monkeypatch.setattr(Rewards, "ascore_group", score)
    Rewards.groups.clear()
    assert generate("with_rewards=true", "score.groups_in_flight=1") == 0
    assert Rewards.groups == ["c"]
    assert [record_to_dict(r) for r in rows()] == [record_to_dict(r) for r in rows("whole")]


def test_repeated_command_scores_failed_responses_again(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    score = Rewards.ascore_group

    async def fail(self: Rewards, group: ResponseGroup) -> list[RewardRecord]:
        found = await score(self, group)
        return found if group.sample.id != "b" else [replace(r, total=JudgeUnavailable(detail="away")) for r in found]

    monkeypatch.setattr(Rewards, "ascore_group", fail)
    assert generate("n=2", "with_rewards=true") == 1
    monkeypatch.setattr(Rewards, "ascore_group", score)
    Rewards.groups.clear()
    assert generate("n=2", "with_rewards=true") == 0
    assert Rewards.groups == ["b"] and len(rows()) == 6 and all(isinstance(r.total, Scored) for r in rows())


def test_transient_failures_are_asked_again_and_others_left_out(
    writer: Writer, capsys: pytest.CaptureFixture[str]
) -> None:
    writer.failures = {("a", 0): "unparsable", ("b", 0): "timeout"}
    assert generate("n=2") == 1
    assert "the same command asks for them again" in capsys.readouterr().err
    del writer.failures["b", 0]
    writer.asked.clear()
    assert generate("n=2") == 0
    assert [question.affinity for question in writer.asked] == ["b"]
    assert [(r.key.prompt, r.key.sample, r.response) for r in rows()[:3]] == [
        ("a", 0, CALL), ("b", 0, "b, 0."), ("b", 1, CALL)
    ]  # fmt: skip
    assert "1 unparsable" in capsys.readouterr().out


def test_run_brings_its_model_and_a_model_folder_takes_the_configuration(writer: Writer, tmp_path: Path) -> None:
    model = tiny_with_tools(tmp_path / "tiny_tools")
    run = run_of(model, tmp_path / "run", "rollout.max_new_tokens=6", "rollout.top_p=0.9", steps=(1, 2))
    assert generate(policy=str(run)) == 0
    assert rows()[0].key.step == 2 and rows()[0].key.run == "policy-run"
    pool = writer.configs[0].pools["policy-run"]
    assert (pool.top_p, Path(pool.model)) == (0.9, (run / "checkpoints/step_2/policy").resolve())
    assert writer.asked[0].max_new_tokens == 6 and writer.asked[0].temperature == 1.0
    assert generate("step=1", policy=str(run), output="first") == 0
    assert rows("first")[0].key.step == 1
    assert generate("rollout.max_new_tokens=7", policy=str(model), output="model") == 0
    assert writer.asked[-1].max_new_tokens == 7 and rows("model")[0].key.run == "policy-tiny_tools"


def test_sampled_and_multigt_read_the_rows(writer: Writer, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate("n=2", "with_rewards=true") == 0
    given = ["input=in.jsonl", "ledger=out", "min_total=0.01"]
    assert main(["data", "sampled", *given, "output=items.jsonl", "best=2"]) == 0
    assert len(Path("items.jsonl").read_text().splitlines()) == 6
    from hamr.apps.data.build_multigt import likely_replies

    assert likely_replies(Path("out/ledger.sqlite"), {"a"}, 4)["a"] == ("a, 0.", CALL)
    assert generate("n=1", output="bare") == 0
    assert main(["data", "sampled", "input=in.jsonl", "ledger=bare", "min_total=0", "output=none.jsonl"]) == 2
    assert "has no reward" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["policy=jugde"], "policy: 'jugde': no such run, model folder or pool; did you mean 'judge'?"),
        (["policy=reranker"], "policy: 'reranker': is a reranker and cannot write"),
        (["policy=judge", "n=2", "temperature=0"], "makes all 2 responses equal"),
        (["policy=FOLDER"], "has no config.yaml, so it is not a run folder"),
        (["policy=FOLDER", "step=1"], "is not a run folder; remove it"),
    ],
)
def test_bad_input_is_one_line(writer: Writer, capsys: pytest.CaptureFixture[str], args: Any, message: str) -> None:
    Path("folder").mkdir()
    given = [arg.replace("FOLDER", "folder") for arg in args]
    assert main(["generate", "input=in.jsonl", "output=out", "experiment=smoke", *given]) == 2
    assert message in capsys.readouterr().err
    assert not writer.asked


def test_other_settings_in_the_same_folder_are_refused(writer: Writer, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate("n=1") == 0
    assert generate("n=2") == 2
    assert "holds responses with n=1, not 2; repeat the same command or give another folder" in capsys.readouterr().err
