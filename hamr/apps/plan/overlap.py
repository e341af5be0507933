"""Simulation of steps whose groups are generated and scored during other steps, or that start more than they need.

Follows hamr.experience: at most (max_policy_age + oversample) x batch groups are under way, ready, or in training; a
step takes the oldest ready ones; a group without signal is replaced immediately. With `max_policy_age` 0, the groups
that a step does not take are aborted, and nothing is generated during training.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle

from hamr.apps.plan.simulation import Cluster, Play, Simulated, SimulatedResponse
from hamr.experience import whole_groups

SimulatedGroup = tuple[tuple[SimulatedResponse, ...], bool]
"""Responses, and whether they carry signal."""


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """Rules by which steps overlap.

    `most`: groups that a step takes at most, if those without signal leave it fewer than `batch`. Groups that were
    dropped before the step do not count. `concurrent`: maximum number of groups under way.
    """

    batch: int
    max_policy_age: int
    oversample: float
    in_flight: bool
    most: int
    concurrent: int | None = None

    @property
    def limit(self) -> int:
        return whole_groups(self.max_policy_age + self.oversample, self.batch)

    @property
    def warm_up(self) -> int:
        """Number of steps until the pipeline is full."""
        return self.max_policy_age + 1


def simulate_overlap(
    groups: Sequence[SimulatedGroup], overlap: Overlap, cluster: Cluster, train_s: Iterable[float]
) -> list[Simulated]:
    """Simulate a step per value of `train_s`, from an empty pipeline on. `groups` start in order, and repeat.

    `rollout_s` of a step is the time that it waits for its groups. `slowest_s` and the stations are those of all steps.
    """
    play = Play(cluster)
    flow, times = _Flow(play, cycle(groups), overlap), []
    for seconds in train_s:
        began, late = play.now, play.late
        flow.take()
        waited = play.now - began
        flow.wait(seconds)
        trained = play.now
        if not overlap.in_flight:
            flow.drain()
        flow.wait(cluster.sync_s)
        flow.release()
        times.append((waited, seconds, play.now - trained, play.late - late))
    stations = {name: line.usage(play.now) for name, line in play.lines.items()}
    return [
        Simulated(
            step_s=wait + train + sync,
            rollout_s=wait,
            tail_s=0.0,
            train_s=train,
            sync_s=sync,
            slowest_s=play.slowest,
            late=late,
            stations=stations,
        )
        for wait, train, sync, late in times
    ]


class _Flow:
    """Groups between the prompts and the training step: Experience and Controller.take, in simulated time."""

    def __init__(self, play: Play, groups: Iterable[SimulatedGroup], overlap: Overlap) -> None:
        self.play, self.groups, self.overlap = play, iter(groups), overlap
        self.running: dict[int, tuple[int, bool]] = {}
        """Version at the start, and signal, by number."""
        self.ready: list[tuple[int, int]] = []
        """(number, version at the start)"""
        self.count = self.version = self.training = self.ended = 0
        self.open = True

    def take(self) -> None:
        """Advance to the end of the groups that the step waits for, and take them."""
        self.ended, self.training, self.open = 0, 0, True
        self._fill()
        while self.training < self.overlap.batch and self.ended < self.overlap.most:
            while (
                len(self.ready) < self.overlap.batch - self.training
                and self.ended + len(self.ready) < self.overlap.most
            ):
                self._advance()
            wanted = self.overlap.batch - self.training
            taken, self.ready = self.ready[:wanted], self.ready[wanted:]
            fresh = [number for number, version in taken if self.version - version <= self.overlap.max_policy_age]
            self.training += len(fresh)
            self.ended += len(fresh)
            self._fill()
        if not self.overlap.max_policy_age:
            self.play.abort()
            self.running.clear()
            self.ready.clear()
            self.open = False

    def wait(self, seconds: float) -> None:
        until = self.play.now + seconds
        while self._advance(until):
            pass

    def drain(self) -> None:
        """Advance until nothing is generated, and start nothing until `release`. Groups in the queue stay in it."""
        self.open, self.play.workers.paused = False, True
        while self.play.workers.busy:
            self._advance()

    def release(self) -> None:
        self.version += 1
        self.training = 0
        self.open = self.overlap.max_policy_age > 0
        self.play.workers.resume()
        self._fill()

    def _advance(self, until: float = math.inf) -> bool:
        moved = self.play.advance(until)
        for number in self.play.ended:
            version, signal = self.running.pop(number)
            if signal:
                insort(self.ready, (number, version))
            else:
                self.ended += 1
        self.play.ended.clear()
        self._fill()
        return moved

    @property
    def _has_room(self) -> bool:
        held = len(self.running) + len(self.ready) + self.training
        return held < self.overlap.limit and len(self.running) < (self.overlap.concurrent or math.inf)

    def _fill(self) -> None:
        while self.open and self._has_room:
            responses, signal = next(self.groups)
            self.running[self.count] = self.version, signal
            self.play.start(self.count, responses)
            self.count += 1
