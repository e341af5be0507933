"""Station speeds measured from a run, and the accuracy of the simulation on the run's own steps.

A run folder does not record when responses ended. The speed of the rollout workers is therefore fitted, so that the
simulated time of the first half of the steps equals the measured time. The second half is then predicted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hamr.apps.plan.simulation import Service, SimulatedResponse, Station, simulate

Call = tuple[str, float, float]
"""(pool, queue time in seconds, service time in seconds) of one request."""
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Candidate shares of a full rollout worker's time that grow with the number of concurrent responses."""


@dataclass(frozen=True, kw_only=True)
class MeasuredResponse:
    tokens: int
    cascaded: bool
    """True for a reply that the cascade scored; its answers may all have come from the cache."""
    calls: tuple[Call, ...]


@dataclass(frozen=True, kw_only=True)
class MeasuredStep:
    """One RL step. `rounds` has the groups of each generation round; a group has its responses."""

    step: int
    rollout_score_s: float
    train_s: float
    total_s: float
    trained_tokens: float
    groups_dropped: float
    rounds: tuple[tuple[tuple[MeasuredResponse, ...], ...], ...]

    @property
    def responses(self) -> list[MeasuredResponse]:
        return [response for groups in self.rounds for group in groups for response in group]


@dataclass(frozen=True, kw_only=True)
class PoolTimes:
    """Times of all requests that reached one pool (no cached answers)."""

    questions: int
    service_s: tuple[float, ...]
    queue_s: tuple[float, ...]

    @property
    def mean_s(self) -> float:
        return float(np.mean(self.service_s))

    def queue_quantile(self, q: float) -> float:
        return float(np.quantile(self.queue_s, q))


def pool_times(steps: Sequence[MeasuredStep]) -> dict[str, PoolTimes]:
    calls = [call for step in steps for response in step.responses for call in response.calls]
    found = {}
    for name in sorted({pool for pool, _, _ in calls}):
        mine = [call for call in calls if call[0] == name]
        found[name] = PoolTimes(
            questions=len(mine), queue_s=tuple(q for _, q, _ in mine), service_s=tuple(s for _, _, s in mine)
        )
    return found


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Fitted speeds of a run.

    The speed of the rollout workers for a response of `mean_tokens`, the training time in seconds as `train_fixed_s +
    train_token_s x tokens`, and the rest of a step: sync and recording.
    """

    rollout: Service
    mean_tokens: float
    train_fixed_s: float
    train_token_s: float
    sync_s: float

    def train_s(self, tokens: float) -> float:
        return self.train_fixed_s + self.train_token_s * tokens


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Predicted and measured seconds of one step. `fitted`: the step was used for the fit."""

    step: int
    fitted: bool
    predicted_score_s: float
    measured_score_s: float
    predicted_s: float
    measured_s: float


def fit(steps: Sequence[MeasuredStep], *, workers: Station, pools: Mapping[str, Station], first: str) -> Fit:
    """Fit to all of `steps`.

    `workers` has the number of workers and their slots, `pools` the service times to assume. `first` is the pool that
    is asked first about a response (the reranker).
    """
    mean_tokens = float(np.mean([r.tokens for step in steps for r in step.responses]))
    observed = {name: times.service_s for name, times in pool_times(steps).items()}
    replays = [(replay(step, observed, mean_tokens, first), step.rollout_score_s) for step in steps]

    def error(service: Service) -> float:
        at = replace(workers, service=service)
        times = [(simulate(rounds, rollout=at, pools=pools), took) for rounds, took in replays]
        return float(np.mean([abs(s.rollout_s + s.tail_s - took) / took for s, took in times]))

    def at_scale(share: float) -> Service:
        """Find, by bisection, the scale at which the simulated steps take as long in total as the measured ones."""
        wanted, low, high = sum(took for _, took in replays), 0.0, max(took for _, took in replays)
        for _ in range(30):
            scale = (low + high) / 2
            service = Service(fixed_s=scale * (1 - share), each_s=scale * share / workers.slots)
            at = replace(workers, service=service)
            spent = sum(s.rollout_s + s.tail_s for s in (simulate(r, rollout=at, pools=pools) for r, _ in replays))
            low, high = (low, scale) if spent > wanted else (scale, high)
        return service

    train_fixed, train_token = _line([s.trained_tokens for s in steps], [s.train_s for s in steps])
    return Fit(
        rollout=min((at_scale(share) for share in SHARES), key=error),
        mean_tokens=mean_tokens,
        train_fixed_s=train_fixed,
        train_token_s=train_token,
        sync_s=float(np.median([s.total_s - s.rollout_score_s - s.train_s for s in steps])),
    )


