"""Reading finished responses: samples with one or several texts, and every error by file, line and field."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from hamr.apps.score.file import Checked, check_input
from hamr.apps.score.run import replay_run, score_settings
from hamr.apps.shared.commands import parse_command
from hamr.config.load import dump_config, load_config
from hamr.config.resources import resource
from hamr.data.responses import stream_groups
from hamr.errors import BadInput, DataError, MissingScore
from hamr.telemetry.ledger import Ledger
from hamr.types import Component, EpisodeResult, Judgement, RewardRecord, SampleKey, Scored, Vetoed

ROW = {
    "id": "a",
    "ticket": {},
    "policy": "",
    "tools": [],
    "history": [{"role": "customer", "content": "hi"}],
    "references": [{"action": "reply", "content": "Hello!"}],
}


def written(tmp_path: Path, *rows: dict) -> Path:
    path = tmp_path / "r.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_sample_has_one_or_several_responses(tmp_path: Path) -> None:
    path = written(tmp_path, {**ROW, "response": "Hey."}, {**ROW, "id": "b", "responses": ["x", "y"]})
    groups = [group for group, _ in stream_groups(path)]
    assert [(g.sample.id, g.responses, g.number) for g in groups] == [("a", ("Hey.",), 1), ("b", ("x", "y"), 2)]
    assert len({r.key for g in groups for r in g.rollouts("run")}) == 3
    assert check_input(path) == Checked(groups=2, responses=3, whole=True)


def test_response_may_be_an_assistant_message(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
    call = {"function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "assistant", "content": parts},
        {"role": "assistant", "content": None, "refusal": "no"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "never"}]},
        {"role": "assistant", "content": [], "tool_calls": [call]},
    ]
    [(group, _)] = stream_groups(written(tmp_path, {**ROW, "responses": messages}))
    assert group.responses == ("hi", "no", "never", '<tool_call>{"name": "f", "arguments": {}}</tool_call>')


@pytest.mark.parametrize(
    "content", [None, 0, [], [{"type": "image_url", "image_url": {}}], [{"type": "text"}], [3], {"text": "hi"}]
)
def test_faulty_response_is_named_by_its_index(tmp_path: Path, content: object) -> None:
    path = written(tmp_path, {**ROW, "responses": ["x", {"role": "assistant", "content": content}]})
    with pytest.raises(DataError, match=r"r\.jsonl:1: responses\[1\]: .*give a text, or an assistant message"):
        list(stream_groups(path))


def test_each_line_is_a_separate_group(tmp_path: Path) -> None:
    path = written(tmp_path, {**ROW, "responses": ["x", "y"]}, {**ROW, "response": "z"})
    rollouts = [r for group, _ in stream_groups(path) for r in group.rollouts("run")]
    assert [(r.key.step, r.key.sample, r.siblings) for r in rollouts] == [(1, 0, 2), (1, 1, 2), (2, 0, 1)]
    assert len({r.key for r in rollouts}) == 3


def test_groups_keep_their_bytes_and_line_numbers(tmp_path: Path) -> None:
    line = json.dumps({**ROW, "response": "x"}).encode()
    path = tmp_path / "r.jsonl"
    path.write_bytes(b"\n" + line + b"\n \n\n" + line)
    groups = list(stream_groups(path))
    assert b"".join(raw for _, raw in groups) == path.read_bytes()
    assert [group.number for group, _ in groups] == [2, 5]


def test_large_input_is_checked_only_at_its_start(tmp_path: Path) -> None:
    path = written(tmp_path, {**ROW, "response": "x"}, {**ROW, "response": 3})
    assert check_input(path, limit=10) == Checked(groups=1, responses=1, whole=False)
    with pytest.raises(DataError, match=r"r\.jsonl:2: response"):
        check_input(path)


def test_a_run_with_judged_rewards_replays_from_its_ledger(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = load_config(["rewards=olamind_stage2", "rewards.rubric.reading=items"])
    (tmp_path / "config.yaml").write_text(dump_config(config))
    judgements = (
        Judgement(component="policy", grade=4, compared=8),
        Judgement(component="rubric", items=((5.0, True), (3.0, False), (-2.0, True))),
        Judgement(component="hallucination", labels=("factual",)),
    )
    values = {"policy": 0.75, "rubric": 0.7, "hallucination": -1.0}
    components = [
        Component(name=name, outcome=Scored(value=value), weight=getattr(config.rewards, name).weight)
        for name, value in values.items()
    ]
    components.append(Component(name="dialogue", outcome=Vetoed(detail="vetoed by risk"), weight=1.0))

    def record(sample: int, total: float) -> RewardRecord:
        key = SampleKey(run="r", step=1, prompt="a", sample=sample)
        outcome = Scored(value=total)
        return RewardRecord(
            key=key, total=outcome, components=tuple(components), action=None, band="none", judgements=judgements
        )

    total = math.fsum([0.75, 0.7, -3.0])
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        ledger.add([record(0, total)])
    # A question that a veto saved was never asked: without the switch that saved it there is nothing to replay.
    with pytest.raises(MissingScore):
        replay_run(tmp_path)
    config = load_config(["rewards=olamind_stage2", "rewards.rubric.reading=items", "rewards.veto_first=true"])
    (tmp_path / "config.yaml").write_text(dump_config(config))
    assert replay_run(tmp_path) == 0
    with pytest.raises(BadInput, match="retry: 'failed': has no effect on the replay of a run"):
        parse_command(["score", f"input={tmp_path}", "retry=failed"]).run()
    assert parse_command(["score", f"input={tmp_path}", "rewards.format.weight=9"]).run() == 0
    assert "overrides have no effect" in capsys.readouterr().out
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        ledger.add([record(1, total + 1e-9)])
    assert replay_run(tmp_path) == 1
    assert "2 records replayed, 1 differ" in capsys.readouterr().out


def test_replay_reports_the_reward_of_a_dialogue_that_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").write_text(dump_config(load_config([])))
    done = Component(name="won", outcome=Scored(value=1.0), weight=1.0)
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        for sample, total in enumerate((1.0, 0.5)):
            key = SampleKey(run="r", step=1, prompt="a", sample=sample)
            end = EpisodeResult(outcome="ended", components=(done,), total=total)
            ledger.add([RewardRecord(key=key, total=Scored(value=0.0), episode=end)])
    assert replay_run(tmp_path) == 1
    told = capsys.readouterr().out
    assert "recorded dialogue 0.5, replayed 1.0" in told and "2 records replayed, 1 differ" in told


@pytest.mark.parametrize("field", [{}, {"response": 3}, {"responses": []}, {"responses": "text"}])
def test_a_line_without_a_response_is_named(tmp_path: Path, field: dict) -> None:
    path = written(tmp_path, {**ROW, "response": "ok"}, {**ROW, **field})
    with pytest.raises(DataError, match=r"r\.jsonl:2: response"):
        check_input(path)


def test_input_and_output_are_required(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="input"):
        parse_command(["score"]).run()
    with pytest.raises(BadInput, match="output"):
        parse_command(["score", f"input={written(tmp_path, {**ROW, 'response': 'ok'})}"]).run()


def test_invalid_requests_are_rejected_before_the_start(tmp_path: Path) -> None:
    """In a unit test `ray.init` raises, so each error must come before it."""
    good = written(tmp_path, {**ROW, "response": "ok"})
    smoke, out = "experiment=smoke", tmp_path / "out.jsonl"
    with pytest.raises(BadInput, match=r"output: .* is the input"):
        parse_command(["score", f"input={good}", f"output={good}", smoke]).run()
    with pytest.raises(BadInput, match=r"out.png': is the name of the histograms"):
        parse_command(["score", f"input={good}", f"output={tmp_path / 'out.png'}", smoke]).run()
    with pytest.raises(BadInput, match="resume: 'maybe'"):
        parse_command(["score", f"input={good}", f"output={out}", "resume=maybe", smoke]).run()
    bad = tmp_path / "bad.jsonl"
    bad.write_text(good.read_text() + json.dumps({**ROW, "references": [], "response": "ok"}) + "\n")
    with pytest.raises(DataError, match=r"bad\.jsonl:2: references"):
        parse_command(["score", f"input={bad}", f"output={out}", smoke]).run()
    rules = ["rewards.rules.weight=1", f"rewards.rules.file={tmp_path / 'none.yaml'}"]
    with pytest.raises(BadInput, match=r"rewards\.rules\.file: .*: no such file"):
        parse_command(["score", f"input={good}", f"output={out}", smoke, *rules]).run()
    with pytest.raises(BadInput, match=r"output: '.*': is a folder; give a file"):
        parse_command(["score", f"input={good}", f"output={tmp_path}", smoke]).run()
    assert not out.exists()
    out.write_text("{}\n")
    with pytest.raises(BadInput, match=r"exists; continue with resume=true"):
        parse_command(["score", f"input={good}", f"output={out}", smoke]).run()
    with pytest.raises(BadInput, match=r"cannot be resumed: out\.jsonl\.resume\.json is missing"):
        parse_command(["score", f"input={good}", f"output={out}", "resume=true", smoke]).run()
    assert out.read_text() == "{}\n"


def test_resumed_output_requires_equal_score_settings() -> None:
    def settings(*overrides: str) -> dict:
        return score_settings(load_config(["experiment=smoke", *overrides]))

    same = settings()
    faster = ("pools.judge.replicas=3", "pools.judge.engine.threads=2", "cluster.num_cpus=16", "experiment.seed=9")
    assert settings(*faster, "score.groups_in_flight=2", "experiment.name=other") == same
    for change in (
        "rewards.format.weight=0.3",
        "pools.judge.thinking_tokens=9",
        "rewards.consistency.cascade.tau_a=0.1",
    ):
        assert settings(change) != same
    trained = "pools.reranker.finetune.epochs=2"
    assert settings(trained, "experiment.seed=9") != settings(trained)


def test_edited_custom_file_changes_the_settings(tmp_path: Path) -> None:
    for name, shipped in (("mine.yaml", "judge_short.en.yaml"), ("rules.yaml", "rules.default.yaml")):
        (tmp_path / name).write_bytes(resource("prompts", shipped).read_bytes())
    overrides = [f"pools.judge.prompt={tmp_path / 'mine'}", f"rewards.rules.file={tmp_path / 'rules.yaml'}"]

    def files() -> dict[str, str]:
        return score_settings(load_config(["experiment=smoke", *overrides]))["files"]

    before = files()
    assert list(before) == [str(tmp_path / "mine"), str(tmp_path / "rules.yaml")]
    for name in before:
        file = next(tmp_path.glob(f"{Path(name).stem}.yaml"))
        file.write_bytes(file.read_bytes() + b"# edited\n")
        assert [key for key, digest in files().items() if digest != before[key]] == [name]
        before = files()
