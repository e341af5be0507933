"""Router actor and its client on the driver.

All decisions are in `hamr.cascade`; this module contains transport and fault tolerance. The actor keeps no state that
cannot be recomputed. When it dies, Ray restarts it and the client resends the calls in flight. A response may then be
scored twice but is recorded once: records carry a key, and the ledger accepts each key once.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import os
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hamr.calibration.cascade import Cascade
from hamr.cascade.router import RewardRouter
from hamr.cluster.session import ends_at_once, enter_folder
from hamr.config.pools import PoolConfig, RouterConfig
from hamr.config.rewards import RewardsConfig
from hamr.data.formats import Formats
from hamr.errors import HamrError
from hamr.garbage import collect_rarely
from hamr.models.tokenizer import load_tokenizer
from hamr.pools.client import PoolClient
from hamr.pools.function_pool import LOAD_S, FunctionPool, read_sources
from hamr.pools.router_calls import RouterCalls, ScoringStream
from hamr.protocols import Metrics
from hamr.rewards.custom import FunctionOutcome, RewardSource
from hamr.types import Answer, Failure, Question, RewardRecord, Rollout, ServiceSample

if TYPE_CHECKING:
    from ray.actor import ActorHandle
CONCURRENT_CALLS = 10_000
"""Maximum number of responses waiting for their reward. Ray's default of 1,000 is less than one large batch."""
GRACE_S = 15.0
"""The router enforces `deadline_s` itself. The client's timeout adds this and only covers a dead router."""
LONGEST_BACKOFF_S = 2.0
CLOSE_S = 3.0
YOUNG_OBJECTS = 100_000
"""First threshold of the router's garbage collector. Scoring leaves hardly any cycles, and a collection stops all
responses for 10 to 50 ms."""


class RouterActor:
    """Actor around one RewardRouter, whose pools are Serve handles."""

    def __init__(
        self,
        rewards: RewardsConfig,
        pools: Mapping[str, PoolConfig],
        router: RouterConfig,
        model_path: Path,
        formats: Formats,
        run: str,
        functions: Mapping[str, RewardSource],
        folder: str,
    ) -> None:
        enter_folder(folder)
        self.functions = {
            name: FunctionPool(source, rewards.custom[name].processes) for name, source in functions.items()
        }
        self.pools = {name: PoolClient(name, config, run) for name, config in pools.items()}
        self.router = RewardRouter(
            rewards,
            {name: pool.ask for name, pool in self.pools.items()},
            {name: function.score for name, function in self.functions.items()},
            count_tokens=load_tokenizer(model_path).count,
            formats=formats,
            deadline_s=router.deadline_s,
            group_wait_s=router.group_wait_s,
        )
        self.streams = defaultdict[str, ScoringStream](lambda: ScoringStream(self._score))
        collect_rarely(young=YOUNG_OBJECTS)

    async def start_scoring(self, stream: str, numbers: Sequence[int], calls: bytes) -> None:
        """Start scoring responses, whose records `results` of the same stream yields: see `hamr.pools.router_calls`."""
        self.streams[stream].start(numbers, calls)

    async def cancel_scoring(self, stream: str, numbers: Sequence[int]) -> None:
        self.streams[stream].cancel(numbers)

    async def results(self, stream: str) -> AsyncIterator[bytes]:
        """Yield packed records as they are done, until the caller cancels the call."""
        async for done in self.streams[stream].results():
            yield done

    async def _score(self, sample: ServiceSample, rollout: Rollout, cascade: Cascade | None) -> RewardRecord:
        return await self.router.score(sample, rollout, cascade=cascade)

    async def metrics(self) -> dict[str, float]:
        """Return the router's counts since the last call, and per pool those of its client since the start."""
        clients = {f"pool/{name}/{k}": v for name, pool in self.pools.items() for k, v in pool.metrics().items()}
        return self.router.metrics() | clients

    async def describe(self) -> dict[str, dict[str, Any]]:
        """Return the state of each pool as its client sees it: `PoolTally.describe`."""
        return {name: pool.describe() for name, pool in self.pools.items()}

    async def resize(self, replicas: Mapping[str, int]) -> None:
        for name, count in replicas.items():
            self.pools[name].resize(count)

    async def close(self) -> None:
        """Cancel all requests under way, so that replicas do not compute unused answers, and end the functions'
        processes."""
        for function in self.functions.values():
            function.close()
        await asyncio.gather(*(pool.close() for pool in self.pools.values()))

    async def forget(self) -> None:
        self.router.forget()

    async def ready(self) -> int:
        """Return the process id once the constructor has finished and the reward functions are loaded."""
        await asyncio.gather(*(function.start() for function in self.functions.values()))
        return os.getpid()


