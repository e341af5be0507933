"""Requests on rollout workers of different speeds, and workers that die, on stand-ins for Ray's actors."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.exceptions import ActorDiedError, RayTaskError

from benchmarks import simulated_time
from hamr.config.pools import EngineConfig
from hamr.config.schema import ModelConfig, RolloutConfig
from hamr.errors import EngineDied
from hamr.protocols import GenerationRequest, SamplingConfig
from hamr.rollout import workers as module
from hamr.rollout.workers import MAX_REPLACEMENTS, RolloutWorker, RolloutWorkers, _Slot
from hamr.trainer.weight_sync import PROBE_SAMPLES, DeviceSync, SharedMemorySync, _measure
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
    """Stand-in for a worker's actor: dies at a method, or after `lasts` responses, or raises in a method. A response
    takes `seconds` and `turns` turns of the event loop."""

    def __init__(
        self, dies_at: str = "", lasts: int = 99, turns: int = 0, fails_at: str = "", seconds: float = 0.0
    ) -> None:
        self.seconds = seconds
        self.dies_at, self.lasts, self.turns, self.fails_at = dies_at, lasts, turns, fails_at
        self.loaded: list[int] = []
        self.called: list[str] = []
        self.asked: list[GenerationRequest] = []
        self.open = asyncio.Event()
        """Lets it start."""
        self.open.set()

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
        self.actor.called.append(self.name)
        if self.name == self.actor.dies_at:
            raise died()
        if self.name == self.actor.fails_at:
            raise RayTaskError(self.name, "Traceback ...", ValueError("half of a file"))
        await self.actor.open.wait()
        if self.name == "load_weights":
            self.actor.loaded.append(args[1])
        return 7

    async def stream(self, requests: list[GenerationRequest]) -> AsyncIterator[Awaitable[Any]]:
        self.actor.asked += requests
        for request in requests:
            for key in request.keys:
                if self.actor.seconds:
                    await asyncio.sleep(self.actor.seconds)
                for _ in range(self.actor.turns):
                    await asyncio.sleep(0)
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


async def test_worker_that_failed_to_load_weights_is_replaced() -> None:
    """The weights of its engine are unknown. The others have the new version."""
    failed, other, last = Actor(fails_at="load_weights"), Actor(), Actor()
    workers = several(failed, other, replacements=iter([last]))
    await workers.load_weights(Path("weights"), 2)
    assert (other.loaded, last.loaded, workers.version) == ([2], [2], 2)
    assert len([r async for r in workers.generate([group("a"), group("b")])]) == 8
    assert failed.asked == []


async def test_update_that_fails_everywhere_ends_in_one_line() -> None:
    workers = crew(Actor(fails_at="load_weights"), (Actor(fails_at="load_weights") for _ in range(99)))
    with pytest.raises(EngineDied, match=r"could not load weights: half of a file$"):
        await workers.load_weights(Path("weights"), 1)


async def test_replacement_reads_the_weights_after_they_are_written() -> None:
    """A replacement that starts while the trainers write the file does not read half of it as the old version."""
    last, written = Actor(), asyncio.Event()
    workers = several(Actor(lasts=0), replacements=iter([last]))
    await workers.load_weights(Path("weights"), 1)

    class Writers:
        async def write_weights(self, path: Path) -> None:
            await written.wait()

    workers.config = workers.config.model_copy(update={"check_logprobs": False})
    sync = SharedMemorySync(Writers(), workers)  # type: ignore[arg-type]
    sync._path = Path("weights")
    syncing = asyncio.create_task(sync.sync(2))
    await asyncio.sleep(0)
    asked = asyncio.create_task(anext(workers.generate([group("a")])))
    while not workers.replaced:
        await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)
    assert last.loaded == [] and not asked.done()
    written.set()
    await asyncio.gather(syncing, asked)
    assert set(last.loaded) == {2}


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


@pytest.mark.parametrize(("method", "args"), [("sleep", (2,)), ("wake_up", ()), ("commit_version", (1,)), ("pid", ())])
async def test_death_in_a_call_without_replacement_is_one_line(method: str, args: tuple[int, ...]) -> None:
    workers = crew(Actor(method), iter(()))
    call = workers.pids if method == "pid" else getattr(workers, method)
    with pytest.raises(EngineDied, match=r"^a rollout worker died before it could .*: Worker unexpectedly exits"):
        await call(*args)


async def test_sleep_waits_until_a_replacement_has_its_weights() -> None:
    """vLLM would write the weights into memory that it has released."""
    late, other = Actor(), Actor()
    late.open.clear()
    workers = several(Actor(lasts=0), other, replacements=iter([late]))
    await workers.load_weights(Path("weights"), 3)
    assert len([r async for r in workers.generate([group("a"), group("b")])]) == 8
    sleeping = asyncio.create_task(workers.sleep(2))
    for _ in range(20):
        await asyncio.sleep(0)
    assert "sleep" not in late.called + other.called
    late.open.set()
    await sleeping
    assert late.called == ["pid", "load_weights", "check", "sleep"]


DEAD = pytest.mark.parametrize("dead", [{"dies_at": "check"}, {"fails_at": "check"}], ids=["worker", "core process"])


@DEAD
async def test_worker_that_died_between_two_calls_is_replaced_before_sleep(dead: Any) -> None:
    """The process of a worker answers after vLLM's core process has died."""
    old, new = Actor(**dead), Actor()
    workers = crew(old, iter([new]))
    await workers.sleep(1)
    assert (workers.replaced, new.called[-1], old.called) == (1, "sleep", ["check"])


