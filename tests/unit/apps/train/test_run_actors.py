"""Start and stop order of a run's actors, on stand-ins that log it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hamr.apps.train import run_actors as world
from hamr.config.load import load_config
from hamr.errors import EngineDied

GPUS = [
    "trainer.backend=nccl",
    "trainer.num_gpus=0.4",
    "rollout.engine.num_gpus=0.5",
    "rollout.engine.gpu_memory_utilization=0.4",
    "rollout.engine.block_size=16",
]


class Parts:
    """Stand-ins for the actors of a run, with a delay between the start and the end of each."""

    def __init__(self, trainers_fail: bool = False) -> None:
        self.log: list[str] = []
        self.limits: list[float] = []
        self.trainers_fail = trainers_fail

    async def reserve(self, *args: Any) -> tuple[None, None]:
        return None, None

    async def trainers(self, *args: Any, **kwargs: Any) -> Any:
        self.log.append("trainers begin")
        self.limits.append(kwargs["start_timeout_s"])
        await asyncio.sleep(0.01)
        if self.trainers_fail:
            raise EngineDied("rank 0 died")
        self.log.append("trainers stand")
        return SimpleNamespace(share_weights=self.share, offload_states=self.offload)

    async def offload(self) -> None:
        self.log.append("states on the host")

    async def share(self, directory: Path, wanted: int) -> Path:
        return directory / "weights"

    async def workers(self, *args: Any, **kwargs: Any) -> Any:
        self.log.append("workers begin")
        self.limits.append(kwargs["start_timeout_s"])
        return SimpleNamespace()

    async def pools(self, *args: Any, **kwargs: Any) -> None:
        self.log.append("pools begin")
        self.limits.append(kwargs["timeout_s"])

    async def router(self, *args: Any) -> Any:
        self.log.append("router begins")

    async def stop_pools(self, run: str) -> None:
        self.log.append("pools end")


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Any:
    async def run(parts: Parts, *overrides: str) -> list[str]:
        monkeypatch.setattr(world, "reserve_learners", parts.reserve)
        monkeypatch.setattr(world.TrainerGroup, "start", parts.trainers)
        monkeypatch.setattr(world.RolloutWorkers, "start", parts.workers)
        monkeypatch.setattr(world.RouterClient, "start", parts.router)
        monkeypatch.setattr(world, "start_pools", parts.pools)
        monkeypatch.setattr(world, "stop_pools", parts.stop_pools)
        monkeypatch.setattr(world, "PoolClient", lambda *args: None)
        config = load_config(["experiment=smoke", *overrides])
        prepared: Any = SimpleNamespace(config=config, model_path=Path("m"), codec=SimpleNamespace(formats=None))
        await world.start_run_actors(prepared, {}, "run")
        return parts.log

    return run


async def test_parts_start_concurrently_and_the_router_last(start: Any) -> None:
    log = await start(Parts())
    assert log == ["trainers begin", "workers begin", "pools begin", "trainers stand", "router begins"]


async def test_colocated_engines_start_after_the_trainers(start: Any) -> None:
    """vLLM measures the GPU's free memory during its start, which a loading trainer would change."""
    log = await start(Parts(), "rollout.colocated=true", *GPUS)
    assert log == [
        "trainers begin", "pools begin", "trainers stand", "states on the host", "workers begin", "router begins",
    ]  # fmt: skip


async def test_pools_with_a_share_of_the_gpu_start_after_its_engines(start: Any) -> None:
    log = await start(Parts(), "rollout.colocated=true", *GPUS, "pools.judge.engine.num_gpus=0.2")
    assert log.index("workers begin") < log.index("pools begin")


async def test_colocated_engines_do_not_start_if_trainers_fail(start: Any) -> None:
    parts = Parts(trainers_fail=True)
    with pytest.raises(EngineDied, match="rank 0 died"):
        await start(parts, "rollout.colocated=true", *GPUS)
    assert parts.log == ["trainers begin", "pools begin", "pools end"]


async def test_all_actors_start_within_the_limit_of_the_cluster(start: Any) -> None:
    parts = Parts()
    await start(parts, "cluster.start_timeout_s=77")
    assert parts.limits == [77, 77, 77]