class RouterClient:
    """Router client for the controller (protocols.Rewarder)."""

    def __init__(self, actor: ActorHandle, router: RouterConfig, *, grace_s: float = GRACE_S) -> None:
        self.actor, self._wait_s = actor, router.deadline_s + grace_s
        self._calls = RouterCalls(actor)
        self._asked_again = 0
        self._failed = 0

    @classmethod
    async def start(
        cls,
        rewards: RewardsConfig,
        pools: Mapping[str, PoolConfig],
        router: RouterConfig,
        model_path: Path,
        formats: Formats,
        run: str,
        *,
        timeout_s: float = 60.0,
    ) -> RouterClient:
        """Start the actor. Its pools may be started later.

        Raises:
            ConfigError: The rewards do not fit the pools, or a reward function cannot be loaded.
            HamrError: The actor does not start within `timeout_s`.
        """
        import ray
        from ray.exceptions import RayError

        # A file may not exist on the router's node, so its text is sent.
        functions = read_sources(rewards)
        timeout_s += LOAD_S if functions else 0.0
        # Validate here, without Ray, so that a configuration error is one clear message and not an actor's death
        # report.
        RewardRouter(
            rewards,
            dict.fromkeys(pools, _never_asked),
            dict.fromkeys(functions, _never_called),
            count_tokens=load_tokenizer(model_path).count,
            formats=formats,
            deadline_s=router.deadline_s,
        )
        actor = (
            ray.remote(RouterActor)
            .options(
                num_cpus=router.num_cpus,
                max_restarts=-1,
                max_task_retries=0,
                max_concurrency=CONCURRENT_CALLS,
            )
            .remote(rewards, dict(pools), router, model_path, formats, run, functions, os.getcwd())
        )
        try:
            await asyncio.wait_for(actor.ready.remote(), timeout_s)
        except (TimeoutError, RayError) as e:
            ray.kill(actor)
            reason = str(e).strip().splitlines()
            why = reason[-1] if reason else f"no sign of life within {timeout_s:g} s"
            raise HamrError(f"the router did not start: {why}") from e
        return cls(actor, router)

    async def score(self, sample: ServiceSample, rollout: Rollout, *, cascade: Cascade | None = None) -> RewardRecord:
        """Return the response's record. Waits while the router restarts; after the deadline the record is a failure.

        The current settings travel with the call, so that a restarted router uses them too: see `RewardRouter`.
        """
        # Dropped because no reward reads it, and a prompt of 20,000 tokens would be sent for each response.
        lean = dataclasses.replace(rollout, prompt_ids=(), logprobs=())
        try:
            async with asyncio.timeout(self._wait_s):
                record: RewardRecord = await self._again_after_deaths(
                    lambda: self._calls.score(sample, lean, cascade), rescoring=True
                )
        except TimeoutError:
            self._failed += 1
            return _unrouted_record(rollout, f"the router returned no record within {self._wait_s:g} s")
        return dataclasses.replace(record, mean_logprob=rollout.mean_logprob)

    async def metrics(self) -> Metrics:
        """Return the router's metrics, with counts of this side's repeated (/rescored) and failed (/unrouted) calls."""
        metrics = await self._call("metrics")
        return metrics | {"router/rescored": float(self._asked_again), "router/unrouted": float(self._failed)}

    async def describe(self) -> dict[str, dict[str, Any]]:
        """Return per pool its breaker's state, the seconds until it admits questions, and the hedging budget."""
        return await self._call("describe")

    async def resize(self, replicas: Mapping[str, int]) -> None:
        """Set the pools' numbers of replicas. A restarted actor uses the configuration's numbers again."""
        await self._call("resize", dict(replicas))

    async def forget(self) -> None:
        """Clear the router's answer cache, e.g. after a change of a scorer's model or prompt."""
        await self._call("forget")

    async def shutdown(self) -> None:
        """End the actor and its requests to the pools."""
        import ray
        from ray.exceptions import RayError

        if ends_at_once():
            return
        with contextlib.suppress(RayError, TimeoutError):
            await asyncio.wait_for(self.actor.close.remote(), CLOSE_S)
        ray.kill(self.actor)

    async def _call(self, method: str, *args: Any) -> Any:
        async with asyncio.timeout(self._wait_s):
            return await self._again_after_deaths(lambda: getattr(self.actor, method).remote(*args))

    async def _again_after_deaths(self, call: Callable[[], Awaitable[Any]], *, rescoring: bool = False) -> Any:
        """Return the result of `call`, repeating it after every death of the actor. Runs until it is cancelled."""
        from ray.exceptions import RayActorError

        for again in itertools.count(1):
            try:
                return await call()
            except RayActorError:
                await asyncio.sleep(random.uniform(0.0, min(LONGEST_BACKOFF_S, 0.1 * 2**again)))
                self._asked_again += rescoring
        raise AssertionError("unreachable: the retries have no limit but the caller's deadline")


def _unrouted_record(rollout: Rollout, detail: str) -> RewardRecord:
    """Return the record of a response that was not scored: no components, no reward, counted as a failure."""
    return RewardRecord(
        key=rollout.key,
        total=Failure(detail=detail),
        response=rollout.text,
        response_tokens=len(rollout.token_ids),
        versions=rollout.versions,
    )


async def _never_asked(question: Question) -> Answer:
    raise AssertionError("placeholder for a pool during the configuration check")


async def _never_called(sample: ServiceSample, responses: Sequence[str]) -> Sequence[FunctionOutcome]:
    raise AssertionError("placeholder for a reward function during the configuration check")
