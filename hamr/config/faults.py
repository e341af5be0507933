"""What is done about scorers that are slow, sick or gone. Sections of `pools.<name>` and of `experiment`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from hamr.config.section import Fraction, NonNegative, Section

Share = Annotated[float, Field(gt=0.0, le=1.0)]


class HedgeConfig(Section):
    """A request that takes unusually long is put to a second replica too; the first answer counts."""

    quantile: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.95
    """A request is late when it has waited longer than this quantile of the pool's last request times ..."""
    floor_s: PositiveFloat = 1.0
    """... and longer than this, whatever the quantile."""
    budget_frac: Share = 0.05
    """At most this share of the pool's questions is put a second time."""
    burst: PositiveInt = 64
    """Most second tries, in questions, that a quiet time saves up."""
    window: PositiveInt = 200
    """Request times that the quantile is taken of."""
    min_count: PositiveInt = 20
    """Below so many request times nothing is known to be late."""

    @model_validator(mode="after")
    def _enough_times(self) -> HedgeConfig:
        if self.min_count > self.window:
            raise ValueError(
                f"min_count={self.min_count} is above window={self.window}, so nothing would ever be hedged; "
                "lower the first or raise the second"
            )
        return self


class BreakerConfig(Section):
    """A pool that mostly fails is left alone for a while: its questions fail at once and typed, instead of each
    waiting out its own deadline. Timeouts and unavailability count; an answer that cannot be read does not."""

    failure_frac: Share = 0.5
    """Opens when at least this share of the questions that ended within `window_s` failed. A pool that loses one of
    two replicas still answers half; below a half a retry is the better cure."""
    min_count: PositiveInt = 20
    """Fewer questions within the window open nothing: one bad request (`batch_size` questions) is no outage."""
    window_s: PositiveFloat = 60.0
    cooldown_s: PositiveFloat = 15.0
    """From opening to the first probe; a replica that Serve replaces is rarely back sooner."""
    probes: PositiveInt = 3
    """Questions let through after the cool-down. If all of them are answered it closes, if one fails it opens again."""


class UnscoredConfig(Section):
    """When too many responses of a batch have no reward, the run waits for its scorers rather than train on the rest.

    The rest is not a fair sample: without a judge it is the replies that the reranker was content with.
    """

    max_frac: Fraction | None = 0.5
    """Largest share of failed totals that is trained on; null: any. Below a half, most of a group still stands
    for it."""
    wait_s: NonNegative = 900.0
    """Longest pause for one batch, in seconds; then the run stops and can be resumed from its newest checkpoint."""
    first_s: PositiveFloat = 10.0
    """First wait before the failed responses are put to the scorers again; each further one is twice as long ..."""
    longest_s: PositiveFloat = 120.0
    """... up to this."""

    @model_validator(mode="after")
    def _growing(self) -> UnscoredConfig:
        if self.first_s > self.longest_s:
            raise ValueError(
                f"first_s={self.first_s:g} is above longest_s={self.longest_s:g}; lower the first or raise the second"
            )
        return self
