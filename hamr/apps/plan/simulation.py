"""Discrete-event simulation of a training step: workers produce responses, pools with queues score them, then training.

Replicas use processor sharing: with n jobs in service, a job of work 1 takes `fixed_s + each_s * n` seconds, and speeds
up as soon as another job ends. This is computed exactly: in virtual time all jobs on a replica advance equally, so the
next to end is the one with the lowest virtual end time.

All random numbers are drawn beforehand (`hamr.apps.plan.workload`). The simulation is a deterministic function of its
arguments, and simulations with different numbers of replicas see the same responses.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import numpy as np

Stage = tuple[tuple[str, float], ...]
"""Requests that are sent concurrently: (pool, work)."""
Chain = tuple[Stage, ...]
"""Stages in sequence: the reranker for every reference, then optionally the judge."""


@dataclass(frozen=True, kw_only=True)
class Service:
    """Seconds for a job of work 1 on a replica with n jobs in service: `fixed_s + each_s * n`.

    >>> Service(fixed_s=2.0, each_s=0.5).seconds(4)
    4.0
    """

    fixed_s: float
    each_s: float = 0.0

    def seconds(self, n: int) -> float:
        return self.fixed_s + self.each_s * n


@dataclass(frozen=True, kw_only=True)
class Station:
    """Replicas with `slots` slots each. Pools have one FIFO queue, rollout workers also one each.

    `splits_groups`: the responses of a group are placed on rollout workers one by one, as dialogues are.
    """

    replicas: int
    slots: int
    service: Service
    splits_groups: bool = False


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The stations of a step and the times after it. `deadline_s`: the router's, per response from its end on."""

    rollout: Station
    pools: Mapping[str, Station]
    train_s: float = 0.0
    sync_s: float = 0.0
    deadline_s: float = math.inf

    def with_replicas(self, **replicas: int) -> Cluster:
        """Return a copy with other numbers of replicas, by pool; `rollout` for the workers."""
        pools = {n: replace(s, replicas=replicas.get(n, s.replicas)) for n, s in self.pools.items()}
        rollout = replace(self.rollout, replicas=replicas.get(ROLLOUT, self.rollout.replicas))
        return replace(self, rollout=rollout, pools=pools)