def compare(
    steps: Sequence[MeasuredStep], *, workers: Station, pools: Mapping[str, Station], first: str
) -> list[Prediction]:
    """Fit to the first half of the steps and predict all of them.

    The requests of a step are taken from its record; their service times are drawn from the fitted half. Raises
    ValueError for fewer than four steps.
    """
    if len(steps) < 4:
        raise ValueError(f"{len(steps)} steps are too few to fit one half and predict the other; at least 4 are needed")
    known = steps[: len(steps) // 2]
    found = fit(known, workers=workers, pools=pools, first=first)
    observed = {name: times.service_s for name, times in pool_times(known).items()}
    at = replace(workers, service=found.rollout)
    made = []
    for index, step in enumerate(steps):
        played = simulate(replay(step, observed, found.mean_tokens, first), rollout=at, pools=pools)
        score = played.rollout_s + played.tail_s
        made.append(
            Prediction(
                step=step.step,
                fitted=index < len(known),
                predicted_score_s=score,
                measured_score_s=step.rollout_score_s,
                predicted_s=score + found.train_s(step.trained_tokens) + found.sync_s,
                measured_s=step.total_s,
            )
        )
    return made


def replay(
    step: MeasuredStep, observed: Mapping[str, Sequence[float]], mean_tokens: float, first: str
) -> tuple[tuple[SimulatedResponse, ...], ...]:
    """Return the step's responses with their own lengths and requests, and service times drawn from `observed`.

    Times are in seconds, so the stations' `service` is 1 s per unit of work.
    """
    rng, group, rounds = np.random.default_rng(step.step), 0, []
    for groups in step.rounds:
        responses = []
        for members in groups:
            for member in members:
                asked = [(pool, float(rng.choice(observed.get(pool, (0.0,))))) for pool, _, _ in member.calls]
                chain = (tuple(a for a in asked if a[0] == first), tuple(a for a in asked if a[0] != first))
                responses.append(SimulatedResponse(group=group, work=member.tokens / mean_tokens, chains=(chain,)))
            group += 1
        rounds.append(tuple(responses))
    return tuple(rounds)


def mean_errors(predictions: Sequence[Prediction], *, fitted: bool) -> tuple[float, float]:
    """Return the mean of |predicted - measured| / measured over the steps that were (not) fitted.

    One value for generation and scoring, one for the whole step.
    """
    chosen = [p for p in predictions if p.fitted == fitted]
    scores = [abs(p.predicted_score_s - p.measured_score_s) / p.measured_score_s for p in chosen]
    return float(np.mean(scores)), float(np.mean([abs(p.predicted_s - p.measured_s) / p.measured_s for p in chosen]))


def _line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Return (a, b) of y = a + b x, neither below 0, by the Theil-Sen estimator.

    b is the median slope of all pairs, a the median residual, so steps slowed down by other work on the machine do not
    bias the fit. Equal x give the median of y.
    """
    slopes = [(v - u) / (q - p) for p, u in zip(x, y, strict=True) for q, v in zip(x, y, strict=True) if q > p]
    slope = max(0.0, float(np.median(slopes))) if slopes else 0.0
    start = float(np.median([v - slope * p for p, v in zip(x, y, strict=True)]))
    return (start, slope) if start >= 0 else (0.0, float(np.median([v / p for p, v in zip(x, y, strict=True)])))
