"""Models required on each node, and the one-line error for a node without them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hamr.cluster.model_folders import POLICY, _absent, _by_node, pool_model, refuse_absent
from hamr.cluster.placement import Node, plan
from hamr.config.schema import Config
from hamr.errors import BadInput

POLICY_FOLDER, JUDGE_FOLDER = Path("/home/a/hub/policy"), Path("/home/a/hub/judge")
MODELS = {POLICY: POLICY_FOLDER, pool_model("judge"): JUDGE_FOLDER}


def test_each_node_needs_the_models_of_its_actors() -> None:
    """Trainer, engine and router need the policy; a pool behind an endpoint needs no local model."""
    config = Config.model_validate(
        {
            "data": {"type": "sage"},
            "trainer": {"node_labels": {"room": "west"}},
            "router": {"num_cpus": 3},
            "pools": {
                "judge": {"role": "judge", "prompt": "judge.en", "engine": {"node_labels": {"room": "east"}}},
                "reranker": {
                    "role": "reranker",
                    "prompt": "reranker.en",
                    "type": "openai",
                    "model": "m",
                    "endpoint": "http://10.0.0.1:1",
                },
            },
        }
    )
    rooms = {"west": 2, "east": 2, "north": 3}
    nodes = [Node(name=name, resources={"CPU": cpus}, labels={"room": name}) for name, cpus in rooms.items()]
    assert _by_node(plan(config, nodes), MODELS) == {
        "west": {POLICY: POLICY_FOLDER},
        "north": {POLICY: POLICY_FOLDER},
        "east": {pool_model("judge"): JUDGE_FOLDER},
    }


def test_folder_without_a_model_is_absent(tmp_path: Path) -> None:
    assert _absent([tmp_path]) == [tmp_path]
    (tmp_path / "config.json").write_text("{}")
    assert _absent([tmp_path, tmp_path / "none"]) == [tmp_path / "none"]


def test_node_without_the_folder_is_reported_with_the_remedy() -> None:
    wanted = {"10.0.0.1": {POLICY: POLICY_FOLDER}, "10.0.0.2": MODELS}
    refuse_absent(wanted, {"10.0.0.1": [JUDGE_FOLDER], "10.0.0.2": []})  # not needed there
    with pytest.raises(BadInput) as refused:
        refuse_absent(wanted, {"10.0.0.1": [], "10.0.0.2": [JUDGE_FOLDER]})
    assert str(refused.value) == (
        "pools.judge.model: '/home/a/hub/judge': node 10.0.0.2 lacks this folder; set HF_HOME and HAMR_CACHE to "
        "folders that all nodes see, or give a model's folder in one"
    )


def test_unresponsive_node_is_not_rejected() -> None:
    refuse_absent({"10.0.0.1": MODELS}, {"10.0.0.1": "no answer in 60 s"})
