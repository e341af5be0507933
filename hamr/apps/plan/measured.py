"""Station speeds measured from a run, and the accuracy of the simulation on the run's own steps.

A run folder does not record when responses ended. The speed of the rollout workers is therefore fitted, so that the
simulated time of the first half of the steps equals the measured time. The second half is then predicted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
from scipy.optimize import least_squares, nnls

from hamr.apps.plan.overlap import Overlap, simulate_overlap
from hamr.apps.plan.simulation import Cluster, Service, SimulatedResponse, simulate

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
    """One RL step. `rounds` has the groups of each generation round; a group has its responses.

    If steps overlap, there is one round: the groups that the step took, and those that ended without signal since the
    step before. `signal` says which are the former, and `rollout_score_s` is the time that the step waited for them.
    """

    step: int
    rollout_score_s: float
    train_s: float
    total_s: float
    trained_tokens: float
    groups_dropped: float
    rounds: tuple[tuple[tuple[MeasuredResponse, ...], ...], ...]
    signal: tuple[bool, ...] = ()

    @property
    def responses(self) -> list[MeasuredResponse]:
        return [response for groups in self.rounds for group in groups for response in group]


@dataclass(frozen=True, kw_only=True)
class PoolTimes:
    """Times of all requests that reached one pool (no cached answers)."""

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
        found[name] = PoolTimes(queue_s=tuple(q for _, q, _ in mine), service_s=tuple(s for _, _, s in mine))
    return found


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Fitted speeds of a run.

    The speed of the rollout workers for a response of `mean_tokens`, the training time in seconds as `train_fixed_s +
    train_token_s x trained tokens + generated_token_s x tokens generated meanwhile`, and the rest of a step: sync and
    recording. Generation slows training down only where both use the same processors.
    """

    rollout: Service
    mean_tokens: float
    train_fixed_s: float
    train_token_s: float
    generated_token_s: float
    sync_s: float

    def train_s(self, trained: float, generated: float) -> float:
        return self.train_fixed_s + self.train_token_s * trained + self.generated_token_s * generated


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Predicted and measured seconds of one step. `fitted`: the step was used for the fit."""

    step: int
    fitted: bool
    predicted_score_s: float
    measured_score_s: float
    predicted_s: float
    measured_s: float
    overlaps: bool = False

    @property
    def score_error(self) -> float:
        """Error of generation and scoring, relative to it or, if it overlaps training, to the whole step."""
        scale = self.measured_s if self.overlaps else self.measured_score_s
        return abs(self.predicted_score_s - self.measured_score_s) / scale

    @property
    def error(self) -> float:
        """Relative error of the whole step."""
        return abs(self.predicted_s - self.measured_s) / self.measured_s


@dataclass(frozen=True, kw_only=True)
class RunSimulation:
    """Simulation of a measured run.

    `cluster` has the number of workers and their slots, and the service times of pools to assume. `first` is the pool
    that is asked first about a response (the reranker).
    """

    cluster: Cluster
    first: str
    overlap: Overlap | None = None

    def fit(self, steps: Sequence[MeasuredStep]) -> Fit:
        """Fit to all of `steps`. If no step waits, the workers are at most as slow as returned."""
        mean_tokens = float(np.mean([r.tokens for step in steps for r in step.responses]))
        replays = _Replays(self, steps, steps, mean_tokens)
        sync_s = self._sync_s(steps)
        if self.overlap and self.overlap.in_flight:
            # Running responses delay the weights as well as the training.
            trained = [s.total_s - s.rollout_score_s - sync_s for s in steps]
        else:
            trained = [s.train_s for s in steps]
        waited = [
            s.total_s - t - sync_s if self.overlap else s.rollout_score_s for s, t in zip(steps, trained, strict=True)
        ]
        scale = [s.total_s if self.overlap else s.rollout_score_s for s in steps]

        def error(service: Service) -> float:
            found = zip(replays.waits(service, trained, sync_s), waited, scale, strict=True)
            return float(np.mean([abs(wait - took) / size for wait, took, size in found]))

        def at_scale(share: float) -> Service:
            """Find, by bisection, the scale at which the simulated steps take as long in total as the measured ones."""
            wanted, low, high = sum(waited), 0.0, sum(scale)
            for _ in range(30):
                mean_s = (low + high) / 2
                service = Service(fixed_s=mean_s * (1 - share), each_s=mean_s * share / self.cluster.rollout.slots)
                is_longer = sum(replays.waits(service, trained, sync_s)) > wanted
                low, high = (low, mean_s) if is_longer else (mean_s, high)
            return service

        fixed, per_trained, per_generated = _rates(np.array(trained), self.tokens(steps))
        return Fit(
            rollout=min((at_scale(share) for share in SHARES), key=error),
            mean_tokens=mean_tokens,
            train_fixed_s=fixed,
            train_token_s=per_trained,
            generated_token_s=per_generated,
            sync_s=sync_s,
        )

    def tokens(self, steps: Sequence[MeasuredStep]) -> np.ndarray:
        """Return the trained tokens and those generated meanwhile (0 if none overlap), of shape (steps, 2)."""
        trained = np.array([step.trained_tokens for step in steps])
        ended = np.array([sum(r.tokens for r in step.responses) for step in steps], float)
        # Responses that end during a step were in part generated during the step before.
        generated = (ended + np.append(ended[1:], ended[-1])) / 2
        return np.stack([trained, generated * (self.overlap is not None)], axis=1)

    def compare(self, steps: Sequence[MeasuredStep]) -> list[Prediction]:
        """Fit to the first half of the steps and predict all of them.

        The requests of a step are taken from its record; their service times are drawn from the fitted half. Raises
        ValueError for fewer than four steps.
        """
        if len(steps) < 4:
            count = f"{len(steps)} steps are too few"
            raise ValueError(f"{count} to fit one half and predict the other; at least 4 are needed")
        known = steps[: len(steps) // 2]
        found = self.fit(known)
        trained = [found.train_s(*tokens) for tokens in self.tokens(steps)]
        waits = _Replays(self, steps, known, found.mean_tokens).waits(found.rollout, trained, found.sync_s)
        return [
            Prediction(
                step=step.step,
                fitted=index < len(known),
                predicted_score_s=wait,
                measured_score_s=step.rollout_score_s,
                predicted_s=wait + train_s + found.sync_s,
                measured_s=step.total_s,
                overlaps=self.overlap is not None,
            )
            for index, (step, wait, train_s) in enumerate(zip(steps, waits, trained, strict=True))
        ]

    def _sync_s(self, steps: Sequence[MeasuredStep]) -> float:
        rest = [s.total_s - s.rollout_score_s - s.train_s for s in steps]
        # Where steps overlap, the time that running responses add is in the training or simulated.
        return float(np.median(rest)) if self.overlap is None else min(rest)


class _Replays:
    """The responses of measured steps, with service times of scorers drawn from the steps `known`."""

    def __init__(
        self, run: RunSimulation, steps: Sequence[MeasuredStep], known: Sequence[MeasuredStep], mean_tokens: float
    ) -> None:
        observed = {name: times.service_s for name, times in pool_times(known).items()}
        self.rounds = [replay(step, observed, mean_tokens, run.first) for step in steps]
        self.signal = [step.signal for step in steps]
        self.run = run

    def waits(self, service: Service, train_s: Sequence[float], sync_s: float) -> list[float]:
        """Return the seconds that each step generates and scores or, if steps overlap, waits for its groups.

        `service` is that of the rollout workers.
        """
        run, overlap = self.run.cluster, self.run.overlap
        cluster = replace(run, rollout=replace(run.rollout, service=service), sync_s=sync_s)
        if overlap is None:
            played = [simulate(rounds, cluster) for rounds in self.rounds]
            return [step.rollout_s + step.tail_s for step in played]
        groups = [
            (tuple(members), signal)
            for [responses], signals in zip(self.rounds, self.signal, strict=True)
            for (_, members), signal in zip(groupby(responses, key=lambda r: r.group), signals, strict=True)
        ]
        found = simulate_overlap(groups, overlap, cluster, train_s)
        return [step.step_s - step.train_s - sync_s for step in found]


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
    """Return the mean relative errors over the steps that were (not) fitted: of generation and scoring, and of the
    whole step."""
    chosen = [p for p in predictions if p.fitted == fitted]
    return float(np.mean([p.score_error for p in chosen])), float(np.mean([p.error for p in chosen]))


def _rates(seconds: np.ndarray, tokens: np.ndarray) -> tuple[float, ...]:
    """Return (a, b, c) of seconds = a + b x tokens[:, 0] + c x tokens[:, 1]. None is below 0.

    The rate of tokens that are all 0 is 0. Large relative errors count by their size and not by its square, so steps
    slowed down by other work on the machine hardly bias the fit.
    """
    taken = seconds > seconds.mean() / 10  # a step without trainable groups takes no time
    causes, seconds = np.column_stack([np.ones(len(seconds)), tokens])[taken], seconds[taken]
    rates = np.zeros(tokens.shape[1] + 1)
    if len(seconds):
        scale = causes.mean(axis=0)
        used = scale > 0
        shares = causes[:, used] / scale[used] / seconds[:, None]
        start, _ = nnls(shares, np.ones(len(seconds)))
        fit = least_squares(lambda x: shares @ x - 1, start + 1e-9, bounds=(0, np.inf), loss="soft_l1", f_scale=0.05)
        rates[used] = fit.x / scale[used]
    return tuple(map(float, rates))
