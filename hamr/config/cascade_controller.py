"""Sections of `rewards.consistency` that make the cascade cheaper than a fixed interval. All are off by default."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, PositiveInt, model_validator

from hamr.config.section import Fraction, Section

if TYPE_CHECKING:
    from hamr.config.schema import Config


class MovingConfig(Section):
    """Limits of the movement of an interval. It moves between steps only, and its ends stay ordered and in [0, 1].

    If `adaptive` and `budget` are both on, the stricter of their two values and the longer window apply.
    """

    window: PositiveInt = 2000
    """Number of last replies in the window."""
    min_rows: PositiveInt = 100
    """Minimum number of replies (`adaptive`: of judged replies) before the interval moves."""
    reach: Fraction = 1.0
    """Maximum distance of an end from its starting value."""
    max_move: Annotated[float, Field(gt=0.0, le=1.0)] = 0.05
    """Maximum move of an end between two steps."""

    @model_validator(mode="after")
    def _fits(self) -> MovingConfig:
        if self.min_rows > self.window:
            raise ValueError(
                f"min_rows={self.min_rows} is above window={self.window}, so nothing would ever move; lower min_rows"
            )
        return self


class AdaptiveConfig(MovingConfig):
    """Keeps the trust interval as large as the agreement of judge and reranker allows
    (`hamr.cascade.adaptive_interval`)."""

    enabled: bool = False
    """Move the interval. Needs audits (`audit_frac` above 0)."""
    reach: Fraction = 0.2
    max_move: Annotated[float, Field(gt=0.0, le=1.0)] = 0.02
    measure: Literal["gap", "rank"] = "gap"
    """Constraint of the interval: `gap`, the mean |S_R - S_J| inside it; `rank`, Spearman's rho of the cascade's
    rewards with S_J (Eq. 5, with the judge as teacher)."""
    limit: Fraction | None = None
    """Highest gap or lowest rho. null: the value of the starting interval once there are `min_rows` replies."""


class BudgetConfig(MovingConfig):
    """Keeps the share of judged replies at a target (`hamr.cascade.budget`)."""

    judge_frac: Fraction | None = None
    """Target share of the cascade's replies that the judge scores, audits included. null: no budget."""
    tolerance: Annotated[float, Field(gt=0.0, le=1.0)] = 0.02
    """Deviation of the share from the target that causes no move."""


def check_cascade_controller(c: Config) -> None:
    """Raise ValueError for contradictions of these sections with each other and with the rest of the job."""
    wanted = c.rewards.consistency
    adaptive, share = wanted.adaptive, wanted.budget.judge_frac
    for key, value in {"adaptive.enabled": adaptive.enabled, "budget.judge_frac": share}.items():
        if value not in (False, None) and wanted.mode != "hybrid":
            raise ValueError(
                f"rewards.consistency.{key}={value} but mode={wanted.mode!r}, which has no trust interval; "
                "use mode='hybrid' or leave it out"
            )
    if adaptive.enabled and not wanted.audit_frac:
        raise ValueError(
            "rewards.consistency.adaptive.enabled=true but audit_frac=0: without audits there are no judge scores "
            "inside the interval; set rewards.consistency.audit_frac (for example 0.05)"
        )
    if adaptive.enabled and adaptive.limit is not None and share is not None:
        raise ValueError(
            f"rewards.consistency.adaptive.limit={adaptive.limit} and budget.judge_frac={share} both set the size of "
            "the interval; with a budget, adaptive sets only its position: set limit to null"
        )
    if share is not None and share < wanted.audit_frac:
        raise ValueError(
            f"rewards.consistency.budget.judge_frac={share} is below audit_frac={wanted.audit_frac}, which alone calls "
            "the judge more often; lower audit_frac or raise the budget"
        )
