"""Data with too few labelled reply pairs train with scorers that need no fine-tuning."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from hamr.apps.scorer.fallback import EMBEDDING_MODEL, check_scorable, with_allowed_repetitions, with_usable_scorers
from hamr.apps.shared.preparation import load_splits
from hamr.config.load import dump_config, load_config, load_dumped
from hamr.config.rewards import ConsistencyConfig
from hamr.data.samples import read_samples
from hamr.data.splits import Splits
from hamr.errors import DataError
from hamr.types import Reference, Reply

ENDPOINT = ["pools.judge.type=openai", "pools.judge.endpoint=http://127.0.0.1:1/v1", "pools.judge.model=judge-32b"]

PARAMETERS = {"type": "object", "properties": {"package": {"type": "string"}}}


def one_reference_each(folder, n=40, action="reply"):
    rows = []
    for i in range(n):
        reply = {"action": "reply", "content": f"That costs a fee of ${40 + i}. Shall I go on?"}
        call = {"action": "call_tool", "name": "change_order", "parameters": {"package": f"{i}GB"}}
        rows.append(
            {
                "id": f"t{i}",
                "ticket": {},
                "policy": "Name the fee first.",
                "tools": [{"name": "change_order", "parameters": PARAMETERS}],
                "history": [{"role": "customer", "content": f"Move me to the {10 + i}GB plan."}],
                "references": [reply if action == "reply" else call],
            }
        )
    path = folder / "train.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    samples = tuple(read_samples(path))
    return Splits(train=samples[: n // 2], validation=samples[n // 2 :], test=())


@pytest.mark.parametrize("overrides", [[], ["experiment=own_data", "data.train=t.jsonl"]])
def test_one_reference_per_sample_gives_an_embedding_reranker_and_no_judge(tmp_path, overrides):
    given = load_config([*overrides, "rewards.consistency.call_credit=0.3"])
    config, line = with_usable_scorers(given, one_reference_each(tmp_path))
    assert config.rewards.consistency.mode == "reranker"
    assert config.rewards.scorers == {"reranker": "reranker"}
    assert config.rewards.consistency.call_credit == 0.3
    assert {name: (pool.type, pool.model) for name, pool in config.pools.items()} == {
        "reranker": ("embedding", EMBEDDING_MODEL)
    }
    assert "no judge" in line and "pools.judge.endpoint" in line and "hamr data multigt" in line and "\n" not in line
    saved = tmp_path / "config.yaml"
    saved.write_text(dump_config(config))
    assert load_dumped(saved) == config, "a resumed run has the scorers of its first part"
    assert with_usable_scorers(config, one_reference_each(tmp_path)) == (config, "")


def test_samples_of_tool_calls_alone_train_without_scorers(tmp_path):
    calls = one_reference_each(tmp_path, action="call_tool")
    check_scorable(load_config([]), calls)
    config, line = with_usable_scorers(load_config(["rewards.consistency.call_credit=0.3"]), calls)
    assert config.rewards.consistency == ConsistencyConfig(mode="exact", call_credit=0.3)
    assert config.rewards.scorers == config.pools == {}
    assert "no scorer is asked" in line and "\n" not in line
    saved = tmp_path / "config.yaml"
    saved.write_text(dump_config(config))
    assert load_dumped(saved) == config


def test_several_references_keep_the_cross_encoders_of_own_data(tmp_path):
    samples = [
        replace(s, references=(*s.references, Reference(action=Reply(content=f"There is a fee of ${40 + i}."))))
        for i, s in enumerate(one_reference_each(tmp_path, n=160).train)
    ]
    splits = Splits(train=tuple(samples[:60]), validation=tuple(samples[60:]), test=())
    given = load_config(["experiment=own_data", "data.train=t.jsonl"])
    config, line = with_usable_scorers(given, splits)
    assert config == given
    assert "compact-encoder as reranker and all-minilm-l6-v2 as judge, fine-tuned" in line and "\n" not in line


@pytest.mark.parametrize(("keep", "named"), [(9, "9 replies among the references"), (10, ""), (1, "1 replies")])
def test_fewer_than_ten_replies_are_rejected(tmp_path, keep, named):
    splits = one_reference_each(tmp_path, n=20)
    splits = replace(splits, train=splits.train[:keep], validation=())
    if not named:
        check_scorable(load_config([]), splits)
        return
    with pytest.raises(DataError, match=f"{named}.*accept_chance=true"):
        check_scorable(load_config([]), splits)


def test_replies_of_one_act_are_rejected_unless_accepted(tmp_path):
    samples = [replace(s, meta={"act": "fee"}) for s in one_reference_each(tmp_path).train]
    splits = Splits(train=tuple(samples), validation=(), test=())
    with pytest.raises(DataError, match="'one act': all replies.*meta.act.*accept_chance=true"):
        check_scorable(load_config([]), splits)
    check_scorable(load_config(["scorers.accept_chance=true"]), splits)
    check_scorable(load_config(["rewards.consistency.weight=0", "rewards.format.weight=1"]), splits)


def test_judge_without_fine_tuning_is_kept_with_the_embedding_model(tmp_path):
    given = load_config(["experiment=own_data", "data.train=t.jsonl", *ENDPOINT])
    config, line = with_usable_scorers(given, one_reference_each(tmp_path))
    assert config.rewards.consistency == given.rewards.consistency
    assert given.pools["judge"].prompt == "judge.en", "the cross-encoder in its place has none"
    assert config.pools["reranker"].type == "embedding"
    assert config.pools["judge"].endpoint == "http://127.0.0.1:1/v1"
    assert f"{EMBEDDING_MODEL} as reranker and judge-32b as judge" in line


def test_reranker_without_fine_tuning_is_kept(tmp_path):
    overrides = ["pools.reranker.finetune=null", "pools.judge.finetune.start_from=null"]
    config, line = with_usable_scorers(load_config(overrides), one_reference_each(tmp_path))
    assert config.rewards.scorers == {"reranker": "reranker"}
    assert (config.pools["reranker"].type, config.pools["reranker"].model) == ("vllm", "smollm2-135m")
    assert "no judge" in line


def test_generated_data_keep_the_fine_tuned_scorers():
    config = load_config(["experiment=quickstart"])
    kept, line = with_usable_scorers(config, load_splits(config.data, 0))
    assert kept == config and "fine-tuned on labelled pairs" in line


def test_references_of_the_data_allow_their_own_repetitions(tmp_path):
    config = load_config(["experiment=quickstart", "rewards.consistency.allowed_repetitions=[come in please]"])
    splits = load_splits(config.data, 0)
    allowed = with_allowed_repetitions(config, splits.train)
    assert allowed.rewards.consistency.allowed_repetitions == ("come in please", "do you mainly")
    assert with_allowed_repetitions(allowed, splits.train) == allowed, "a resumed run adds nothing"
    saved = tmp_path / "config.yaml"
    saved.write_text(dump_config(allowed))
    assert load_dumped(saved) == allowed
    unchecked = load_config([])
    assert with_allowed_repetitions(unchecked, splits.train) == unchecked
