"""Settings of the process group and of DeepSpeed."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import deepspeed
import pytest
import torch
from deepspeed.utils import groups
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from hamr.config.schema import TrainerConfig
from hamr.trainer.actors import trainer_env
from hamr.trainer.deepspeed_engine import NCCL_TIMEOUT_S, RATE_SCALE, build_engine, engine_config, join_world
from hamr.trainer.policy_model import PolicyModel

GPU = TrainerConfig(backend="nccl", num_gpus=1, deadline_s=7200)


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The arguments with which the process group would start."""
    given: dict[str, Any] = {}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_SIZE"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda backend, **settings: given.update(settings))
    monkeypatch.setattr(deepspeed, "init_distributed", lambda **settings: None)
    monkeypatch.setattr(
        torch.distributed, "new_group", lambda ranks, timeout: given.update(clone=(list(ranks), timeout))
    )
    monkeypatch.setattr(groups, "_WORLD_GROUP", None)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: given.update(current=device))
    monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", lambda enabled: given.update(cudnn=enabled))
    return given


def test_nccl_has_its_own_timeout_and_knows_its_device(joined: dict[str, Any]) -> None:
    join_world(GPU, 1, 2, "tcp://host:1")
    assert joined["timeout"] == timedelta(seconds=NCCL_TIMEOUT_S) != timedelta(seconds=GPU.deadline_s)
    assert joined["clone"] == ([0, 1], joined["timeout"])
    assert (joined["device_id"], joined["current"]) == (torch.device("cuda:0"), 0)


def test_only_trainers_on_gpus_turn_off_cudnn_attention(joined: dict[str, Any]) -> None:
    join_world(TrainerConfig(), 0, 1, "tcp://host:1")
    assert "cudnn" not in joined
    join_world(GPU, 0, 1, "tcp://host:1")
    assert joined["cudnn"] is False


def test_single_rank_with_nccl_is_not_bound_to_its_device(joined: dict[str, Any]) -> None:
    join_world(GPU, 0, 1, "tcp://host:1")
    assert (joined["device_id"], joined["current"]) == (None, 0)


def test_gloo_waits_for_the_deadline_of_a_call(joined: dict[str, Any]) -> None:
    join_world(TrainerConfig(deadline_s=77), 0, 1, "tcp://host:1")
    assert (joined["timeout"], joined["device_id"]) == (timedelta(seconds=77), None)
    assert "current" not in joined


@pytest.mark.deep
def test_collectives_of_deepspeed_have_the_timeout_of_the_world(tmp_path: Path) -> None:
    script = (
        "import torch; from deepspeed.utils import groups; from hamr.config.schema import TrainerConfig\n"
        "from hamr.trainer.deepspeed_engine import join_world\n"
        f"join_world(TrainerConfig(deadline_s=77), 0, 1, 'file://{tmp_path}/store')\n"
        "clone = groups._get_data_parallel_group()\n"
        "print(clone is torch.distributed.group.WORLD, clone._get_backend(torch.device('cpu')).options._timeout)"
    )
    env = {**os.environ, **trainer_env(TrainerConfig())}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False 0:01:17"


def test_segments_of_gpu_memory_may_grow() -> None:
    assert trainer_env(GPU)["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
    assert "PYTORCH_ALLOC_CONF" not in trainer_env(TrainerConfig())
    assert "PYTORCH_ALLOC_CONF" not in trainer_env(GPU, exports=True)


def test_offloaded_optimizer_is_torchs_own() -> None:
    settings = engine_config(GPU.model_copy(update={"offload_optimizer": True}))
    assert settings["zero_optimization"]["offload_optimizer"] == {"device": "cpu", "pin_memory": True}
    assert settings["zero_force_ds_cpu_optimizer"] is False


def test_embedding_rate_does_not_depend_on_the_name_of_the_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPT-NeoX calls it embed_in."""
    shape = GPTNeoXConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    model = PolicyModel(GPTNeoXForCausalLM(shape), layout="padded")
    monkeypatch.setattr(deepspeed, "initialize", lambda optimizer, **_: (SimpleNamespace(optimizer=optimizer),))
    engine = build_engine(model, TrainerConfig(embedding_rate=0.1), {}, writer=None)
    [embedding] = [g for g in engine.optimizer.param_groups if RATE_SCALE in g]
    assert embedding[RATE_SCALE] == 0.1
    assert [p is model.causal_lm.gpt_neox.embed_in.weight for p in embedding["params"]] == [True]
