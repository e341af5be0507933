"""Reading finished responses: samples with one text or several, every fault by file, line and field."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from hamr.config.load import dump_config, load_config
from hamr.errors import BadInput, DataError, MissingScore
from hamr.jobs.score import finished, main, read_responses, replay_run, rollouts
from hamr.observability.ledger import Ledger
from hamr.types import Component, Judgement, RewardRecord, SampleKey, Scored, Vetoed

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


def test_one_response_or_several(tmp_path: Path) -> None:
    path = written(tmp_path, {**ROW, "response": "Hey."}, {**ROW, "id": "b", "responses": ["x", "y"]})
    rows = read_responses(path)
    assert [(sample.id, responses) for sample, responses in rows] == [("a", ("Hey.",)), ("b", ("x", "y"))]
    keys = {finished("run", sample, i, text).key for sample, responses in rows for i, text in enumerate(responses)}
    assert len(keys) == 3


def test_a_line_is_a_group_and_a_sample_on_two_lines_is_two(tmp_path: Path) -> None:
    path = written(tmp_path, {**ROW, "responses": ["x", "y"]}, {**ROW, "response": "z"})
    paired = rollouts("run", read_responses(path))
    assert [(r.key.attempt, r.key.sample, r.siblings) for _, r in paired] == [(0, 0, 2), (0, 1, 2), (1, 0, 1)]
    assert len({r.key for _, r in paired}) == 3


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
    # What a veto spared was never asked for: without the switch that spared it there is nothing to replay.
    with pytest.raises(MissingScore):
        replay_run(tmp_path)
    config = load_config(["rewards=olamind_stage2", "rewards.rubric.reading=items", "rewards.veto_first=true"])
    (tmp_path / "config.yaml").write_text(dump_config(config))
    assert replay_run(tmp_path) == 0
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        ledger.add([record(1, total + 1e-9)])
    assert replay_run(tmp_path) == 1
    assert "2 records replayed, 1 differ" in capsys.readouterr().out


@pytest.mark.parametrize("field", [{}, {"response": 3}, {"responses": []}, {"responses": "text"}])
def test_a_line_without_a_response_is_named(tmp_path: Path, field: dict) -> None:
    path = written(tmp_path, {**ROW, "response": "ok"}, {**ROW, **field})
    with pytest.raises(DataError, match=r"r\.jsonl:2: response"):
        read_responses(path)


def test_input_and_output_have_to_be_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="input"):
        main([])
    with pytest.raises(BadInput, match="output"):
        main([f"input={written(tmp_path, {**ROW, 'response': 'ok'})}"])
