"""Rollout workers on Ray: streaming, assignment, crashes and weight sync. Checks use order only, no clocks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from hamr.config.pools import EngineConfig
from hamr.config.schema import ModelConfig, RolloutConfig
from hamr.errors import BadInput, EngineDied
from hamr.models.weights import weight_file
from hamr.protocols import GenerationRequest
from hamr.rollout.workers import RolloutWorkers
from hamr.trainer.weight_sync import SharedMemorySync
from hamr.types import TrainGroup

pytestmark = [pytest.mark.integration, pytest.mark.timeout(500)]

ENGINE = EngineConfig(threads=1, kv_cache_mb=32)
MODEL = ModelConfig(path="tiny", dtype="float32", max_context=512)


@pytest.fixture
async def workers(local_ray: None, tiny: Path) -> Any:
    started = await RolloutWorkers.start(RolloutConfig(workers=2, deadline_s=240, engine=ENGINE), MODEL, tiny, seed=0)
    yield started
    started.shutdown()


class HostedTrainers:
    """Trainers for the sync: one transformers model in this process."""

    def __init__(self, model: Any) -> None:
        self.model = model

    async def share_weights(self, directory: Path, wanted: int) -> Path:
        self.shared = weight_file(directory, "hosted")
        return self.shared

    async def remove_weights(self) -> None:
        self.shared.unlink()

    async def write_weights(self, path: Path) -> None:
        self.model.save(path)

    async def logprobs(self, groups: Sequence[TrainGroup]) -> list[list[list[float]]]:
        return [[self.model.logprobs(g.prompt_ids, s.token_ids) for s in g.sequences] for g in groups]


@pytest.mark.deep
async def test_workers_stream_survive_a_crash_and_sync_weights(
    workers: RolloutWorkers,
    tiny: Path,
    prompt_ids: tuple[int, ...],
    request_of: Callable[..., GenerationRequest],
    oracle: Any,
    tmp_path: Path,
) -> None:
    """Several claims share one pair of workers, since starting them is expensive; each paragraph checks one."""
    # Every response is handed over when it ends: the weights that are loaded on the arrival of the first one are
    # found in the last one's tokens.
    new = oracle(tiny, noise=0.02)
    path = new.save(tmp_path / "new.safetensors")
    asked = [request_of(prompt_ids, "short", 2, 3), request_of(prompt_ids[::-1], "long", 4, 300)]
    seen = []
    async for rollout in workers.generate(asked):
        if not seen:
            await workers.load_weights(path, 1)
        seen.append(rollout)
    assert sorted(r.key.sample for r in seen if r.key.prompt == "short") == [0, 1]
    assert sorted(r.key.sample for r in seen if r.key.prompt == "long") == [0, 1, 2, 3]
    assert any(span.version == 1 for span in seen[-1].versions)

    # Responses whose requests were cancelled are aborted in the engines: all end before one that began before them.
    async def first_of(requests: Sequence[GenerationRequest]) -> None:
        async with contextlib.aclosing(workers.generate(requests)) as stream:
            await anext(stream)

    patient = asyncio.create_task(first_of([request_of(prompt_ids, f"patient{i}", 1, 400) for i in range(2)]))
    await asyncio.sleep(0)
    aborted = [request_of(prompt_ids, f"aborted{i}", 8, 400) for i in range(2)]
    await first_of([*aborted, request_of(prompt_ids, "short", 1, 2)])
    while max([await handle.count_unfinished.remote() for handle in workers.handles]) > 1:
        assert not patient.done()
    await patient

    # A worker that is killed in the middle: every key arrives exactly once, and what its replacement generates comes
    # from the newest weights, not from those on disk.
    killed = await workers.pids()
    asked = [request_of(prompt_ids, f"g{i}", 4, 200) for i in range(4)]
    asked.append(request_of(prompt_ids, "first", 1, 2))
    seen = []
    async for rollout in workers.generate(asked):
        if not seen:
            os.kill(killed[0], signal.SIGKILL)
        seen.append(rollout)
    assert len(seen) == 17
    assert {r.key for r in seen} == {key for request in asked for key in request.keys}
    assert workers.replaced == 1
    assert set(killed) & set(await workers.pids()) == {killed[1]}
    assert {span.version for r in seen for span in r.versions} == {1}
    for rollout in seen:
        assert rollout.logprobs == pytest.approx(new.logprobs(prompt_ids, rollout.token_ids), abs=1e-3)

    # A sync brings the trainer's weights into every engine and measures that they agree; one file stays for
    # replacements until the end.
    newer = oracle(tiny, noise=0.03)
    sync = SharedMemorySync(HostedTrainers(newer), workers, directory=tmp_path)
    first = await sync.sync(2)
    second = await sync.sync(3)
    for metrics in (first, second):
        assert set(metrics) == {
            "timing/sync/write",
            "timing/sync/load",
            "rollout/logprob_diff/mean",
            "rollout/logprob_diff/max",
        }
        assert metrics["rollout/logprob_diff/mean"] <= metrics["rollout/logprob_diff/max"] < 1e-3
    assert workers.version == 3
    assert len(list(tmp_path.glob("hamr-weights-*"))) == 1

    # A worker that fails to load weights is replaced, since those of its engine are unknown. Both have the newest ones.
    await workers._answer_or_replace(workers._slots[0], "load weights", "load_weights", "missing.safetensors", 4)
    assert workers.replaced == 2
    both = [request_of(prompt_ids, f"v{i}", 2, 4) for i in range(2)]
    assert {s.version async for r in workers.generate(both) for s in r.versions} == {3}
    await sync.close()
    assert not list(tmp_path.glob("hamr-weights-*"))

    # The check would notice trainers that disagree with the engines.
    stale = SharedMemorySync(HostedTrainers(newer), workers, directory=tmp_path)
    stale._trainers.logprobs = HostedTrainers(new).logprobs  # type: ignore[method-assign]
    assert (await stale.sync(4))["rollout/logprob_diff/max"] > 1e-2
    await stale.close()

    # A request that cannot be served is refused with the reason, and takes nothing down.
    with pytest.raises(BadInput, match=r"^prompt: '512 tokens': must have 1 to 511 tokens"):
        _ = [r async for r in workers.generate([request_of((5,) * 512)])]
    assert len([r async for r in workers.generate([request_of(prompt_ids)])]) == 4

    # Workers that hang: no answer before the deadline is an error, not an endless wait.
    workers.config = workers.config.model_copy(update={"deadline_s": 3.0})
    for pid in await workers.pids():
        os.kill(pid, signal.SIGSTOP)
    with pytest.raises(EngineDied, match=r"rollout\.deadline_s"):
        _ = [r async for r in workers.generate([request_of(prompt_ids)])]