@dataclass(frozen=True, kw_only=True)
class SimulatedResponse:
    """One response: `work` for its rollout worker (1 is a response of mean length), then `chains` in parallel."""

    group: int
    work: float
    chains: tuple[Chain, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Metrics of one station in a step.

    `utilisation`: share of its slots in use during rollout and scoring. `queue_p50` and `queue_p99` in seconds, over
    all requests, including those that did not wait.
    """

    questions: float
    utilisation: float
    queue_p50: float
    queue_p99: float


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """Times of a step in seconds.

    `rollout_s`: from the start of each round to the end of its last response, summed over the rounds. `tail_s`:
    additional time for scoring. `slowest_s`: the longest time from a response's end to its reward, bounded by the
    router's deadline. `late`: number of responses without a reward at the deadline.
    """

    step_s: float
    rollout_s: float
    tail_s: float
    train_s: float
    sync_s: float
    slowest_s: float
    late: float
    stations: Mapping[str, Usage]


ROLLOUT = "rollout"
"""Name of the rollout workers among the stations."""


def simulate(rounds: Sequence[Sequence[SimulatedResponse]], cluster: Cluster) -> Simulated:
    """Simulate a step.

    `rounds` run in sequence (dynamic sampling refills when a round is fully scored). A step without responses takes
    `train_s + sync_s`.
    """
    play = Play(cluster)
    rollout_s = sum(play.round(responses) for responses in rounds)
    return Simulated(
        step_s=play.now + cluster.train_s + cluster.sync_s,
        rollout_s=rollout_s,
        tail_s=play.now - rollout_s,
        train_s=cluster.train_s,
        sync_s=cluster.sync_s,
        slowest_s=play.slowest,
        late=play.late,
        stations={name: line.usage(play.now) for name, line in play.lines.items()},
    )


@dataclass(slots=True, eq=False)
class _Scoring:
    """Scoring state of a response.

    `stage` and the number of requests still `left` in it, per chain; the number of chains still `open`; its end.
    """

    response: SimulatedResponse
    group: int
    open: int
    stage: list[int]
    left: list[int]
    since: float = 0.0
    closed: bool = False


@dataclass(slots=True, eq=False)
class _Job:
    """One job in service or in a queue. `chain` is -1 for the generation of the response."""

    scoring: _Scoring
    chain: int
    work: float
    came: float


@dataclass(slots=True, eq=False)
class _Replica:
    """State of one replica. `virtual`: virtual time at the time `since`."""

    under_way: list[tuple[float, int, _Job]] = field(default_factory=list)
    virtual: float = 0.0
    since: float = 0.0
    stamp: int = 0
    listed: bool = True


class _Line:
    """A station in operation. A group's requests go to the group's own replica while that has a free slot."""

    def __init__(self, station: Station, play: Play) -> None:
        self.station, self.play = station, play
        self.replicas = [_Replica() for _ in range(station.replicas)]
        self.free = deque(range(station.replicas))
        """Replicas that may have a free slot; full ones are removed lazily."""
        self.waiting: deque[_Job] = deque()
        self.waits: list[float] = []
        self.busy, self.area, self.counted = 0, 0.0, 0.0

    def put(self, job: _Job) -> None:
        place = self._place(job.scoring.group)
        if place is None:
            self.waiting.append(job)
        else:
            self._start(job, place)

    def end(self, place: int) -> _Job:
        """Remove the job that ends now from a replica, and give its slot to the next in the queue."""
        replica = self.replicas[place]
        replica.virtual, _, job = heapq.heappop(replica.under_way)
        replica.since = self.play.now
        self._count(-1)
        if not replica.listed:
            replica.listed = True
            self.free.append(place)
        self._announce(place)
        self._start_next(place)
        return job

    def usage(self, spent: float) -> Usage:
        places = self.station.replicas * self.station.slots
        self._count(0)
        # Nearest rank: a wait that occurred.
        p50, p99 = np.quantile(self.waits, [0.5, 0.99], method="inverted_cdf") if self.waits else (0.0, 0.0)
        return Usage(
            questions=len(self.waits),
            utilisation=self.area / (places * spent) if spent else 0.0,
            queue_p50=float(p50),
            queue_p99=float(p99),
        )

    def clear(self) -> None:
        """Cancel all jobs."""
        self._count(-self.busy)
        self.replicas = [_Replica() for _ in self.replicas]
        self.free = deque(range(len(self.replicas)))
        self.waiting.clear()

    def _start_next(self, place: int) -> None:
        """Start the next job of the queue on a replica that has a free slot."""
        while self.waiting and self.waiting[0].scoring.closed:
            self.waiting.popleft()  # its response has passed the deadline, so the answer is not needed
        if self.waiting:
            self._start(self.waiting.popleft(), place)

    def _place(self, group: int) -> int | None:
        slots, own = self.station.slots, group % len(self.replicas)
        if len(self.replicas[own].under_way) < slots:
            return own
        while self.free:
            place = self.free[0]
            if len(self.replicas[place].under_way) < slots:
                self.free.rotate(-1)
                return place
            self.replicas[self.free.popleft()].listed = False
        return None

    def _start(self, job: _Job, place: int) -> None:
        replica, now = self.replicas[place], self.play.now
        self.waits.append(now - job.came)
        if replica.under_way:
            replica.virtual += (now - replica.since) / self.station.service.seconds(len(replica.under_way))
        replica.since = now
        heapq.heappush(replica.under_way, (replica.virtual + job.work, self.play.next(), job))
        self._count(1)
        self._announce(place)

    def _announce(self, place: int) -> None:
        """Schedule the next end of a job on a replica; earlier events of the replica become stale."""
        replica = self.replicas[place]
        replica.stamp += 1
        if replica.under_way:
            left = max(0.0, replica.under_way[0][0] - replica.virtual)
            at = self.play.now + left * self.station.service.seconds(len(replica.under_way))
            heapq.heappush(self.play.events, (at, self.play.next(), self, place, replica.stamp))

    def _count(self, change: int) -> None:
        self.area += self.busy * (self.play.now - self.counted)
        self.busy, self.counted = self.busy + change, self.play.now


class _Workers(_Line):
    """The rollout workers in operation, as `hamr.rollout.dispatch` uses them.

    A group waits until a worker has a free slot. All of its responses then go to the one with the fewest unfinished
    responses, where those without a slot wait. During a pause, no group is placed.
    """

    def __init__(self, station: Station, play: Play) -> None:
        super().__init__(station, play)
        self.unplaced: deque[Sequence[_Job]] = deque()
        self.queues: list[deque[_Job]] = [deque() for _ in self.replicas]
        self.paused = False

    def put_group(self, jobs: Sequence[_Job]) -> None:
        splits = self.station.splits_groups and len(self.replicas) > 1
        self.unplaced.extend([[job] for job in jobs] if splits else [jobs])
        self._place_groups()

    def resume(self) -> None:
        """End a pause."""
        self.paused = False
        self._place_groups()

    def clear(self) -> None:
        super().clear()
        self.unplaced.clear()
        self.queues = [deque() for _ in self.replicas]

    def _place_groups(self) -> None:
        while self.unplaced and not self.paused:
            place = min(range(len(self.replicas)), key=self._load)
            if self._load(place) >= self.station.slots:
                return
            self.queues[place].extend(self.unplaced.popleft())
            while self.queues[place] and len(self.replicas[place].under_way) < self.station.slots:
                self._start(self.queues[place].popleft(), place)

    def _start_next(self, place: int) -> None:
        if self.queues[place]:
            self._start(self.queues[place].popleft(), place)
        else:
            self._place_groups()

    def _load(self, place: int) -> int:
        """Return the number of unfinished responses of a worker."""
        return len(self.replicas[place].under_way) + len(self.queues[place])


class Play:
    """The clock and the event queue of a simulation. `ended` lists the groups that are scored, in this order."""

    def __init__(self, cluster: Cluster) -> None:
        self.now, self.late, self.slowest = 0.0, 0, 0.0
        self.ended: list[int] = []
        self._deadline_s, self._serial = cluster.deadline_s, 0
        self._open: dict[int, int] = {}
        self._last_response = 0.0
        self.events: list[tuple[float, int, _Line | _Scoring, int, int]] = []
        """(time, order, line, replica, stamp): a job ends; (time, order, scoring, 0, 0): a response's deadline."""
        self.workers = _Workers(cluster.rollout, self)
        pools = {name: _Line(station, self) for name, station in cluster.pools.items()}
        self.lines: dict[str, _Line] = {ROLLOUT: self.workers, **pools}

    def next(self) -> int:
        self._serial += 1
        return self._serial

    def round(self, responses: Sequence[SimulatedResponse]) -> float:
        """Generate and score the responses; return the seconds until the last of them was generated."""
        began = self._last_response = self.now
        for group, members in groupby(responses, key=lambda response: response.group):
            self.start(group, tuple(members))
        while self._open:
            self.advance()
        return self._last_response - began

    def start(self, group: int, responses: Sequence[SimulatedResponse]) -> None:
        """Start to generate and score a group."""
        self._open[group] = self._open.get(group, 0) + len(responses)
        jobs = []
        for response in responses:
            chains = len(response.chains)
            scoring = _Scoring(response, group, chains, [0] * chains, [0] * chains)
            jobs.append(_Job(scoring, -1, response.work, self.now))
        self.workers.put_group(jobs)

    def advance(self, until: float = math.inf) -> bool:
        """Move to the next event, and return True, or to the time `until` if that is earlier."""
        while self.events and self.events[0][0] <= until:
            at, _, who, place, stamp = heapq.heappop(self.events)
            if isinstance(who, _Scoring):
                if who.closed:
                    continue
                self.now = at
                self.late += 1
                self._close(who)
                return True
            if who.replicas[place].stamp == stamp:
                self.now = at
                job = who.end(place)
                if job.chain < 0:
                    self._last_response = at
                self._end_job(job)
                return True
        if until < math.inf:
            self.now = until
        return False

    def abort(self) -> None:
        """Cancel all groups under way."""
        self.events.clear()
        self._open.clear()
        for line in self.lines.values():
            line.clear()

    def _end_job(self, job: _Job) -> None:
        scoring, chain = job.scoring, job.chain
        if scoring.closed:
            return
        if chain < 0:
            scoring.since = self.now
            if not scoring.open:
                self._close(scoring)
                return
            if self._deadline_s < math.inf:
                heapq.heappush(self.events, (self.now + self._deadline_s, self.next(), scoring, 0, 0))
            for index in range(len(scoring.response.chains)):
                self._ask(scoring, index)
            return
        scoring.left[chain] -= 1
        if scoring.left[chain] == 0:
            scoring.stage[chain] += 1
            self._ask(scoring, chain)

    def _ask(self, scoring: _Scoring, chain: int) -> None:
        """Send the requests of a chain's next non-empty stage; after the last stage the chain is done."""
        stages = scoring.response.chains[chain]
        while scoring.stage[chain] < len(stages):
            stage = stages[scoring.stage[chain]]
            if stage:
                scoring.left[chain] = len(stage)
                for pool, work in stage:
                    self.lines[pool].put(_Job(scoring, chain, work, self.now))
                return
            scoring.stage[chain] += 1
        scoring.open -= 1
        if not scoring.open:
            self._close(scoring)

    def _close(self, scoring: _Scoring) -> None:
        scoring.closed = True
        self.slowest = max(self.slowest, self.now - scoring.since)
        self._open[scoring.group] -= 1
        if not self._open[scoring.group]:
            del self._open[scoring.group]
            self.ended.append(scoring.group)
