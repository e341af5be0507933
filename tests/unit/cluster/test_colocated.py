"""Engines sleep while the trainer on their GPUs works."""

from __future__ import annotations

from pathlib import Path

import pytest

from hamr.cluster.colocated import TimeSharedTrainer
from hamr.errors import EngineDied
from hamr.types import TrainBatch

BATCH = TrainBatch(groups=())


class FakeActors:
    """Trainer and engines that note what happens."""

    def __init__(self, fails: bool = False) -> None:
        self.log: list[str] = []
        self.fails = fails

    async def sleep(self) -> None:
        self.log.append("sleep")

    async def wake_up(self) -> None:
        self.log.append("wake up")

    async def train(self, batch: TrainBatch) -> dict[str, float]:
        self.log.append("train")
        if self.fails:
            raise EngineDied("rank 0 died")
        return {"policy/loss": 1.0}

    async def release_memory(self) -> None:
        self.log.append("release")

    async def save(self, folder: Path) -> None:
        self.log.append(f"save {folder}")

    async def load(self, folder: Path) -> None:
        self.log.append(f"load {folder}")


async def test_engines_sleep_during_a_training_step() -> None:
    both = FakeActors()
    turns = TimeSharedTrainer(both, both)
    assert await turns.train(BATCH) == {"policy/loss": 1.0}
    await turns.save(Path("a"))
    await turns.load(Path("b"))
    assert both.log == ["sleep", "train", "release", "wake up", "save a", "load b"]


async def test_engines_wake_up_after_a_failed_step() -> None:
    both = FakeActors(fails=True)
    with pytest.raises(EngineDied):
        await TimeSharedTrainer(both, both).train(BATCH)
    assert both.log == ["sleep", "train", "wake up"]
