"""Deployment of scorer pools: each is a Ray Serve application with a single deployment.

Serve manages replicas, restarts, health checks, back-pressure, draining and autoscaling. Only handles talk to the
pools, so Serve runs without an HTTP proxy and uses no fixed port. An `openai` pool is an application too: it shares
retries, back-pressure, status and scaling with the others. The endpoint's key is read only where it is used, from the
environment of the replica's node.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hamr import signals
from hamr.cluster.resource_requests import ray_options, replica_resources
from hamr.cluster.session import ends_at_once, enter_folder
from hamr.config.pools import PoolConfig
from hamr.errors import EngineDied, ScorerUnavailable
from hamr.garbage import collect_rarely
from hamr.pools.client import DEPLOYMENT, SERVE_LOCK, app_name, import_serve, serve_applications, split_app_name
from hamr.pools.scorer_base import Scorer
from hamr.pools.scorers import build_scorer, check_scorer, scorer_env
from hamr.types import Answer, Question

log = logging.getLogger(__name__)

ScorerFactory = Callable[[str, PoolConfig, Path], Scorer]
"""Creates a replica's scorer in the replica's process from (pool's name, its section, model folder)."""

HEALTH_PERIOD_S = 1.0
HEALTH_TIMEOUT_S = 30.0
"""A replica whose event loop or engine does not respond for this long is replaced."""
DRAIN_S = 5.0
"""Time for a replica that is being removed to finish its work. `resize_pools` uses a question's deadline if longer."""
POLL_S = 0.2
REPORT_S = 30.0
VERSION = "1"


class ScorerReplica:
    """Actor around one scorer; adds the replica and the latency to answers. `_application` applies `ray.serve`."""

    def __init__(self, pool: str, config: PoolConfig, model: Path, factory: ScorerFactory, folder: str) -> None:
        from ray import serve

        enter_folder(folder)
        collect_rarely()
        self.build, self.model = functools.partial(factory, pool, config), model
        self.scorer = self.build(model)
        self.pool = pool
        self.replica = serve.get_replica_context().replica_tag

    def reconfigure(self, user_config: Mapping[str, str]) -> None:
        """Load another model folder. Serve calls this at the start, and when the folder in `_application` changes."""
        model = Path(user_config["model"])
        if model != self.model:
            self.scorer, self.model = self.build(model), model

    async def score(self, questions: Sequence[Question]) -> list[Answer]:
        try:
            answers = await self.scorer.score(questions)
        except EngineDied:
            # This process cannot answer any further question. Exiting makes Serve replace it and send the next
            # questions elsewhere; the health check would notice only after several refused ones.
            log.exception("replica %s of pool %s: its engine died", self.replica, self.pool)
            os._exit(1)
        if len(answers) != len(questions):
            raise RuntimeError(f"the scorer returned {len(answers)} answers to {len(questions)} questions")
        return [
            dataclasses.replace(a, call=dataclasses.replace(a.call, replica=self.replica)) if a.call else a
            for a in answers
        ]

    async def check_health(self) -> None:
        await self.scorer.check()

    def __del__(self) -> None:
        # Serve calls this when it drains a replica. If the constructor failed, there is no scorer.
        if hasattr(self, "scorer"):
            self.scorer.close()


async def start_pools(
    pools: Mapping[str, PoolConfig],
    model_paths: Mapping[str, Path],
    *,
    run: str,
    timeout_s: float,
    scorer_factory: ScorerFactory = build_scorer,
    note: Callable[[str], None] = lambda line: None,
) -> None:
    """Deploy all pools of `run` and wait until each is healthy.

    Labels and templates are checked before any call to Ray. After a failure no pool of the run stays deployed.

    Args:
        model_paths: Folder of each pool's model; an `openai` pool needs none.
        note: Gets a line about the pools that are not ready every half minute.

    Raises:
        BadInput: Labels or a template are invalid.
        ScorerUnavailable: A replica cannot start, or `timeout_s` passed. Names the pool and the reason.
    """
    if not pools:
        return
    paths = {name: model_paths.get(name, Path()) for name in pools}
    if scorer_factory is build_scorer:
        for name, config in pools.items():
            await asyncio.to_thread(check_scorer, name, config, paths[name])
    apps = {name: _application(name, config, paths[name], scorer_factory) for name, config in pools.items()}
    deploying = asyncio.ensure_future(
        asyncio.to_thread(_deploy, {app_name(run, name): app for name, app in apps.items()})
    )
    try:
        await asyncio.shield(deploying)
        await _all_healthy({app_name(run, name): name for name in pools}, timeout_s, note)
    except BaseException:
        # A thread cannot be cancelled: pools that it deploys later would stay.
        await asyncio.wait([deploying])
        await stop_pools(run)
        raise


async def resize_pools(
    pools: Mapping[str, PoolConfig],
    model_paths: Mapping[str, Path],
    *,
    run: str,
    timeout_s: float,
    scorer_factory: ScorerFactory = build_scorer,
) -> None:
    """Resize running pools of `run` to the replicas that their sections request, and wait for completion.

    Nothing else in the sections may differ. Remaining replicas and other pools are not affected, except that replicas
    load another folder in `model_paths` in place (only pools that compare pairs). Removed replicas first finish their
    work. Raises ScorerUnavailable with the reason if a new replica cannot start or has no room within
    `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    found = await asyncio.to_thread(pool_status, run)
    shrinking = {n: p for n, p in pools.items() if not p.autoscaling and p.replicas < found[n]["replicas"]}
    # The drain time is set only while shrinking, because Serve would wait as long for a replica that never started.
    # Replicas that are still pending are therefore removed first.
    patience = {n: max(DRAIN_S, p.deadline_s) for n, p in shrinking.items()}
    there = {n: p.model_copy(update={"replicas": max(p.replicas, found[n]["running"])}) for n, p in shrinking.items()}
    phases = [(there, {}), (there, patience), (pools, patience), (pools, {})] if shrinking else [(pools, {})]
    for sections, drain in phases:
        apps = {
            app_name(run, name): _application(
                name, pool, model_paths.get(name, Path()), scorer_factory, drain_s=drain.get(name, DRAIN_S), fresh=False
            )
            for name, pool in sections.items()
        }
        await asyncio.to_thread(_deploy, apps)
        await _wait_until_settled(run, sections, deadline, timeout_s)


async def _wait_until_settled(run: str, pools: Mapping[str, PoolConfig], deadline: float, timeout_s: float) -> None:
    """Wait until each pool has the replicas of its section: no fewer and, if the number is fixed, no more."""
    while True:
        found = await asyncio.to_thread(pool_status, run)
        waiting = {}
        for name, pool in pools.items():
            status = found[name]
            # A pool that is rolled back is briefly unhealthy because of the cancelled replicas.
            growing = status["running"] < pool.first_replicas
            if growing and status["status"] in ("DEPLOY_FAILED", "UNHEALTHY"):
                reason = _last_line([status["status"], *status["message"].splitlines()])
                raise ScorerUnavailable(f"pool {name!r}: {reason}")
            enough = status["running"] >= pool.first_replicas
            exact = status["running"] == status["replicas"] == pool.replicas and not status["leaving"]
            if status["status"] != "RUNNING" or not (enough if pool.autoscaling else exact):
                waiting[name] = f"{status['running']} of {pool.first_replicas} running, {status['leaving']} leaving"
        if not waiting:
            return
        if time.monotonic() > deadline:
            states = "; ".join(f"{name}: {state}" for name, state in sorted(waiting.items()))
            raise ScorerUnavailable(
                f"pools not resized within {timeout_s:g} s ({states}); add resources to the cluster"
            )
        await asyncio.sleep(POLL_S)


async def stop_pools(run: str) -> None:
    """Drain and remove the pools of `run`; other runs' pools on the same cluster stay.

    When a signal ends this process, the cluster drains them after it has exited; a local Ray is killed by its session.
    """
    if ends_at_once():
        return
    serve, wait = import_serve(), signals.pending_signal() is None
    mine = [app for app in await serve_applications() if split_app_name(app)[0] == run]
    await asyncio.gather(*(asyncio.to_thread(serve.delete, app, wait) for app in mine))


def pool_status(run: str) -> dict[str, dict[str, Any]]:
    """Return per pool of `run` its `replicas` (target), `running`, `pids`, `leaving`, `status` and `message`.

    The public `serve.status()` has no process ids and the state API needs the dashboard, so this queries the controller
    for the same details as the `serve status` command.
    """
    from ray.serve.context import _get_global_client

    client = _get_global_client(raise_if_no_controller_running=False)
    applications = client.get_serve_details()["applications"] if client else {}
    found = {}
    for app, details in applications.items():
        owner, pool = split_app_name(app)
        if owner != run:
            continue
        deployment = details["deployments"].get(DEPLOYMENT, {})
        replicas = deployment.get("replicas", [])
        running = [r for r in replicas if r["state"] == "RUNNING"]
        found[pool] = {
            "replicas": deployment.get("target_num_replicas", 0),
            "running": len(running),
            "pids": [r["pid"] for r in running],
            "leaving": sum(r["state"] == "STOPPING" for r in replicas),
            "status": str(getattr(details["status"], "value", details["status"])),
            "message": deployment.get("message", "") or details.get("message", ""),
        }
    return found


def _application(
    pool: str, config: PoolConfig, model: Path, factory: ScorerFactory, *, drain_s: float = DRAIN_S, fresh: bool = True
) -> Any:
    serve = import_serve()
    scale, labels = config.autoscaling, config.engine.node_labels
    # A running pool keeps the number of replicas that autoscaling has set.
    start = {"initial_replicas": config.first_replicas} if fresh else {}
    # Requests with one question each are as many times more.
    factor = config.batch_size // config.request_size
    deployment = serve.deployment(
        ScorerReplica,
        name=DEPLOYMENT,
        user_config={"model": str(model)},
        num_replicas=None if scale else config.replicas,
        autoscaling_config=(
            scale.model_dump() | start | {"target_ongoing_requests": factor * scale.target_ongoing_requests}
            if scale
            else None
        ),
        max_ongoing_requests=factor * config.max_ongoing_requests,
        max_queued_requests=config.max_queued_requests,
        # A group, hence one prompt prefix, stays on one replica until that is full, then uses the next.
        request_router_config=_request_router(config.hedge),
        health_check_period_s=HEALTH_PERIOD_S,
        health_check_timeout_s=HEALTH_TIMEOUT_S,
        graceful_shutdown_timeout_s=drain_s,
        graceful_shutdown_wait_loop_s=0.1,
        # If the first start fails, a restart will fail too, so report it immediately. Restarts of a pool that once ran
        # are unlimited.
        max_constructor_retry_count=1,
        ray_actor_options={
            **ray_options(replica_resources(config)),
            **({"label_selector": dict(labels)} if labels else {}),
            "runtime_env": {"env_vars": scorer_env(config)},
        },
        max_replicas_per_node=config.max_replicas_per_node,
        logging_config={"enable_access_log": False},
    )
    # By default Serve generates a version at each deployment and replaces replicas of other versions. Here the version
    # is fixed: a new deployment changes only the number of replicas and, through `user_config`, the model's folder.
    return deployment.options(version=VERSION, _internal=True).bind(pool, config, model, factory, os.getcwd())


@functools.cache
def _request_router(hedge: bool) -> Any:
    from ray.serve.config import RequestRouterConfig

    theirs = "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"
    # Made once, before this process reads any state: later, the lock may be held by a controller that does not respond.
    with SERVE_LOCK:
        return RequestRouterConfig(request_router_class="hamr.pools.hedge_router.HedgeRouter" if hedge else theirs)


def _deploy(apps: Mapping[str, Any]) -> None:
    serve = import_serve()
    serve.start(proxy_location="Disabled")
    # Serve would wait without a limit for a deployment whose application is deleted meanwhile. Callers poll the states.
    serve.run_many(
        [serve.RunTarget(app, name=name, route_prefix=None) for name, app in apps.items()],
        wait_for_ingress_deployment_creation=False,
        wait_for_applications_running=False,
    )


async def _all_healthy(pools: Mapping[str, str], timeout_s: float, note: Callable[[str], None]) -> None:
    """Wait for the applications `{app: pool}`. A failed start is reported with the last line of its traceback."""
    started = reported = time.monotonic()
    while True:
        applications = await serve_applications()
        waiting = {}
        for app, pool in pools.items():
            status = applications[app]
            messages = [status.message, *(d.message for d in status.deployments.values())]
            last = _last_line([str(status.status.value), *"\n".join(messages).splitlines()])
            if status.status in ("DEPLOY_FAILED", "UNHEALTHY"):
                raise ScorerUnavailable(f"pool {pool!r} could not start: {last}")
            if status.status != "RUNNING":
                waiting[pool] = last
        if not waiting:
            return
        states, now = "; ".join(f"{pool}: {state}" for pool, state in sorted(waiting.items())), time.monotonic()
        if now - reported >= REPORT_S:
            reported = now
            note(f"waiting for pools since {now - started:.0f} s of at most {timeout_s:g} s ({states})")
        if now - started > timeout_s:
            raise ScorerUnavailable(
                f"pools not ready within {timeout_s:g} s ({states}); "
                "raise cluster.start_timeout_s or add resources to the cluster"
            )
        await asyncio.sleep(POLL_S)


def _last_line(lines: Iterable[str]) -> str:
    return [line.strip() for line in lines if line.strip()][-1]
