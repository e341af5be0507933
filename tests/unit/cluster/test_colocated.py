"""Engines sleep while the trainer on their GPUs works."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from benchmarks import simulated_time
from hamr.cluster.colocated import OFFLOAD_S, TimeSharedTrainer
from hamr.config.schema import TrainerConfig
from hamr.errors import EngineDied, TrainingDiverged
from hamr.types import TrainBatch

BATCH = TrainBatch(groups=())


class FakeActors:
    """Trainer and engines that note what happens."""

    def __init__(self, fails: Exception | None = None, wakes: bool = True) -> None:
        self.log: list[str] = []
        self.fails, self.wakes = fails, wakes
        self.offloads = asyncio.Event()
        self.offloads.set()

    async def sleep(self, level: int) -> None:
        self.log.append(f"sleep {level}")

    async def wake_up(self) -> None:
        self.log.append("wake up")
        if not self.wakes:
            raise EngineDied("a rollout worker could not wake up: CUDA out of memory")

    async def train(self, batch: TrainBatch) -> dict[str, float]:
        self.log.append("train")
        if self.fails:
            raise self.fails
        return {"policy/loss": 1.0}

    async def offload_states(self) -> None:
        self.log.append("offload")
        await self.offloads.wait()

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
    both = FakeActors(fails=EngineDied("rank 0 died"))
    with pytest.raises(EngineDied):
        await TimeSharedTrainer(both, both).train(BATCH)
    assert both.log == ["sleep 2", "train", "wake up"]


async def test_error_of_a_step_is_raised_though_engines_cannot_wake_up(caplog: pytest.LogCaptureFixture) -> None:
    both = FakeActors(fails=TrainingDiverged("5 consecutive steps"), wakes=False)
    with pytest.raises(TrainingDiverged, match="5 consecutive steps"):
        await TimeSharedTrainer(both, both).train(BATCH)
    assert both.log == ["sleep 2", "train", "offload", "wake up"]
    assert "CUDA out of memory" in caplog.text


def test_error_of_a_step_does_not_wait_for_a_rank_that_hangs(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> float:
        both = FakeActors(fails=TrainingDiverged("5 consecutive steps"))
        both.offloads.clear()
        with pytest.raises(TrainingDiverged):
            await TimeSharedTrainer(both, both).train(BATCH)
        assert both.log[-1] == "wake up"
        return asyncio.get_running_loop().time()

    assert simulated_time.run(run()) == OFFLOAD_S
    assert "did not release memory" in caplog.text
