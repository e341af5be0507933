"""Sizing: how many replicas of each pool keep the reward off a step's critical path, and what limits a step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from hamr.apps.plan.costs import at_least
from hamr.apps.plan.overlap import simulate_overlap
from hamr.apps.plan.simulation import ROLLOUT, Cluster, Simulated, SimulatedResponse, simulate
from hamr.apps.plan.workload import Workload

SLACK = 0.02
"""Tolerance relative to the ideal step time. A step within it counts as having the reward off the critical path."""
MOST_REPLICAS = 4096
"""Upper limit of the search for the size of a pool."""

Rounds = Sequence[Sequence[SimulatedResponse]]


class Study:
    """One workload, drawn once, on clusters of different sizes.

    `limit`: number of replicas of each pool beyond which more have no effect: a slot for every request and, since a
    group's requests go to one replica, a replica for every group. A pool of that size is called unlimited.
    """

    def __init__(self, workload: Workload, cluster: Cluster, *, draws: int) -> None:
        self.workload, self.cluster = workload, cluster
        self.steps: list[Rounds] = [workload.draw(seed) for seed in range(draws)]
        overlap = workload.overlap
        self.groups = workload.draw_groups(0, overlap.warm_up + draws) if overlap else ()
        self.limit = {name: self._limit(name, pool.slots) for name, pool in cluster.pools.items()}
        self._played: dict[tuple[int, ...], Simulated] = {}

    def play(self, cluster: Cluster) -> Simulated:
        """Simulate a cluster that differs from the study's in its numbers of replicas only."""
        sizes = (cluster.rollout.replicas, *(cluster.pools[name].replicas for name in self.cluster.pools))
        if sizes not in self._played:
            self._played[sizes] = self._mean_of(cluster)
        return self._played[sizes]

    def _mean_of(self, cluster: Cluster) -> Simulated:
        overlap = self.workload.overlap
        if overlap is None:
            return _mean([simulate(step, cluster) for step in self.steps])
        train_s = [cluster.train_s] * (overlap.warm_up + len(self.steps))
        mean = _mean(simulate_overlap(self.groups, overlap, cluster, train_s)[overlap.warm_up :])
        return replace(mean, late=round(mean.late))

    def slowest_s(self, cluster: Cluster) -> float:
        """Return the longest time to a reward without the router's deadline."""
        return self._mean_of(replace(cluster, deadline_s=math.inf)).slowest_s

    def ideal(self) -> Simulated:
        """Return the step with unlimited pools."""
        return self.play(self.cluster.with_replicas(**self.limit))

    def size_pools(self, goal_s: float, *, most: int) -> Cluster:
        """Return the cluster with the smallest pools found with which the mean step takes at most `goal_s`.

        `goal_s` must not be below the ideal step's time. No pool exceeds `most`.

        Each pool is first sized alone with all others unlimited (one more replica makes a step longer only by chance,
        so bisection works). Where the pools together miss the goal, the one whose shortage costs most grows.
        """
        sizes = {name: self._alone(name, goal_s, most) for name in self.cluster.pools}
        chosen = self.cluster.with_replicas(**sizes)
        while self.play(chosen).step_s > goal_s:
            able = [name for name, size in sizes.items() if size < min(most, self.limit[name])]
            if not able:
                break
            worst = min(able, key=lambda name: self.play(chosen.with_replicas(**{name: self.limit[name]})).step_s)
            sizes[worst] += max(1, sizes[worst] // 16)
            chosen = self.cluster.with_replicas(**sizes)
        return chosen

    def savings(self, cluster: Cluster) -> dict[str, float]:
        """Return the seconds that a step would save without one bottleneck.

        Cases: an unlimited pool, twice the rollout workers, instantaneous training or sync. The largest saving is the
        bottleneck of the step.
        """
        base = self.play(cluster).step_s
        larger = {ROLLOUT: 2 * cluster.rollout.replicas, **self.limit}
        saved = {name: base - self.play(cluster.with_replicas(**{name: size})).step_s for name, size in larger.items()}
        without = {"training": replace(cluster, train_s=0.0), "sync": replace(cluster, sync_s=0.0)}
        return saved | {name: base - self._mean_of(changed).step_s for name, changed in without.items()}

    def _limit(self, name: str, slots: int) -> int:
        asked = max((_count(step, name) for step in self.steps), default=0)
        steps = self.workload.overlap.max_policy_age + 1 if self.workload.overlap else 1
        return max(1, steps * sum(self.workload.rounds), math.ceil(steps * asked / slots))

    def _alone(self, name: str, goal_s: float, most: int) -> int:
        free = self.cluster.with_replicas(**self.limit)

        def enough(replicas: int) -> bool:
            return self.play(free.with_replicas(**{name: replicas})).step_s <= goal_s

        ceiling = min(most, self.limit[name])
        low, high = 0, min(ceiling, at_least(self.busy(name) / 4))
        while high < ceiling and not enough(high):
            low, high = high, min(2 * high, ceiling)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if enough(middle) else (middle, high)
        return high

    def busy(self, name: str) -> float:
        """Return the fully used replicas of a pool if every request were answered while responses arrive.

        By Little's law: requests x seconds / (slots x time). `size_pools` returns fewer where answers may come after
        the last response, and more where requests come in bursts.
        """
        station, ideal = self.cluster.pools[name], self.ideal()
        overlap = self.workload.overlap
        window_s = ideal.step_s if overlap and overlap.max_policy_age else ideal.rollout_s
        work = self.workload.questions().get(name, 0.0) * station.service.seconds(station.slots)
        return work / (station.slots * window_s) if window_s else 0.0


def _count(rounds: Rounds, pool: str) -> int:
    return sum(
        asked == pool
        for responses in rounds
        for response in responses
        for chain in response.chains
        for stage in chain
        for asked, _ in stage
    )


def _mean(steps: Sequence[Simulated]) -> Simulated:
    """Return the means over several simulated steps; `slowest_s` is the maximum."""

    def mean(rows: Sequence[Any], **others: Any) -> Any:
        names = [f.name for f in fields(rows[0]) if f.name not in others]
        return replace(rows[0], **others, **{n: sum(getattr(row, n) for row in rows) / len(rows) for n in names})

    stations = {name: mean([step.stations[name] for step in steps]) for name in steps[0].stations}
    found: Simulated = mean(steps, slowest_s=max(step.slowest_s for step in steps), stations=stations)
    return found
