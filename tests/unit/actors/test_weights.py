"""Weights on their way, with trainers and engines on hosts that are not this one."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest

from hamr.actors.weights import NcclSync, RolloutClient
from hamr.backends.weights import NcclAddress
from hamr.config.pools import EngineConfig
from hamr.config.schema import RolloutConfig


class Engines:
    """Rollout workers, of which nothing is asked but how many they are."""

    def __init__(self, workers: int, tensor_parallel: int = 1) -> None:
        engine = EngineConfig(num_gpus=tensor_parallel, tensor_parallel_size=tensor_parallel)
        self.config = RolloutConfig(workers=workers, engine=engine, check_logprobs=False)
        self.handles = [SimpleNamespace() for _ in range(workers)]

    async def commit_version(self, version: int) -> None:
        self.version = version


class Senders:
    """Trainers on a host of their own."""

    def __init__(self) -> None:
        self.log: list[Any] = []

    async def meeting_point(self) -> tuple[str, int]:
        return "10.0.0.7", 4321

    async def open_transfer(self, address: NcclAddress, client: RolloutClient) -> None:
        self.log.append(address)

    async def send_weights(self) -> None:
        self.log.append("sent")


async def test_engines_and_trainers_meet_where_rank_0_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM has rank 0 listen there: this process may be on another node, whose address that rank cannot take."""
    monkeypatch.setattr(socket, "gethostbyname", lambda name: pytest.fail("the driver's own address is of no use"))
    trainers, engines = Senders(), Engines(workers=3, tensor_parallel=2)
    sync = NcclSync(trainers, engines)  # type: ignore[arg-type]
    await sync.sync(1)
    await sync.sync(2)
    assert trainers.log == [NcclAddress("10.0.0.7", 4321, 7), "sent", "sent"], "they join once"
    assert engines.version == 2