@DEAD
async def test_worker_that_died_between_two_calls_is_replaced_before_sync(dead: Any) -> None:
    old, new = Actor(**dead), Actor()
    workers = crew(old, iter([new]), transfer="ipc", check_logprobs=False)
    sent: list[Any] = []

    class Trainers:
        async def open_transfer(self, address: None, client: Any) -> None: ...

        async def send_weights(self) -> None:
            sent.append(workers.handles)

    await DeviceSync(Trainers(), workers).sync(1)  # type: ignore[arg-type]
    assert (sent, old.called, new.called) == ([[new]], ["check"], ["pid", "commit_version"])


async def test_check_fails_once_the_engine_has_stopped() -> None:
    worker = RolloutWorker.__new__(RolloutWorker)
    worker.engine = SimpleNamespace(alive=True)  # type: ignore[assignment]
    await worker.check()
    worker.engine = SimpleNamespace(alive=False)  # type: ignore[assignment]
    with pytest.raises(EngineDied, match="its engine has stopped"):
        await worker.check()


async def test_replaced_worker_rejoins_the_transfer_between_gpus() -> None:
    new = Actor()
    workers = crew(Actor(lasts=1), iter([new]), transfer="nccl")
    workers.version = 1
    joined: list[Any] = []

    async def rejoin() -> None:
        joined.append(workers.handles)

    workers.rejoin = rejoin
    assert await responses(workers) == [0, 1, 2]
    assert (joined, new.loaded) == ([[new]], [])


async def test_worker_that_cannot_rejoin_counts_as_dead() -> None:
    workers = crew(Actor(lasts=0), iter([Actor(), Actor()]), transfer="nccl")
    workers.version = 1
    tries = iter((died(), None))

    async def rejoin() -> None:
        if error := next(tries):
            raise error

    workers.rejoin = rejoin
    assert await responses(workers) == [0, 1, 2]
    assert workers.replaced == 2


def several(*actors: Actor, replacements: Iterator[Actor] | None = None) -> RolloutWorkers:
    config = RolloutConfig(workers=len(actors), engine=EngineConfig(max_num_seqs=4))
    own: list[Any] = [_Slot(seed=i, actor=actor) for i, actor in enumerate(actors)]  # type: ignore[arg-type]
    return RolloutWorkers(config, own, lambda seed: next(replacements))  # type: ignore


def group(name: str, samples: int = 4) -> GenerationRequest:
    keys = tuple(SampleKey(run="r", step=1, prompt=name, sample=i) for i in range(samples))
    return GenerationRequest(keys=keys, seeds=tuple(range(samples)), prompt_ids=(1, 2), sampling=SamplingConfig())


async def all_of(workers: RolloutWorkers, name: str) -> int:
    return len([r async for r in workers.generate([group(name)])])


def test_deadline_starts_when_an_engine_has_the_request() -> None:
    """Each group has a call of its own, and the last of three waits for 16 s."""

    async def run() -> None:
        workers = several(Actor(seconds=2.0))
        workers.config = workers.config.model_copy(update={"deadline_s": 3.0})
        assert await asyncio.gather(*(all_of(workers, name) for name in "abc")) == [4, 4, 4]

    simulated_time.run(run())


def opens_after(seconds: float) -> Actor:
    """Return an actor that takes this long to start."""
    late = Actor()
    late.open.clear()
    asyncio.get_running_loop().call_later(seconds, late.open.set)
    return late


def start_of(monkeypatch: pytest.MonkeyPatch, seconds: float, start_timeout_s: float) -> list[int]:
    async def run() -> list[int]:
        late = opens_after(seconds)
        factory = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda *_: late))
        monkeypatch.setattr(ray, "remote", lambda actor: factory)
        config = RolloutConfig(workers=1, deadline_s=600)
        workers = await RolloutWorkers.start(config, ModelConfig(), Path("m"), 0, start_timeout_s=start_timeout_s)
        return await workers.pids()

    return simulated_time.run(run())


