"""Several nodes on one machine: a pool over all of them, a node that goes, a node that comes. Run by test_nodes.py in a
process of its own, since a process has one Ray."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import ray
from ray._common.utils import get_default_ray_temp_dir
from ray.cluster_utils import Cluster

from hamr.apps.train.pool_scaler import LivePoolScaler
from hamr.cluster.model_folders import POLICY, check_models, pool_model
from hamr.cluster.nodes import check_alike, cluster_nodes, release, reserve_learners
from hamr.cluster.placement import check_placement, plan
from hamr.config.schema import Config
from hamr.errors import BadInput, CapacityError
from hamr.pools.client import PoolClient
from hamr.pools.deployment import pool_status, start_pools, stop_pools
from hamr.types import Answer, Question, ScorerCall

RUN = "nodes"
CONFIG = Config.model_validate(
    {
        "data": {"type": "sage"},
        "trainer": {"node_labels": {"room": "head"}},
        "cluster": {"start_timeout_s": 60},
        "pools": {
            "judge": {
                "role": "judge", "prompt": "judge.en", "replicas": 3, "max_replicas_per_node": 1, "batch_size": 1,
                "max_ongoing_requests": 4, "attempts": 6, "deadline_s": 60.0, "engine": {"num_cpus": 1},
            },
            "reranker": {
                "role": "reranker", "prompt": "reranker.en",
                "engine": {"num_cpus": 0.5, "custom_resources": {"disk": 1}},
            },
        },
    }
)  # fmt: skip


class Placed:
    """Says on which node it is, after a moment."""

    def __init__(self, pool: str, config: object, model: Path) -> None:
        self.pool, self.node = pool, ray.get_runtime_context().get_node_id()

    async def score(self, questions: Sequence[Question]) -> list[Answer]:
        await asyncio.sleep(float(questions[0].variables["seconds"]))
        call = ScorerCall(
            pool=self.pool, model="scripted", prompt_version="1", replica="", queue_s=0.0, service_s=0.0,
            prompt_tokens=1, output_tokens=1,
        )  # fmt: skip
        return [Answer(score=1.0, verdict=self.node, call=call) for _ in questions]

    async def check(self) -> None:
        """Always well."""

    def close(self) -> None:
        """Nothing to close."""


class NoRouter:
    async def describe(self) -> dict[str, dict[str, Any]]:
        return {}

    async def resize(self, replicas: object) -> None:
        """Do nothing."""

    async def forget(self) -> None:
        """There is no cache."""


@contextlib.contextmanager
def three_nodes() -> Iterator[Cluster]:
    """A head and two more nodes."""
    with tempfile.TemporaryDirectory(prefix="hn", dir="/tmp", ignore_cleanup_errors=True) as folder:
        # Cluster writes the address below Ray's default folder (TMPDIR), whatever its own temp_dir.
        Path(get_default_ray_temp_dir()).mkdir(parents=True, exist_ok=True)
        made = Cluster()
        store = {"object_store_memory": 100 << 20}
        made.add_node(num_cpus=3, labels={"room": "head"}, include_dashboard=False, temp_dir=folder, **store)
        made.add_node(num_cpus=1, labels={"room": "west"}, **store)
        made.add_node(num_cpus=2, labels={"room": "east"}, resources={"disk": 1}, **store)
        ray.init(address=made.address, log_to_driver=False)
        yield made
        ray.shutdown()
        made.shutdown()


async def main(cluster: Cluster) -> None:
    check_alike(60)
    rows = {row.demand.key: row.placed for row in check_placement(CONFIG, cluster_nodes())}
    assert sorted(rows["pools.judge.replicas"].values()) == [1, 1, 1], "one on each node"
    _nodes_look_for_models()
    trainers, workers = await reserve_learners(CONFIG, 60)
    await start_pools(CONFIG.pools, {}, run=RUN, timeout_s=100, scorer_factory=Placed)
    try:
        await _score_through_node_changes(cluster)
        lost = CONFIG.model_copy(update={"pools": {}, "rollout": CONFIG.rollout.model_copy(update={"workers": 50})})
        with pytest.raises(CapacityError, match=r"rollout\.transfer: 'shared_memory': cannot place 51 actors"):
            await reserve_learners(lost, 1.0)
    finally:
        await stop_pools(RUN)
        release(trainers)
        release(workers)


def _nodes_look_for_models() -> None:
    """The judges lie on all nodes, of which this process sees one anyway."""
    rows = plan(CONFIG, cluster_nodes())
    with tempfile.TemporaryDirectory() as folder:
        there = Path(folder)
        with pytest.raises(BadInput, match=r"pools\.judge\.model: .* node .* lacks this folder; set HF_HOME"):
            check_models(rows, {pool_model("judge"): there})
        (there / "config.json").write_text("{}")
        check_models(rows, {pool_model("judge"): there, POLICY: there})


async def _score_through_node_changes(cluster: Cluster) -> None:
    judge, reranker = (PoolClient(name, CONFIG.pools[name], RUN) for name in ("judge", "reranker"))

    async def ask(client: PoolClient, seconds: float) -> Answer:
        return await client.ask(Question(variables={"seconds": str(seconds)}))

    homes = {a.verdict for a in await asyncio.gather(*(ask(judge, 0.3) for _ in range(12)))}
    assert len(homes) == 3, "the pool is spread over the three nodes"
    [special] = [n["NodeID"] for n in ray.nodes() if n["Resources"].get("disk")]
    assert (await ask(reranker, 0.0)).verdict == special
    west = next(node for node in cluster.worker_nodes if _room(node.node_id) == "west")
    before = pool_status(RUN)["reranker"]["pids"]

    under_way = [asyncio.create_task(ask(judge, 2.0)) for _ in range(12)]
    await asyncio.sleep(0.5)
    await asyncio.to_thread(cluster.remove_node, west, allow_graceful=False)
    answers = await asyncio.gather(*under_way)
    assert [a.score for a in answers] == [1.0] * 12, "what the lost node had begun was asked again"
    assert any(a.call.attempts > 1 for a in answers if a.call)
    assert pool_status(RUN)["reranker"]["pids"] == before, "another pool knows nothing of it"

    scaler = LivePoolScaler(CONFIG, {}, RUN, NoRouter(), scorer_factory=Placed)
    cluster.add_node(num_cpus=2, object_store_memory=100 << 20, labels={"room": "new"})
    async with asyncio.timeout(60):
        while pool_status(RUN)["judge"]["running"] < 3:
            await asyncio.sleep(0.2)
    homes = {a.verdict for a in await asyncio.gather(*(ask(judge, 0.3) for _ in range(12)))}
    assert len(homes) == 3, "the pool has grown into the new node"
    with pytest.raises(BadInput, match="the cluster has room for"):
        await scaler.resize({"judge": 40})
    await judge.close()
    await reranker.close()


def _room(node_id: str) -> str:
    return next(n["Labels"].get("room", "") for n in ray.nodes() if n["NodeID"] == node_id)


if __name__ == "__main__":
    with three_nodes() as nodes:
        asyncio.run(main(nodes))
    print("done")
