"""Eq. 4 of the hybrid reward: when the judge is needed, and how its score is mixed with that of the reranker."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, TypeVar

from hamr.config.cascade_controller import CascadeConfig
from hamr.config.rewards import ConsistencyConfig
from hamr.errors import ConfigError, MissingScore

if TYPE_CHECKING:
    from hamr.calibration.ranks import Floats

CascadeBand = Literal["below", "inside", "above"]
Scores = TypeVar("Scores", float, "Floats")


@dataclass(frozen=True)
class Cascade:
    """The trust interval [tau_a, tau_b] of the reranker and the mixing weights outside it (Eq. 4).

        R = w1 S_R + (1 - w1) S_J   if S_R < tau_a            "below"
        R = S_R                     if tau_a <= S_R <= tau_b  "inside": the judge is not called
        R = w2 S_R + (1 - w2) S_J   if S_R > tau_b            "above"

    Both ends of the interval are inside. All scores and weights lie in [0, 1], so R does too. By the formula, R jumps
    at both ends and need not be monotone in S_R. tau_a = tau_b trusts one point; [0, 1] never calls the judge.

    >>> cascade = Cascade(0.68, 0.98, 0.05, 0.72)
    >>> cascade.needs_judge(0.68), cascade.mix(0.68), cascade.mix(0.5, 1.0)
    (False, 0.68, 0.975)
    """

    tau_a: float
    tau_b: float
    w1: float
    w2: float

    def __post_init__(self) -> None:
        for name in ("tau_a", "tau_b", "w1", "w2"):
            value = getattr(self, name)
            if not _is_share(value):
                raise ConfigError(f"cascade.{name}", value, "set a number in [0, 1]")
        if self.tau_a > self.tau_b:
            raise ConfigError("cascade.tau_a", self.tau_a, f"is above tau_b={self.tau_b}; set tau_a <= tau_b")

    @staticmethod
    @lru_cache(maxsize=64)  # It is called several times per response.
    def from_config(config: CascadeConfig) -> Cascade:
        """Return the cascade of a configuration. Equal configurations share one."""
        return Cascade(config.tau_a, config.tau_b, config.w1, config.w2)

    @property
    def parameters(self) -> tuple[float, float, float, float]:
        """(tau_a, tau_b, w1, w2), as stored in a record."""
        return self.tau_a, self.tau_b, self.w1, self.w2

    def put_into(self, config: ConsistencyConfig) -> ConsistencyConfig:
        """Return `config` with this cascade."""
        return config.model_copy(update={"cascade": CascadeConfig(**vars(self))})

    def band(self, s_r: float) -> CascadeBand:
        """Return the band of the reranker score. Raise ValueError unless 0 <= s_r <= 1."""
        _check("s_r", s_r)
        if s_r < self.tau_a:
            return "below"
        return "inside" if s_r <= self.tau_b else "above"

    def needs_judge(self, s_r: float) -> bool:
        """Return True if Eq. 4 uses S_J at this S_R."""
        return self.band(s_r) != "inside"

    def mix(self, s_r: float, s_j: float | None = None, *, key: float | None = None) -> float:
        """Return R in [0, 1]. Inside the interval s_j is not used. `key`: the score that the interval is over, if it is
        not s_r.

        Raises:
            MissingScore: The judge score is needed and absent.
            ValueError: A score is outside [0, 1].
        """
        band = self.band(s_r if key is None else key)
        if s_j is not None:
            _check("s_j", s_j)
        if band == "inside":
            return s_r
        if s_j is None:
            raise MissingScore(
                f"S_R={s_r} is {band} the trust interval [{self.tau_a}, {self.tau_b}]: the judge's score is needed"
            )
        weight = self.w1 if band == "below" else self.w2
        return weight * s_r + (1.0 - weight) * s_j

    def audited_mix(self, s_r: float, s_j: float) -> float:
        """Return R if the judge is called in any case. Inside the interval the weights are those below it."""
        weight = self.w2 if s_r > self.tau_b else self.w1
        return weight * s_r + (1.0 - weight) * s_j

    def highest(self, s_r: float) -> float:
        """Return the highest possible R at this S_R over all judge scores."""
        return self.mix(s_r, 1.0)


def confidence(s_r: Scores) -> Scores:
    """Return the distance of probabilities from one half, scaled to [0, 1]. The trust interval of rubric items is over
    it.

    >>> confidence(0.5), confidence(1.0), confidence(0.25)
    (0.0, 1.0, 0.5)
    """
    return abs(2.0 * s_r - 1.0)


def _is_share(value: float) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value) and 0.0 <= value <= 1.0


def _check(name: str, value: float) -> None:
    if not _is_share(value):
        raise ValueError(f"{name}={value!r} is not a score; scores lie in [0, 1]")
