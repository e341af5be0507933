"""Errors of a group of trainer ranks, and the port at which they meet."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
from ray.exceptions import ActorDiedError, RayTaskError
from torch.distributed import TCPStore

from benchmarks import simulated_time
from hamr.config.algorithm import AlgorithmConfig
from hamr.config.schema import ModelConfig, TrainerConfig
from hamr.errors import EngineDied, TrainingDiverged
from hamr.trainer.actors import TrainerGroup, TrainerRank, _explaining


def died(text: str) -> ActorDiedError:
    error = ActorDiedError()
    error.error_msg = text
    return error


def test_death_of_a_rank_explains_the_errors_of_the_others() -> None:
    killed = died("The actor died.\n\tpid: 3\nWorker exit detail: connection error code 2.")
    error = _explaining({0: TrainingDiverged("no peer"), 1: killed})
    assert isinstance(error, EngineDied)
    assert str(error) == "trainer rank 1 died: connection error code 2."
    causes = died(f"{killed} Some common causes include: (1) the process was killed by the OOM killer, (2) ray stop.")
    assert str(_explaining({0: causes})).endswith("died: connection error code 2. (killed, or out of memory)")


def test_worker_that_dies_during_a_transfer_is_not_called_a_rank() -> None:
    killed = died("The actor died.\n\tpid: 3\nWorker exit detail: connection error code 2.")
    sending = RayTaskError("call", "Traceback ...", killed).as_instanceof_cause()
    error = _explaining({0: sending, 1: RuntimeError("peer closed")})
    assert isinstance(error, EngineDied)
    assert str(error) == "a rollout worker died during the transfer of weights: connection error code 2."
    assert str(_explaining({0: sending, 1: killed})).startswith("trainer rank 1 died")


def test_reason_is_the_error_of_the_constructor_or_the_shortage_of_memory() -> None:
    constructor = died("The actor died because of an error raised in its task\n  File x\nOSError: no such model")
    assert str(_explaining({0: constructor})) == "trainer rank 0 died: OSError: no such model"
    memory = died("Task was killed due to the node running low on memory.\nMemory was 9GB\nSee the docs")
    assert str(_explaining({0: memory})) == "trainer rank 0 died: killed because its node runs low on memory"


def test_error_of_hamr_comes_before_that_of_a_library() -> None:
    diverged = TrainingDiverged("five steps")
    assert _explaining({0: RuntimeError("peer closed"), 1: diverged}) is diverged


class SlowRank:
    """Stand-in for a rank's actor that takes 60 s to load the model."""

    def __init__(self) -> None:
        self.meeting_point = SimpleNamespace(remote=lambda: asyncio.sleep(0, ("host", 1)))
        self.set_up = SimpleNamespace(remote=lambda *_, **__: asyncio.sleep(60, 7))


def test_start_may_take_longer_than_other_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    factory = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda *_: SlowRank()))
    monkeypatch.setattr(ray, "remote", lambda actor: factory)
    monkeypatch.setattr(ray, "kill", lambda actor: None)
    config, model = TrainerConfig(deadline_s=30), ModelConfig()

    async def start(timeout_s: float) -> tuple[int, ...]:
        group = await TrainerGroup.start(
            config, AlgorithmConfig(), model, Path("m"), 1, 0, 1.0, start_timeout_s=timeout_s
        )
        return group.pids

    assert simulated_time.run(start(90)) == (7,)
    limits = "did not answer in 30 s; see cluster.start_timeout_s and trainer.deadline_s"
    with pytest.raises(EngineDied, match=limits):
        simulated_time.run(start(20))


def test_port_of_the_meeting_point_is_held_until_a_server_listens() -> None:
    rank = TrainerRank(0, 1)
    _, port = rank.meeting_point()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("", port))
    store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    store.set("key", "value")
    assert TCPStore("127.0.0.1", port).get("key") == b"value"
