"""Fault tolerance of scorers that are slow, failing or unavailable. Sections of `pools.<name>` and of `experiment`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from hamr.config.section import Fraction, NonNegative, PositiveFloat, PositiveInt, Section

Share = Annotated[float, Field(gt=0.0, le=1.0)]


class HedgeConfig(Section):
    """Hedged requests: an unusually slow request is also sent to a second replica, and the first answer counts."""

    quantile: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.95
    """A request is late if it has waited longer than this quantile of the pool's recent request times ..."""
    floor_s: PositiveFloat = 1.0
    """... and longer than this, regardless of the quantile."""
    budget_frac: Share = 0.05
    """Maximum share of the pool's questions that is hedged."""
    burst: PositiveInt = 64
    """Maximum number of hedged questions that accumulate as unused budget."""
    window: PositiveInt = 200
    """Number of request times in the quantile."""
    min_count: PositiveInt = 20
    """Minimum number of request times before a request can be late."""

    @model_validator(mode="after")
    def _enough_times(self) -> HedgeConfig:
        if self.min_count > self.window:
            raise ValueError(
                f"min_count={self.min_count} is above window={self.window}, so no request would ever be hedged; "
                "lower the first or raise the second"
            )
        return self


class BreakerConfig(Section):
    """Circuit breaker: after too many failures a pool gets no questions for a while, and they fail immediately with a
    typed failure instead of each waiting for its deadline.

    Timeouts and unavailability count as failures; an unparseable answer does not.
    """

    failure_frac: Share = 0.5
    """Opens if at least this share of the questions that ended within `window_s` failed. A pool that loses one of two
    replicas still answers half; below one half, retries are more effective."""
    min_count: PositiveInt = 20
    """Minimum number of questions in the window before it can open, so that one bad request (`batch_size` questions)
    does not open it."""
    window_s: PositiveFloat = 60.0
    """Length of the sliding window in seconds."""
    cooldown_s: PositiveFloat = 15.0
    """Time from opening to the first probe. A replica that Serve replaces is rarely back sooner."""
    probes: PositiveInt = 3
    """Questions let through after the cool-down. If all of them are answered it closes; if one fails it opens again."""


class UnscoredConfig(Section):
    """If too many responses of a batch have no reward, the run pauses for its scorers instead of training on the rest.

    The rest is not a fair sample: without a judge it consists of the replies that the reranker could score alone.
    """

    max_frac: Fraction | None = 0.5
    """Maximum share of failed totals, and of dialogues that failed as a whole, to train on; null: any. Below one half,
    most of a group still represents it."""
    wait_s: NonNegative = 900.0
    """Maximum pause of one step, in seconds. Then the run stops and can be resumed from its newest checkpoint."""
    first_s: PositiveFloat = 10.0
    """First wait before the failed responses are scored again. Each further wait is twice as long ..."""
    longest_s: PositiveFloat = 120.0
    """... up to this."""

    @model_validator(mode="after")
    def _growing(self) -> UnscoredConfig:
        if self.first_s > self.longest_s:
            raise ValueError(
                f"first_s={self.first_s:g} is above longest_s={self.longest_s:g}; lower the first or raise the second"
            )
        return self
