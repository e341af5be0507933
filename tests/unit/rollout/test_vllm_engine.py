"""Arguments of an engine, without starting one."""

from __future__ import annotations

import queue
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from hamr.config.pools import EngineConfig
from hamr.errors import BadInput
from hamr.protocols import GenerationRequest, SamplingConfig
from hamr.rollout import vllm_engine
from hamr.rollout.vllm_engine import VllmEngine
from hamr.rollout.vllm_settings import OWN_ENGINE_ARGS, engine_args, engine_env
from hamr.types import SampleKey


def test_cpu_engine_gets_threads_and_an_explicit_cache() -> None:
    engine = EngineConfig(threads=2, kv_cache_mb=96, block_size=64, max_num_seqs=48)
    env = engine_env(engine)
    assert env["OMP_NUM_THREADS"] == "2"
    assert env["OMP_WAIT_POLICY"] == "PASSIVE"
    assert env["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    args = engine_args("/m", engine, "bfloat16", 1024, 7)
    assert (args["kv_cache_memory_bytes"], args["block_size"], args["max_num_seqs"]) == (96 << 20, 64, 48)
    assert (args["max_model_len"], args["seed"], args["logprobs_mode"]) == (1024, 7, "processed_logprobs")
    assert "gpu_memory_utilization" not in args


def test_gpu_engine_gets_memory_share_graphs_and_transfer() -> None:
    engine = EngineConfig(num_gpus=2, tensor_parallel_size=2, gpu_memory_utilization=0.6, enforce_eager=False)
    args = engine_args("/m", engine, "bfloat16", 4096, 0, transfer="nccl")
    assert (args["gpu_memory_utilization"], args["tensor_parallel_size"]) == (0.6, 2)
    assert args["distributed_executor_backend"] == "mp"
    assert "distributed_executor_backend" not in engine_args("/m", EngineConfig(num_gpus=1), "bfloat16", 4096, 0)
    assert args["enforce_eager"] is False
    assert args["weight_transfer_config"] == {"backend": "nccl"}
    assert "kv_cache_memory_bytes" not in args
    assert "OMP_NUM_THREADS" not in engine_env(engine)
    assert engine_env(engine)["VLLM_ENABLE_V1_MULTIPROCESSING"] == "1"
    assert "enable_sleep_mode" not in args
    assert engine_args("/m", engine, "bfloat16", 4096, 0, sleeps=True)["enable_sleep_mode"] is True


def test_unsupported_cpu_block_size_is_rejected_before_vllm_starts() -> None:
    with pytest.raises(BadInput, match="multiple of 32"):
        engine_args("/m", EngineConfig(block_size=16), "bfloat16", 1024, 0)
    assert engine_args("/m", EngineConfig(block_size=16, num_gpus=1), "bfloat16", 1024, 0)["block_size"] == 16


def test_modules_import_no_heavy_libraries() -> None:
    """The router and the driver import these modules for tokenizers and types and must start quickly."""
    code = (
        "import sys, hamr.models.bundled, hamr.models.tokenizer, hamr.rollout.vllm_engine, hamr.models.weights, "
        "hamr.rollout.workers, hamr.trainer.weight_sync; print([m for m in ('torch', 'vllm', 'ray', 'transformers') "
        "if m in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert said.stdout.strip() == "[]"


@pytest.mark.parametrize("gpus", [0, 2])
def test_extra_arguments_reach_the_engine_and_own_ones_are_listed(gpus: int) -> None:
    engine = EngineConfig(num_gpus=gpus, tensor_parallel_size=max(1, gpus), extra={"quantization": "fp8"})
    args = engine_args("/m", engine, "bfloat16", 1024, 0, transfer="ipc", sleeps=True)
    assert args.pop("quantization") == "fp8"
    assert set(args) <= OWN_ENGINE_ARGS


class OneByOne:
    """Inbox that is empty after every message, so that the engine could run a step between two."""

    def __init__(self, messages: list[Callable[[], None]]) -> None:
        self.messages, self.given = messages, False

    def get(self, block: bool) -> Callable[[], None]:
        self.given = not self.given or block
        if not self.given:
            raise queue.Empty
        return self.messages.pop(0)


async def test_no_step_runs_while_the_layers_have_no_weights() -> None:
    """A transfer over NCCL or CUDA IPC is four calls, and responses may be in flight."""
    log: list[str] = []
    messages: list[Callable[[], None]] = []
    engine = object.__new__(VllmEngine)
    engine._own_core, engine._tickets, engine._closing, engine._reloading = False, {"0": object()}, False, False  # type: ignore[dict-item]
    engine._inbox = OneByOne(messages)  # type: ignore[assignment]

    def step() -> list[Any]:
        log.append("step")
        engine._closing = not messages
        return []

    vllm = SimpleNamespace(
        collective_rpc=lambda method, args: log.append(method),
        reset_prefix_cache=lambda **_: log.append("reset_prefix_cache"),
        set_weight_version=log.append,
        step=step,
    )

    async def call(action: Callable[[Any], None]) -> None:
        messages.append(lambda: action(vllm))

    engine._call = call  # type: ignore[method-assign]
    transfer = ["start_weight_update", "update_weights", "finish_weight_update"]
    for method in ("init_weight_transfer_engine", *transfer):
        await engine.worker_call(method)
    await engine.commit_version(3)
    engine._loop(vllm)
    assert log == ["init_weight_transfer_engine", "step", *transfer, "reset_prefix_cache", "3", "step"]


def test_engine_generates_nothing_after_a_failed_update() -> None:
    """Its weights are unknown until its worker is replaced, and responses may be in flight."""
    engine = object.__new__(VllmEngine)
    engine._own_core, engine._reloading = False, False

    def fail(vllm: object) -> None:
        raise RuntimeError("no such file")

    with pytest.raises(RuntimeError, match="no such file"):
        engine._swap(SimpleNamespace(), fail, 2)
    assert engine._reloading


async def test_engine_falls_asleep_once_aborted_requests_are_gone() -> None:
    engine, unfinished, calls = VllmEngine.__new__(VllmEngine), [2, 1, 0], []

    async def count() -> int:
        return unfinished.pop(0)

    async def call(action: object) -> None:
        calls.append(list(unfinished))

    engine.count_unfinished, engine._call = count, call  # type: ignore[method-assign, assignment]
    await engine.sleep(2)
    assert calls == [[]]


def test_prompt_of_a_rollout_is_that_of_the_engines_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """The episodes compare it with the prompt of the request."""
    monkeypatch.setattr(vllm_engine, "sampling_params", lambda *_, **__: None)
    key = SampleKey(run="r", step=0, prompt="s", sample=0)
    request = GenerationRequest(prompt_ids=(9, 9), keys=(key,), seeds=(7,), sampling=SamplingConfig(max_new_tokens=8))
    flat = SimpleNamespace(logprobs=[-0.5], start_indices=[0])
    answer = SimpleNamespace(token_ids=[5], logprobs=flat, text="x", finish_reason="stop", weight_versions=None)
    rollouts: list[Any] = []
    ticket = object.__new__(VllmEngine)._rollout_ticket(request, key, 7, rollouts.append)
    ticket.deliver(SimpleNamespace(outputs=[answer], prompt_token_ids=[1, 2, 3]))  # type: ignore[arg-type]
    assert rollouts[0].prompt_ids == (1, 2, 3)
