"""The sections of `rewards.consistency` that make the cascade cheaper than a fixed interval. All are off by default."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, PositiveInt, model_validator

from hamr.config.section import Fraction, NonNegative, Section

if TYPE_CHECKING:
    from hamr.config.schema import Config


class MovingConfig(Section):
    """How an interval may move. It does so between steps only, and both its ends stay in [0, 1] and in order. Where
    `adaptive` and `budget` are both on, the stricter of their two values counts, and the longer window."""

    window: PositiveInt = 2000
    """So many of the last replies count."""
    min_rows: PositiveInt = 100
    """Fewer of them (`adaptive`: of those that the judge spoke about) move nothing."""
    reach: Fraction = 1.0
    """How far an end may get from where it started."""
    max_move: Annotated[float, Field(gt=0.0, le=1.0)] = 0.05
    """How far an end may move between two steps."""

    @model_validator(mode="after")
    def _fits(self) -> MovingConfig:
        if self.min_rows > self.window:
            raise ValueError(
                f"min_rows={self.min_rows} is above window={self.window}, so nothing would ever move; lower the first"
            )
        return self


class AdaptiveConfig(MovingConfig):
    """Keep the trust interval as large as the judge's agreement with the reranker allows
    (`hamr.cascade.adaptive_interval`)."""

    enabled: bool = False
    reach: Fraction = 0.2
    max_move: Annotated[float, Field(gt=0.0, le=1.0)] = 0.02
    measure: Literal["gap", "rank"] = "gap"
    """What has to be kept: `gap`, the mean |S_R - S_J| inside the interval; `rank`, Spearman's rho of the cascade's
    rewards with S_J (Eq. 5, with the judge in the teacher's place)."""
    limit: Fraction | None = None
    """Highest gap or lowest rho; null: what the starting interval has when there are first rows enough."""


class BudgetConfig(MovingConfig):
    """Holds the share of replies that the judge is asked about (`hamr.cascade.budget`)."""

    judge_frac: Fraction | None = None
    """Share of the cascade's replies that the judge is asked about, audits included; null: no budget."""
    tolerance: Annotated[float, Field(gt=0.0, le=1.0)] = 0.02
    """A share this near to the target is left alone."""


class GroupAwareConfig(Section):
    """Spares the judge what could change nothing in a group (`hamr.cascade.group_aware`)."""

    enabled: bool = False
    tolerance: NonNegative = 0.0
    """Two responses whose total rewards differ by no more than this may change places."""
    equal_within: NonNegative = 1e-6
    """Dynamic sampling's tolerance: `algorithm.dynamic_sampling.tolerance`."""


def check_steering(c: Config) -> None:
    """Contradictions of these sections with each other and with the rest of the job."""
    wanted = c.rewards.consistency
    adaptive, budget, aware = wanted.adaptive, wanted.budget, wanted.group_aware
    share = budget.judge_frac
    on = {"adaptive.enabled": adaptive.enabled, "budget.judge_frac": share, "group_aware.enabled": aware.enabled}
    for key, value in on.items():
        if value not in (False, None) and wanted.mode != "hybrid":
            raise ValueError(
                f"rewards.consistency.{key}={value} but mode={wanted.mode!r}, which has no trust interval; "
                "use mode='hybrid' or leave it out"
            )
    if adaptive.enabled and not wanted.audit_frac:
        raise ValueError(
            "rewards.consistency.adaptive.enabled=true but audit_frac=0: nobody would know what the judge thinks of "
            "the replies inside the interval; set rewards.consistency.audit_frac (0.05, say)"
        )
    if adaptive.enabled and adaptive.limit is not None and share is not None:
        raise ValueError(
            f"rewards.consistency.adaptive.limit={adaptive.limit} and budget.judge_frac={share} both say how large the "
            "interval is; with a budget, adaptive only says where it lies: set limit to null"
        )
    if adaptive.enabled and aware.enabled:
        raise ValueError(
            "rewards.consistency.adaptive and group_aware are both enabled, but what group_aware skips is no fair draw "
            "of the judge's answers, which adaptive needs; turn one of them off"
        )
    if share is not None and share < wanted.audit_frac:
        raise ValueError(
            f"rewards.consistency.budget.judge_frac={share} is below audit_frac={wanted.audit_frac}, which alone asks "
            "the judge more often; lower audit_frac or raise the budget"
        )
    if aware.enabled:
        _check_group_aware(c)


def _check_group_aware(c: Config) -> None:
    """Its argument is about total rewards, so that it has to know all that goes into them but the judge's word."""
    aware, sampling = c.rewards.consistency.group_aware, c.algorithm.dynamic_sampling
    if c.rewards.judged:
        raise ValueError(
            f"rewards.consistency.group_aware.enabled=true but {sorted(c.rewards.judged)} have a weight: whom the "
            "judge may skip would depend on what other judges say; turn one of the two off"
        )
    if c.algorithm.overlong.enabled:
        raise ValueError(
            "rewards.consistency.group_aware.enabled=true and algorithm.overlong.enabled=true: the penalty moves "
            "rewards after they are given; turn one of the two off"
        )
    if sampling.enabled and sampling.tolerance != aware.equal_within:
        raise ValueError(
            f"rewards.consistency.group_aware.equal_within={aware.equal_within} but "
            f"algorithm.dynamic_sampling.tolerance={sampling.tolerance}; set both to the same"
        )
