"""The whole reward system as an object: pools, router and typed records in any script, service or trainer.

>>> from hamr import RewardSystem                                                         # doctest: +SKIP
>>> with RewardSystem.from_config(["pools=mine", "--config-dir", "conf"]) as rewards:     # doctest: +SKIP
...     records = rewards.score([(sample, ["Sure, that is done.", "No."])])
"""

from __future__ import annotations

import asyncio
import atexit
import itertools
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar
from uuid import uuid4

from hamr.apps.score.background_loop import BackgroundLoop
from hamr.apps.scorer.prepare import prepare_scorers
from hamr.apps.shared.pool_room import check_pool_room
from hamr.apps.shared.reply_clusters import scorer_splits
from hamr.cascade.auditors import check_pool_auditor
from hamr.cluster.model_folders import POLICY, pool_model
from hamr.cluster.session import ray_session
from hamr.config.load import load_config, load_dumped
from hamr.config.schema import Config
from hamr.data.formats import Formats
from hamr.data.responses import ResponseGroup, Scorable, as_group
from hamr.models.bundled import resolve_model
from hamr.pools.client import app_name, import_serve
from hamr.pools.deployment import ScorerFactory, pool_status, start_pools, stop_pools
from hamr.pools.function_pool import check_functions
from hamr.pools.router_actor import RouterClient
from hamr.pools.scorers import build_scorer
from hamr.rewards.judged import check_reward_files
from hamr.types import RewardRecord

T = TypeVar("T")


