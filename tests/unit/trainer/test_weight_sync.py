"""Weight sync with trainers and engines on other hosts."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hamr.config.pools import EngineConfig
from hamr.config.schema import RolloutConfig
from hamr.errors import EngineDied
from hamr.models.weights import NcclAddress
from hamr.trainer.weight_sync import AdapterSync, DeviceSync, RolloutClient, SharedMemorySync


class Engines:
    """Rollout workers that record their calls."""

    def __init__(self, workers: int, tensor_parallel: int = 1, transfer: Any = "nccl") -> None:
        engine = EngineConfig(num_gpus=tensor_parallel, tensor_parallel_size=tensor_parallel)
        self.config = RolloutConfig(workers=workers, engine=engine, check_logprobs=False, transfer=transfer)
        self.version = 0
        self.rejoin: Any = None
        self.log: list[Any] = []
        self.handles = [SimpleNamespace() for _ in range(workers)]
        self.weight_file = asyncio.Lock()

        self.replacing = False

    async def settle(self) -> None:
        if self.replacing:
            self.replacing = False
            await self.rejoin()

    async def commit_version(self, version: int) -> None:
        self.log.append(version)

    async def load_weights(self, path: Path, version: int) -> None:
        self.log.append((path, version))

    async def load_adapter(self, files: dict[str, bytes], version: int) -> None:
        self.log.append((files, version))


class Senders:
    """Trainers on a host of their own."""

    def __init__(self) -> None:
        self.log: list[Any] = []

    async def meeting_point(self) -> tuple[str, int]:
        return "10.0.0.7", 4321

    async def open_transfer(self, address: NcclAddress | None, client: RolloutClient) -> None:
        self.log.append(address)

    async def send_weights(self) -> None:
        self.log.append("sent")

    async def adapter_files(self) -> dict[str, bytes]:
        return {"adapter_config.json": b"{}"}


async def test_adapter_is_sent_without_other_weights() -> None:
    trainers, engines = Senders(), Engines(workers=1, transfer="adapter")
    metrics = await AdapterSync(trainers, engines).sync(3)  # type: ignore[arg-type]
    assert (trainers.log, engines.log) == ([], [({"adapter_config.json": b"{}"}, 3)])
    assert metrics.keys() == {"timing/sync/write", "timing/sync/load"}


async def test_nccl_rendezvous_is_on_the_host_of_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM lets rank 0 listen there; this process may be on another node, whose address that rank cannot use."""
    monkeypatch.setattr(socket, "gethostbyname", lambda name: pytest.fail("the driver's own address is of no use"))
    trainers, engines = Senders(), Engines(workers=3, tensor_parallel=2)
    sync = DeviceSync(trainers, engines)  # type: ignore[arg-type]
    await sync.sync(1)
    await sync.sync(2)
    assert trainers.log == [NcclAddress("10.0.0.7", 4321, 7), "sent", "sent"], "they join once"
    assert engines.log == [1, 2]


async def test_a_replaced_worker_lets_all_join_again_and_get_the_same_version() -> None:
    trainers, engines = Senders(), Engines(workers=2)
    sync = DeviceSync(trainers, engines)  # type: ignore[arg-type]
    await sync.sync(4)
    engines.version = 4
    await engines.rejoin()
    await sync.sync(5)
    join = NcclAddress("10.0.0.7", 4321, 3)
    assert trainers.log == [join, "sent", join, "sent", "sent"]
    assert engines.log == [4, 4, 5]


async def test_sync_waits_until_a_replacement_has_joined() -> None:
    trainers, engines = Senders(), Engines(workers=1)
    sync = DeviceSync(trainers, engines)  # type: ignore[arg-type]
    await sync.sync(1)
    engines.replacing = True
    await sync.sync(2)
    join = NcclAddress("10.0.0.7", 4321, 2)
    assert trainers.log == [join, "sent", join, "sent", "sent"]


async def test_ipc_needs_no_rendezvous() -> None:
    trainers, engines = Senders(), Engines(workers=2, transfer="ipc")
    await DeviceSync(trainers, engines).sync(1)  # type: ignore[arg-type]
    assert trainers.log == [None, "sent"]


class Writers:
    """Trainers on another host, whose shared memory this process cannot see."""

    def __init__(self, fail: bool = False) -> None:
        self.log: list[Any] = []
        self.fail = fail

    async def share_weights(self, directory: Path, wanted: int) -> Path:
        self.log.append(("share", directory, wanted))
        return directory / "hamr-weights-7-there.safetensors"

    async def write_weights(self, path: Path) -> None:
        self.log.append(("write", path))
        if self.fail:
            raise EngineDied("rank 0 died")

    async def remove_weights(self) -> None:
        self.log.append("remove")


async def test_weight_files_are_removed_on_the_host_that_wrote_them(tmp_path: Path) -> None:
    """This host has a file of the same name and one of a dead process, which belong to others."""
    path = tmp_path / "hamr-weights-7-there.safetensors"
    here = [path, tmp_path / "hamr-weights-999999999-dead.safetensors"]
    for file in here:
        file.write_text("w")
    trainers, engines = Writers(), Engines(workers=1)
    sync = SharedMemorySync(trainers, engines, directory=tmp_path)  # type: ignore[arg-type]
    await sync.open(100)
    await sync.sync(1)
    await sync.sync(2)
    await sync.close()
    assert trainers.log == [("share", tmp_path, 100), ("write", path), ("write", path), "remove"]
    assert engines.log == [(path, 1), (path, 2)]
    broken = SharedMemorySync(Writers(fail=True), engines, directory=tmp_path)  # type: ignore[arg-type]
    with pytest.raises(EngineDied):
        await broken.sync(1)
    assert all(file.exists() for file in here)