def test_start_has_a_longer_limit_than_other_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    assert start_of(monkeypatch, 1000, start_timeout_s=1800) == [7]
    assert start_of(monkeypatch, 500, start_timeout_s=300) == [7]
    with pytest.raises(EngineDied, match="did not start in 600 s; see cluster.start_timeout_s and rollout.deadline_s"):
        start_of(monkeypatch, 1000, start_timeout_s=300)


def test_replacement_has_the_limit_of_a_start() -> None:
    async def run() -> None:
        workers = several(Actor(lasts=0), replacements=iter([opens_after(1000)]))
        workers.start_timeout_s = 1800
        assert await all_of(workers, "a") == 4
        assert workers.replaced == 1

    simulated_time.run(run())


def test_worker_without_a_response_ends_the_call_though_another_responds(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        hung, busy = Actor(seconds=1e9), Actor(seconds=2.0)
        workers = several(hung, busy)
        workers.config = workers.config.model_copy(update={"deadline_s": 3.0})
        calls = [asyncio.create_task(all_of(workers, name)) for name in "abc"]
        await asyncio.sleep(2.9)
        assert not any(call.done() for call in calls)
        with pytest.raises(EngineDied, match="no response in 3 s while 4 were due"):
            await calls[0]
        assert await calls[1] == 4
        calls[2].cancel()

    monkeypatch.setattr(ray, "cancel", lambda stream: None)
    simulated_time.run(run())


@pytest.mark.parametrize("turns", range(4))
async def test_cancelled_call_ends_though_a_response_arrives(turns: int) -> None:
    """asyncio.wait_for of Python 3.11 would return the response and forget the cancellation."""
    arrived: asyncio.Queue[Any] = asyncio.Queue()
    waits = asyncio.create_task(several(Actor())._next(arrived, [], 1))
    await asyncio.sleep(0)
    arrived.put_nowait(ROLLOUT)
    for _ in range(turns):
        await asyncio.sleep(0)
    if waits.cancel():
        with pytest.raises(asyncio.CancelledError):
            await waits


async def test_comparison_after_a_sync_does_not_wait_for_a_pause() -> None:
    class Trainers:
        async def logprobs(self, groups: Any) -> Any:
            return [[[-1.0] for _ in groups[0].sequences]]

    workers = several(Actor())
    assert await all_of(workers, "a") == 4
    async with workers.pause():
        queued = asyncio.create_task(all_of(workers, "b"))
        found = await asyncio.wait_for(_measure(Trainers(), workers, 1, 0.0, 0.0), 1)
        assert not queued.done()
    assert found["rollout/logprob_diff/max"] == 0.0 and await queued == 4


async def test_comparison_after_a_sync_includes_every_worker() -> None:
    class Trainers:
        async def logprobs(self, groups: Any) -> Any:
            return [[[-1.0] for _ in groups[0].sequences]]

    actors = [Actor(turns=2) for _ in range(3)]
    workers = several(*actors)
    workers.last_prompt = (1, 2)
    await _measure(Trainers(), workers, 1, 0.0, 0.0)
    assert [len(actor.asked) for actor in actors] == [1, 1, 1]
    assert len({key for actor in actors for request in actor.asked for key in request.keys}) == 3 * PROBE_SAMPLES


async def test_slower_worker_gets_fewer_requests() -> None:
    slow, fast = Actor(turns=12), Actor(turns=2)
    requests = [group(str(i)) for i in range(20)]
    keys = [r.key async for r in several(slow, fast).generate(requests)]
    assert sorted(map(str, keys)) == sorted(str(key) for request in requests for key in request.keys)
    assert 1 < len(slow.asked) < len(fast.asked) / 3
    assert {str(r) for r in slow.asked + fast.asked} == set(map(str, requests)), "groups stay whole, with their seeds"


async def test_rest_of_a_dead_workers_group_goes_to_another() -> None:
    late = Actor()
    late.open.clear()
    dead, other = Actor(lasts=1), Actor()
    workers = several(dead, other, replacements=iter([late]))
    await workers.load_weights(Path("weights"), 1)
    rollouts = [r.key async for r in workers.generate([group("a"), group("b")])]
    assert len(rollouts) == len(set(rollouts)) == 8
    [repeated] = [r for r in other.asked if r.keys[0].prompt == "a"]
    assert (repeated.keys, repeated.seeds) == (group("a").keys[1:], (1, 2, 3))
    assert (late.asked, late.loaded) == ([], [])


async def test_cancelled_call_leaves_the_replacement_with_the_newest_weights() -> None:
    late = Actor()
    late.open.clear()
    workers = several(Actor(lasts=0), replacements=iter([late]))
    await workers.load_weights(Path("weights"), 3)
    call = asyncio.create_task(anext(workers.generate([group("a")])))
    while not workers.replaced:
        await asyncio.sleep(0)
    call.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await call
    late.open.set()
    assert len([r async for r in workers.generate([group("b")])]) == 4
    assert late.loaded == [3]
