"""Data with too few labelled reply pairs train with scorers that need none."""

from __future__ import annotations

import json

import pytest

from hamr.apps.scorer.fallback import EMBEDDING_MODEL, with_usable_scorers
from hamr.apps.shared.preparation import load_splits
from hamr.config.load import dump_config, load_config, load_dumped
from hamr.data.samples import read_samples
from hamr.data.splits import Splits

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


@pytest.mark.parametrize("action", ["reply", "call_tool"])
def test_one_reference_per_sample_gives_an_embedding_reranker_and_no_judge(tmp_path, action):
    config, line = with_usable_scorers(load_config([]), one_reference_each(tmp_path, action=action))
    assert config.rewards.consistency.mode == "reranker"
    assert config.rewards.scorers == {"reranker": "reranker"}
    assert {name: (pool.type, pool.model) for name, pool in config.pools.items()} == {
        "reranker": ("embedding", EMBEDDING_MODEL)
    }
    assert "no judge" in line and "pools.judge.endpoint" in line and "hamr data multigt" in line and "\n" not in line
    saved = tmp_path / "config.yaml"
    saved.write_text(dump_config(config))
    assert load_dumped(saved) == config, "a resumed run has the scorers of its first part"
    assert with_usable_scorers(config, one_reference_each(tmp_path)) == (config, "")


def test_a_judge_that_needs_no_fine_tuning_stays_beside_the_embedding_model(tmp_path):
    config, line = with_usable_scorers(load_config(ENDPOINT), one_reference_each(tmp_path))
    assert config.rewards.consistency == load_config(ENDPOINT).rewards.consistency
    assert config.pools["reranker"].type == "embedding"
    assert config.pools["judge"].endpoint == "http://127.0.0.1:1/v1"
    assert f"{EMBEDDING_MODEL} as reranker and judge-32b as judge" in line


def test_a_reranker_that_needs_no_fine_tuning_stays(tmp_path):
    overrides = ["pools.reranker.finetune=null", "pools.judge.finetune.start_from=null"]
    config, line = with_usable_scorers(load_config(overrides), one_reference_each(tmp_path))
    assert config.rewards.scorers == {"reranker": "reranker"}
    assert (config.pools["reranker"].type, config.pools["reranker"].model) == ("vllm", "smollm2-135m")
    assert "no judge" in line


def test_generated_data_keep_the_scorers_that_are_fine_tuned():
    config = load_config(["experiment=quickstart"])
    assert with_usable_scorers(config, load_splits(config.data, 0)) == (config, "")