class RewardSystem:
    """Scores responses, alone or in groups, from any thread and any event loop.

    Starts on first use, on `start()` or as a context manager (`with`, `async with`), and keeps its pools until
    `close()`. An initialised Ray in this process is used and left running. Otherwise a private Ray, or the cluster at
    `cluster.address`, is used while the system is open.

    A scorer failure is a typed outcome in the record, never an exception and never a number.
    """

    def __init__(
        self,
        config: Config,
        *,
        run: str = "score",
        note: Callable[[str], None] = lambda line: None,
        scorer_factory: ScorerFactory = build_scorer,
    ) -> None:
        """Create a reward system; nothing is started yet. Raises ConfigError for an auditor other than pools.

        Args:
            run: Name in the records' keys, next to the group number. Use distinct names if records are merged.
            note: Callback for messages about slow operations.
        """
        check_pool_auditor(config.rewards.consistency)
        self.config = config.with_asked_pools()
        self._run, self._note, self._factory = run, note, scorer_factory
        # Several systems may share a cluster, so their pools and routers get unique names.
        self._name = f"{run}-{uuid4().hex[:8]}"
        self._numbers = itertools.count(1)
        self._starting = threading.Lock()
        self._opened: ExitStack | None = None
        self._loop: BackgroundLoop | None = None
        self._router: RouterClient | None = None
        self._slots: asyncio.Semaphore | None = None
        self._owner = 0
        self._exiting = False

    @classmethod
    def from_config(
        cls, source: str | Path | Sequence[str] = (), *, overrides: Sequence[str] = (), **options: Any
    ) -> RewardSystem:
        """Create from a YAML file (`config.yaml` of a run folder, or the folder) or from command-line overrides.

        Overrides are given as `["experiment=quickstart", "rewards.format.weight=0.2"]`. A string with `=` is one
        override. `overrides` change values of a YAML file. They have to repeat the path of a reward function in it
        (`rewards.custom.politeness.path=...`), because a file that may come from elsewhere cannot name code.

        Raises ConfigError; nothing is started.
        """
        if isinstance(source, str) and "=" in source:
            source = [source]
        if isinstance(source, str | Path):
            path = Path(source)
            return cls(load_dumped(path / "config.yaml" if path.is_dir() else path, overrides), **options)
        return cls(load_config([*source, *overrides]), **options)

    # --- scoring -------------------------------------------------------------------------------

    def score(self, samples: Sequence[Scorable]) -> list[RewardRecord]:
        """Return one record per response, in order.

        `samples`: pairs of a sample (a ServiceSample, or its object in the sample format) and its responses. The
        responses of a pair are a group; comparing judges see them together.

        Raises DataError for a malformed sample, before any is scored.
        """
        groups = self._groups(samples)
        return [record for records in self._ensure_started().run(self._score_all(groups)) for record in records]

    async def ascore(self, samples: Sequence[Scorable]) -> list[RewardRecord]:
        """Like `score`, for a running event loop."""
        groups = self._groups(samples)
        loop = await asyncio.to_thread(self._ensure_started)
        return [record for records in await loop.arun(self._score_all(groups)) for record in records]

    def rewards(self, samples: Sequence[Scorable]) -> list[list[float | None]]:
        """Return the total reward of every response, by group; None where scoring failed."""
        scored = self._ensure_started().run(self._score_all(self._groups(samples)))
        return [[record.reward for record in records] for records in scored]

    async def ascore_group(self, group: ResponseGroup) -> tuple[RewardRecord, ...]:
        """Return the records of one group. The caller assigns the group number."""
        loop = self._loop if self._loop is not None else await asyncio.to_thread(self._ensure_started)
        return await loop.arun(self._score_group(group))

    async def health(self) -> dict[str, dict[str, Any]]:
        """Return the status of each pool (`hamr.pools.deployment.pool_status`); a missing pool has no running
        replicas."""
        known = await asyncio.to_thread(pool_status, self._name) if self._router is not None else {}
        return {name: known.get(name, {"replicas": 0, "running": 0}) for name in self.config.pools}

    def _groups(self, samples: Sequence[Scorable]) -> list[ResponseGroup]:
        return [as_group(item, where=f"samples[{i}]", number=next(self._numbers)) for i, item in enumerate(samples)]

    async def _score_all(self, groups: Sequence[ResponseGroup]) -> list[tuple[RewardRecord, ...]]:
        return await all_or_none(self._score_group(group) for group in groups)

    async def _score_group(self, group: ResponseGroup) -> tuple[RewardRecord, ...]:
        router, slots = self._router, self._slots
        assert router is not None and slots is not None, "the system has started"
        # A response's deadline starts at the router, so waiting here does not count against it.
        async with slots:
            return tuple(await all_or_none(router.score(group.sample, r) for r in group.rollouts(self._run)))

    # --- opening and closing -------------------------------------------------------------------

    def start(self) -> RewardSystem:
        """Start the pools and the router if they are not running.

        Raises BadInput for an invalid configuration, HamrError when a pool or the router does not start. Nothing is
        left running then.
        """
        self._ensure_started()
        return self

    def close(self) -> None:
        """Stop the pools, and Ray if this system started it. A closed system may be started again."""
        with self._starting:
            opened, self._opened = self._opened, None
            self._loop = self._router = None
            if opened is not None and self._owner == os.getpid():
                atexit.unregister(self._at_exit)
                opened.close()

    def __enter__(self) -> RewardSystem:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    async def __aenter__(self) -> RewardSystem:
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    def _ensure_started(self) -> BackgroundLoop:
        with self._starting:
            if self._loop is None:
                with ExitStack() as opening:
                    self._open(opening)
                    self._opened, self._owner = opening.pop_all(), os.getpid()
                atexit.register(self._at_exit)
            assert self._loop is not None
            return self._loop

    def _open(self, stack: ExitStack) -> None:
        import ray

        config = self.config
        check_reward_files(config.rewards)
        check_functions(config.rewards)
        check_pool_room(config, config.pools, router=True)
        trained = any(pool.learns_pairs for pool in config.pools.values())
        splits = scorer_splits(config, self._note) if trained else None
        train, held_out = (splits.train, splits.validation) if splits else ((), ())
        scorers = prepare_scorers(config, train, held_out, self._note)
        if not ray.is_initialized():
            self._note("starting Ray")
            stack.enter_context(ray_session(config.cluster))
        models = {pool_model(name): scorer.path for name, scorer in scorers.items()}
        models[POLICY] = resolve_model(config.model.path)
        check_pool_room(config, config.pools, router=True, models=models)
        loop = BackgroundLoop("hamr-reward-system")
        stack.callback(loop.close)
        if config.pools:
            self._note(f"starting the pools {', '.join(config.pools)}")
        loop.run(
            start_pools(
                config.pools,
                {name: scorer.path for name, scorer in scorers.items()},
                run=self._name,
                timeout_s=config.cluster.start_timeout_s,
                scorer_factory=self._factory,
                note=self._note,
            )
        )
        stack.callback(self._remove_pools, loop)
        path, formats = models[POLICY], Formats.of_model(config.model)
        router = self._router = loop.run(
            RouterClient.start(config.rewards, config.pools, config.router, path, formats, self._name)
        )
        stack.callback(lambda: loop.run(router.shutdown()))
        self._slots = asyncio.Semaphore(config.score.groups_in_flight)
        self._loop = loop

    def _remove_pools(self, loop: BackgroundLoop) -> None:
        if not self._exiting:
            loop.run(stop_pools(self._name))
            return
        for pool in self.config.pools:
            import_serve().delete(app_name(self._name, pool))

    def _at_exit(self) -> None:
        """Close at the end of a script without `close`. No thread can start then, so the pools are stopped in
        sequence."""
        self._exiting = True
        self.close()


async def all_or_none(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return all results in order. On the first error, or on cancellation, cancel and await the rest."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
