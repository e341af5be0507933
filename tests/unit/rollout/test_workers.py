"""Replacement of rollout workers that die, on stand-ins for Ray's actors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.exceptions import ActorDiedError

from hamr.config.schema import RolloutConfig
from hamr.errors import EngineDied
from hamr.protocols import GenerationRequest, SamplingConfig
from hamr.rollout import workers as module
from hamr.rollout.workers import MAX_REPLACEMENTS, RolloutWorkers, _Slot
from hamr.types import Rollout, SampleKey

KEYS = tuple(SampleKey(run="r", step=1, prompt="p", sample=i) for i in range(3))

ROLLOUT = Rollout(
    key=KEYS[0], prompt_ids=(1, 2), token_ids=(3,), logprobs=(-1.0,), text="a", finish_reason="stop", versions=()
)


def died() -> ActorDiedError:
    error = ActorDiedError()
    error.error_msg = (
        "The actor died unexpectedly before finishing this task.\n\tclass_name: RolloutWorker\n\tpid: 12\n"
        "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: "
        "Worker unexpectedly exits with a connection error code 2. End of file. There are some potential root causes. "
        "(1) The process is killed by SIGKILL by OOM killer due to high memory usage. (2) ray stop --force is called."
    )
    return error


class Actor:
    """Stand-in for a worker's actor: dies at a method, or after `lasts` responses."""

    def __init__(self, dies_at: str = "", lasts: int = 99) -> None:
        self.dies_at, self.lasts = dies_at, lasts
        self.loaded: list[int] = []

    def __getattr__(self, method: str) -> Any:
        return Method(self, method)


class Method:
    def __init__(self, actor: Actor, name: str) -> None:
        self.actor, self.name = actor, name

    def options(self, **_: Any) -> Method:
        return self

    def remote(self, *args: Any) -> Any:
        return self.stream(*args) if self.name == "generate" else self.call(*args)

    async def call(self, *args: Any) -> int:
        if self.name == self.actor.dies_at:
            raise died()
        if self.name == "load_weights":
            self.actor.loaded.append(args[1])
        return 7

    async def stream(self, requests: list[GenerationRequest]) -> AsyncIterator[Awaitable[Any]]:
        for request in requests:
            for key in request.keys:
                if not self.actor.lasts:
                    raise died()
                self.actor.lasts -= 1
                yield ready(ROLLOUT, key)


async def ready(rollout: Rollout, key: SampleKey) -> Rollout:
    return replace(rollout, key=key)


@pytest.fixture(autouse=True)
def _no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "kill", lambda actor: None)
    monkeypatch.setattr(module, "FIRST_BACKOFF_S", 0.0)


def crew(first: Actor, replacements: Iterator[Actor], **config: Any) -> RolloutWorkers:
    actor: Any = first
    return RolloutWorkers(RolloutConfig(**config), [_Slot(seed=0, actor=actor)], lambda seed: next(replacements))  # type: ignore[arg-type, return-value]


async def responses(workers: RolloutWorkers) -> list[int]:
    request = GenerationRequest(keys=KEYS, seeds=(0, 1, 2), prompt_ids=(1, 2), sampling=SamplingConfig())
    return [r.key.sample async for r in workers.generate([request])]


async def test_replacements_that_die_while_starting_are_replaced() -> None:
    last = Actor()
    workers = crew(Actor(lasts=1), iter([Actor("pid"), Actor("load_weights"), last]))
    await workers.load_weights(Path("weights"), 3)
    assert await responses(workers) == [0, 1, 2]
    assert (workers.replaced, last.loaded) == (3, [3])


async def test_death_while_loading_weights_is_replaced() -> None:
    last = Actor()
    workers = crew(Actor("load_weights"), iter([Actor("load_weights"), last]))
    await workers.load_weights(Path("weights"), 1)
    assert last.loaded == [1]


@pytest.mark.parametrize("dies", ["start", "weights", "generate"])
async def test_too_many_deaths_end_in_one_line_with_the_reason(dies: str) -> None:
    spawned = []

    def replacements() -> Iterator[Actor]:
        while True:
            spawned.append(Actor({"start": "pid", "weights": "load_weights"}.get(dies, ""), lasts=0))
            yield spawned[-1]

    workers = crew(Actor(lasts=0), replacements())
    await workers.load_weights(Path("weights"), 1)
    with pytest.raises(EngineDied, match=r"^rollout worker 0 died 6 times within 30 min, the last error: ") as caught:
        await responses(workers)
    message = str(caught.value)
    assert (
        "Worker unexpectedly exits with a connection error code 2. End of file. (killed, or out of memory)" in message
    )
    assert "\n" not in message and "Traceback" not in message
    assert len(spawned) == MAX_REPLACEMENTS


async def test_deaths_outside_of_the_window_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WINDOW_S", 0.0)
    dying = [Actor("pid") for _ in range(3 * MAX_REPLACEMENTS)]
    workers = crew(Actor(lasts=1), iter([*dying, Actor()]))
    assert await responses(workers) == [0, 1, 2]
    assert workers.replaced == len(dying) + 1


@pytest.mark.parametrize(("method", "args"), [("sleep", ()), ("wake_up", ()), ("commit_version", (1,)), ("pid", ())])
async def test_death_in_a_call_without_replacement_is_one_line(method: str, args: tuple[int, ...]) -> None:
    workers = crew(Actor(method), iter(()))
    call = workers.pids if method == "pid" else getattr(workers, method)
    with pytest.raises(EngineDied, match=r"^a rollout worker died before it could .*: Worker unexpectedly exits"):
        await call(*args)


async def test_worker_under_nccl_is_not_replaced() -> None:
    workers = crew(Actor(lasts=0), iter(()), transfer="nccl")
    workers.version = 1
    with pytest.raises(EngineDied, match="transfer=nccl, which cannot replace it: Worker unexpectedly exits"):
        await responses(workers)
