"""Settings of the transfers over NCCL and CUDA IPC against vLLM's own interface. Both need GPUs."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from hamr.config.pools import EngineConfig
from hamr.models.weights import NcclAddress, engine_init, open_sender, trainer_info, weight_source
from hamr.rollout.vllm_settings import engine_env
from hamr.trainer.weight_sync import RolloutClient

pytestmark = pytest.mark.integration

ADDRESS = NcclAddress("10.0.0.1", 4321, 5)


def test_trainer_settings_match_vllm() -> None:
    info = trainer_info(ADDRESS, rank=0)
    assert (info.master_address, info.master_port, info.world_size) == ADDRESS
    assert info.is_sender
    assert not trainer_info(ADDRESS, rank=1).is_sender


def test_engine_settings_match_vllm() -> None:
    from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo, worker_init_payload

    sent = NCCLWeightTransferInitInfo(master_address="10.0.0.1", master_port=4321, rank_offset=1, world_size=5)
    received = NCCLWeightTransferInitInfo(**engine_init(worker_init_payload(sent), engine=1, tensor_parallel_size=2))
    assert dataclasses.replace(received, rank_offset=1) == sent
    assert received.rank_offset == 3


@pytest.mark.parametrize("backend", ["nccl", "ipc"])
def test_engine_accepts_the_transfer_setting(backend: str) -> None:
    from vllm.config.weight_transfer import WeightTransferConfig
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    from hamr.config.pools import EngineConfig
    from hamr.rollout.vllm_settings import engine_args

    args = engine_args("/m", EngineConfig(num_gpus=1), "bfloat16", 64, 0, transfer=backend)
    assert WeightTransferConfig(**args["weight_transfer_config"]).backend in WeightTransferEngineFactory._registry


def test_ipc_settings_match_vllm_and_have_no_ranks() -> None:
    from vllm.distributed.weight_transfer.ipc_engine import IPCWeightTransferInitInfo

    told: list[dict[str, Any]] = []
    for rank in (0, 1):
        info = trainer_info(None, rank)
        assert (info.backend, info.is_sender) == ("ipc", rank == 0)
        if info.is_sender:
            told.append(engine_init({"packed": info.packed}, engine=1, tensor_parallel_size=1))
    assert IPCWeightTransferInitInfo(**told[0]).packed


def test_ipc_buffer_holds_the_largest_tensor() -> None:
    """vLLM refuses a larger one. The embedding of Qwen3-8B has 1.24 GB."""
    import torch
    from vllm.distributed.weight_transfer.packed_tensor import DEFAULT_PACKED_BUFFER_SIZE_BYTES

    norm = ("model.norm.weight", torch.bfloat16, (4096,))
    embedding = ("model.embed_tokens.weight", torch.bfloat16, (151_936, 4096))
    assert trainer_info(None, 0, [norm]).packed_buffer_size_bytes == DEFAULT_PACKED_BUFFER_SIZE_BYTES
    assert trainer_info(None, 0, [embedding, norm]).packed_buffer_size_bytes == 151_936 * 4096 * 2


def test_sender_passes_the_sizes_of_its_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

    given: list[Any] = []
    monkeypatch.setattr(WeightTransferTrainerFactory, "trainer_init", lambda info, **_: given.append(info))
    open_sender(None, 0, None, lambda: [("w", torch.float32, (1 << 15, 10_000))], lambda: iter(()))
    assert given[0].packed_buffer_size_bytes == 4 * 10_000 << 15


def test_ipc_handles_reach_the_core_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The arguments by which torch opens a tensor of another process hold types of torch."""
    import torch
    from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

    env = engine_env(EngineConfig(num_gpus=1))
    monkeypatch.setenv("VLLM_ALLOW_INSECURE_SERIALIZATION", env["VLLM_ALLOW_INSECURE_SERIALIZATION"])
    handle = (torch.Tensor, torch.Size([2, 3]), (3, 1), 0, torch.UntypedStorage, torch.bfloat16, 0, b"handle", 24, 0)
    sent = {"names": ["w"], "ipc_handles": [{"GPU-1": handle}]}
    [got] = MsgpackDecoder().decode(MsgpackEncoder().encode((sent,)))
    assert got == {"names": ["w"], "ipc_handles": [{"GPU-1": [*handle[:1], [2, 3], [3, 1], *handle[3:]]}]}


def test_weight_source_streams_its_declared_tensors() -> None:
    import torch

    weights = {"model.embed.weight": torch.ones(3, 2), "lm_head.weight": torch.zeros(3, 2)}
    source = weight_source(
        lambda: [(name, tensor.dtype, tensor.shape) for name, tensor in weights.items()], lambda: iter(weights.items())
    )
    declared = [(meta.name, meta.dtype, meta.shape) for meta in source.metadata()]
    for _ in range(2):  # every round is a fresh pass
        assert [(name, t.dtype, tuple(t.shape)) for name, t in source] == declared


def test_client_implements_vllm_calls_and_assigns_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray
    from vllm.distributed.weight_transfer.base import VLLMWeightSyncClient

    class Handle:
        def __init__(self) -> None:
            self.calls: list[Any] = []
            self.worker_call = self

        def remote(self, *call: Any) -> None:
            self.calls.append(call)

    monkeypatch.setattr(ray, "get", lambda references: references)
    handles = [Handle(), Handle()]
    client = RolloutClient(handles, tensor_parallel_size=2)
    wanted = [name for name in vars(VLLMWeightSyncClient) if not name.startswith("_")]
    assert wanted
    assert all(callable(getattr(client, name)) for name in wanted)
    client.init_weight_transfer_engine({"rank_offset": 1, "world_size": 5})
    client.start_weight_update()
    client.update_weights({"names": ["w"]})
    client.finish_weight_update()
    offsets = [handle.calls[1][1]["rank_offset"] for handle in handles]
    assert offsets == [1, 3]
    for handle in handles:
        assert [call[0] for call in handle.calls] == [
            "shutdown_weight_transfer_engine",
            "init_weight_transfer_engine",
            "start_weight_update",
            "update_weights",
            "finish_weight_update",
        ]
        assert handle.calls[3][1] == {"names": ["w"]}


def test_shut_down_transfer_destroys_the_communicator_of_vllm() -> None:
    """vLLM's worker without a GPU: only its methods for the transfer run."""
    from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine
    from vllm.v1.worker.gpu_worker import Worker

    class Communicator:
        destroyed = 0

        def destroy(self) -> None:
            self.destroyed += 1

    worker, first = Worker.__new__(Worker), Communicator()
    worker._weight_update_active = False
    worker.weight_transfer_engine = NCCLWeightTransferEngine.__new__(NCCLWeightTransferEngine)
    for joined in (None, first, None):  # an engine that has not joined yet or has left has none
        worker.weight_transfer_engine.model_update_group = joined
        worker.shutdown_weight_transfer_engine()
        assert worker.weight_transfer_engine.model_update_group is None
    assert first.destroyed == 1
