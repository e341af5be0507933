"""Workload of a step: drawn from a few shares and means, or sampled from a recorded run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from hamr.apps.plan.overlap import Overlap, SimulatedGroup
from hamr.apps.plan.simulation import Chain, SimulatedResponse
from hamr.experience import whole_groups


@dataclass(frozen=True, kw_only=True)
class WorkSpread:
    """Distribution of job sizes with mean 1.

    Samples `observed`, if given; else a log-normal with the coefficient of variation `cv` (0: all equal).
    """

    cv: float = 0.0
    observed: tuple[float, ...] = ()

    def draw(self, rng: np.random.Generator, n: int) -> list[float]:
        if self.observed:
            values = np.asarray(self.observed) / np.mean(self.observed)
            return rng.choice(values, size=n).tolist()
        sigma = math.sqrt(math.log1p(self.cv**2))
        return np.exp(rng.normal(-(sigma**2) / 2, sigma, size=n)).tolist()


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The responses of a step and the requests about each.

    A share `cascaded_frac` of the responses are replies that the cascade scores: `first_questions` requests to `first`
    (one per reference), then, for a share `escalated_frac` of these replies, `second_questions` to `second`. Either
    pool may be None. `side`: further requests per response, by pool, in parallel to the cascade. Numbers of requests
    may be fractional; the fraction is the probability of one more. `dropped_frac` of a round's groups carry no signal
    and are replaced in the next round, up to `max_rounds`; with `overlap` they are replaced immediately. `longest`
    bounds a response's work: its length over the mean.
    """

    prompts: int
    samples: int
    cascaded_frac: float = 1.0
    first: str | None = None
    first_questions: float = 1.0
    second: str | None = None
    second_questions: float = 1.0
    escalated_frac: float = 1.0
    side: Mapping[str, float] = field(default_factory=dict)
    dropped_frac: float = 0.0
    max_rounds: int = 1
    length: WorkSpread = WorkSpread()
    longest: float = math.inf
    service: Mapping[str, WorkSpread] = field(default_factory=dict)
    overlap: Overlap | None = None

    @property
    def rounds(self) -> tuple[int, ...]:
        """Return the number of groups of each round.

        >>> Workload(prompts=8, samples=4, dropped_frac=0.3, max_rounds=3).rounds
        (8, 3, 1)
        """
        if self.overlap is not None:
            kept_frac = max(1 - self.dropped_frac, 1 / self.max_rounds)
            return (whole_groups(max(self.overlap.oversample, 1 / kept_frac), self.prompts),)
        sizes = [self.prompts]
        while len(sizes) < self.max_rounds and (missing := whole_groups(self.dropped_frac, sizes[-1])) > 0:
            sizes.append(missing)
        return tuple(sizes)

    @property
    def responses(self) -> int:
        return sum(self.rounds) * self.samples

    def questions(self) -> dict[str, float]:
        """Return the expected requests to each pool in a step."""
        asked = {pool: self.responses * per_response for pool, per_response in self.side.items()}
        cascaded = self.responses * self.cascaded_frac
        if self.first:
            asked[self.first] = asked.get(self.first, 0.0) + cascaded * self.first_questions
        if self.second:
            more = cascaded * self.escalated_frac * self.second_questions
            asked[self.second] = asked.get(self.second, 0.0) + more
        return asked

    def draw(self, seed: int) -> tuple[tuple[SimulatedResponse, ...], ...]:
        """Return the responses of each round. The same seed gives the same responses, for any stations."""
        rng = np.random.default_rng(seed)
        drawn, group = [], 0
        for groups in self.rounds:
            drawn.append(self._responses(rng, group, groups))
            group += groups
        return tuple(drawn)

    def draw_groups(self, seed: int, steps: int) -> tuple[SimulatedGroup, ...]:
        """Return the groups of `steps` steps that overlap."""
        rng = np.random.default_rng(seed)
        count = self.rounds[0] * steps
        responses, n = self._responses(rng, 0, count), self.samples
        signal = rng.random(count) >= self.dropped_frac
        return tuple((responses[i * n : (i + 1) * n], bool(signal[i])) for i in range(count))

    def _responses(self, rng: np.random.Generator, first: int, groups: int) -> tuple[SimulatedResponse, ...]:
        lengths = self.length.draw(rng, groups * self.samples)
        return tuple(
            SimulatedResponse(
                group=first + index // self.samples, work=min(length, self.longest), chains=self._chains(rng)
            )
            for index, length in enumerate(lengths)
        )

    def _chains(self, rng: np.random.Generator) -> tuple[Chain, ...]:
        chains: list[Chain] = []
        # Drawn for every response in the same order, so that a changed share does not change other draws.
        cascaded, escalated = rng.random() < self.cascaded_frac, rng.random() < self.escalated_frac
        if cascaded:
            first = self._stage(rng, self.first, self.first_questions)
            second = self._stage(rng, self.second if escalated else None, self.second_questions)
            chains.append((first, second))
        for pool, per_response in self.side.items():
            chains.append((self._stage(rng, pool, per_response),))
        return tuple(chains)

    def _stage(self, rng: np.random.Generator, pool: str | None, questions: float) -> tuple[tuple[str, float], ...]:
        if pool is None:
            return ()
        whole = math.floor(questions)
        count = whole + int(rng.random() < questions - whole)
        spread = self.service.get(pool, WorkSpread())
        return tuple((pool, work) for work in spread.draw(rng, count))
