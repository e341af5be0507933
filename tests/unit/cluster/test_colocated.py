"""Engines sleep while the trainer on their GPUs works."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from hamr.cluster.colocated import TimeSharedTrainer
from hamr.config.schema import TrainerConfig
from hamr.errors import EngineDied
from hamr.types import TrainBatch

BATCH = TrainBatch(groups=())


class FakeActors:
    """Trainer and engines that note what happens."""

    def __init__(self, fails: bool = False) -> None:
        self.log: list[str] = []
        self.fails = fails

    async def sleep(self, level: int) -> None:
        self.log.append(f"sleep {level}")

    async def wake_up(self) -> None:
        self.log.append("wake up")

    async def train(self, batch: TrainBatch) -> dict[str, float]:
        self.log.append("train")
        if self.fails:
            raise EngineDied("rank 0 died")
        return {"policy/loss": 1.0}

    async def offload_states(self) -> None:
        self.log.append("offload")

    async def save(self, folder: Path) -> None:
        self.log.append(f"save {folder}")

    async def copy_state(self, folder: Path) -> Callable[[], Awaitable[None]]:
        self.log.append(f"copy {folder}")
        return partial(self.save, folder)

    async def load(self, folder: Path) -> None:
        self.log.append(f"load {folder}")

    async def reset(self, model_path: Path, *, config: TrainerConfig, total_steps: int) -> None:
        self.log.append(f"reset {model_path}")


async def test_engines_drop_their_weights_during_a_training_step() -> None:
    both = FakeActors()
    assert await TimeSharedTrainer(both, both).train(BATCH) == {"policy/loss": 1.0}
    assert both.log == ["sleep 2", "train", "offload", "wake up"]


async def test_engines_that_serve_an_adapter_keep_the_weights_below_it() -> None:
    both = FakeActors()
    turns = TimeSharedTrainer(both, both, serve_adapter=True)
    await turns.train(BATCH)
    async with turns.alone():
        pass
    assert both.log == ["sleep 1", "train", *(around := ["offload", "wake up"]), "sleep 1", *around]


async def test_engines_keep_their_weights_during_other_calls() -> None:
    both = FakeActors()
    turns = TimeSharedTrainer(both, both)
    await turns.reset(Path("m"), config=TrainerConfig(), total_steps=1)
    await turns.load(Path("b"))
    await turns.save(Path("a"))
    around = ["offload", "wake up"]
    assert both.log == ["sleep 1", "reset m", *around, "sleep 1", "load b", *around, "sleep 1", "save a", *around]


async def test_engines_generate_while_a_copied_state_is_written() -> None:
    both = FakeActors()
    write = await TimeSharedTrainer(both, both).copy_state(Path("a"))
    await write()
    assert both.log == ["sleep 1", "copy a", "offload", "wake up", "save a"]


async def test_engines_sleep_once_over_several_steps() -> None:
    both = FakeActors()
    turns = TimeSharedTrainer(both, both)
    async with turns.alone():
        await turns.train(BATCH)
        await turns.train(BATCH)
        await turns.save(Path("a"))
    assert both.log == ["sleep 2", "train", "train", "save a", "offload", "wake up"]


async def test_engines_wake_up_after_a_failed_step() -> None:
    both = FakeActors(fails=True)
    with pytest.raises(EngineDied):
        await TimeSharedTrainer(both, both).train(BATCH)
    assert both.log == ["sleep 2", "train", "wake up"]
