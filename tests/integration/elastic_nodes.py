"""A pool that outgrows a cluster of 2 CPUs, whose autoscaler may add two nodes of the same size:
elastic_nodes.py ADDRESS. Run by test_nodes.py in a separate process, since a process has one Ray."""

from __future__ import annotations

import asyncio
import sys

import pytest
import ray

from hamr.apps.train.pool_scaler import LivePoolScaler
from hamr.errors import BadInput, HamrError
from hamr.pools.client import PoolClient
from hamr.pools.deployment import pool_status, start_pools, stop_pools
from hamr.types import Question
from tests.integration.three_nodes import CONFIG, NoRouter, Placed

RUN = "elastic"
JUDGE = CONFIG.pools["judge"].model_copy(update={"replicas": 1, "max_replicas_per_node": None, "deadline_s": 5.0})


async def main() -> None:
    pools = {"judge": JUDGE}
    fixed = CONFIG.model_copy(update={"pools": pools})
    grown = JUDGE.model_copy(update={"replicas": 6})
    elastic, hasty = (
        fixed.model_copy(update={"cluster": CONFIG.cluster.model_copy(update={"elastic": True, "start_timeout_s": s})})
        for s in (100.0, 1.0)
    )
    await start_pools(pools, {}, run=RUN, timeout_s=60, scorer_factory=Placed)
    client = PoolClient("judge", JUDGE, RUN)
    try:
        with pytest.raises(BadInput, match="the cluster has room for"):
            await LivePoolScaler(fixed, {}, RUN, NoRouter(), scorer_factory=Placed).resize({"judge": 40})
        await LivePoolScaler(elastic, {}, RUN, NoRouter(), scorer_factory=Placed).resize({"judge": 6})
        assert pool_status(RUN)["judge"]["running"] == 6
        answers = await asyncio.gather(*(client.ask(Question(variables={"seconds": "0.5"})) for _ in range(24)))
        homes = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        assert len(homes) == 3, "the autoscaler has added what was missing"
        assert {answer.verdict for answer in answers} == homes, "and the replicas there answer"
        scaler = LivePoolScaler(
            hasty.model_copy(update={"pools": {"judge": grown}}), {}, RUN, NoRouter(), scorer_factory=Placed
        )
        with pytest.raises(HamrError, match="6 of 9 running.*add resources to the cluster; the pools are unchanged"):
            await scaler.resize({"judge": 9})
        assert pool_status(RUN)["judge"]["running"] == 6, "what no node can be had for is taken back"
    finally:
        await client.close()
        await stop_pools(RUN)


if __name__ == "__main__":
    ray.init(address=sys.argv[1], log_to_driver=False)
    asyncio.run(main())
    print("done")
