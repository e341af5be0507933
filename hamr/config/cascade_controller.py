"""Sections of the cascade: Eq. 4, its audits, and what changes it between steps, which is off by default."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field, model_validator

from hamr.config.section import AbsolutePath, Fraction, PositiveInt, Section
from hamr.types import AuditBy

if TYPE_CHECKING:
    from hamr.config.schema import Config


class CascadeConfig(Section):
    """Eq. 4 of the hybrid reward. Defaults are the paper's Table 5."""

    tau_a: Fraction = 0.68
    """Lower end of the trust interval in [0, 1]. A reranker score in [tau_a, tau_b] is used without a judge."""
    tau_b: Fraction = 0.98
    """Upper end of the trust interval in [0, 1], at least `tau_a`."""
    w1: Fraction = 0.05
    """Weight of the reranker's score below the interval, in [0, 1]. The judge's score has 1 - w1."""
    w2: Fraction = 0.72
    """Weight of the reranker's score above the interval, in [0, 1]. The judge's score has 1 - w2."""

    @model_validator(mode="after")
    def _check_order(self) -> CascadeConfig:
        if self.tau_a > self.tau_b:
            raise ValueError(f"tau_a={self.tau_a} is above tau_b={self.tau_b}; set tau_a <= tau_b")
        return self


class ItemCascadeConfig(CascadeConfig):
    """Eq. 4 of each item of a rubric. The trust interval is over the confidence |2 S_R - 1|."""

    tau_a: Fraction = 0.8
    """Lowest confidence, in [0, 1], at which the reranker's score is used without a judge."""
    tau_b: Fraction = 1.0
    """Highest such confidence, at least `tau_a`."""


class AuditConfig(Section):
    """The auditor: source of the answers to the audits that `audit_frac` draws."""

    by: AuditBy = "judge"
    """`judge`: the judge of the cascade, about replies inside the trust interval. The others audit every reply of the
    cascade, so that they find what misleads reranker and judge together. `ensemble`: the mean score of the pools
    `pools`. `rules`: the exact act, where the data name their acts. `file`: a person's labels in `file`. `rules` and
    `file` answer in `hamr train` only."""
    pools: tuple[str, ...] = ()
    """Pools with role `judge` of the ensemble, at least one, without the judge of the cascade."""
    file: AbsolutePath | None = None
    """JSONL of {"sample": id, "reply": text, "label": a number in [0, 1]}. A reply without a row is a failed audit."""

    @model_validator(mode="after")
    def _has_its_source(self) -> AuditConfig:
        for by, key, given in (("ensemble", "pools", self.pools), ("file", "file", self.file)):
            if (self.by == by) != bool(given):
                remedy = f"set {key}" if self.by == by else f"set by={by} or leave {key} out"
                raise ValueError(f"by={self.by} but {key}={given or 'null'}; {remedy}")
        return self


class CertificateConfig(Section):
    """Bound on the mean amount by which rewards inside the trust interval exceed the judge's, from audits
    (`hamr.cascade.certificate`)."""

    limit: Fraction | None = None
    """Highest mean gap. Above it with 95 % confidence, the alarm `audit_bound` is raised. null: the bound is recorded
    only."""
    narrow: bool = False
    """Also narrow the trust interval to the largest part whose audits are within the limit. It never widens again."""
    max_judge_frac: Fraction = 1.0
    """Highest share of judged replies, audits included, to which narrowing may lead. If no part within the limit
    can be had for it, the part with the smallest mean gap is taken."""


class BudgetConfig(Section):
    """Keeps the share of judged replies at a target by moving the trust interval between steps (`hamr.cascade.budget`).
    Its ends stay ordered and in [0, 1]."""

    judge_frac: Fraction | None = None
    """Target share of the cascade's replies that the judge scores, audits included. null: no budget."""
    tolerance: Annotated[float, Field(gt=0.0, le=1.0)] = 0.02
    """Deviation of the share from the target that causes no move."""
    window: PositiveInt = 2000
    """Number of last replies in the window."""
    min_rows: PositiveInt = 100
    """Minimum number of replies before the interval moves."""
    max_move: Annotated[float, Field(gt=0.0, le=1.0)] = 0.05
    """Maximum move of an end between two steps."""

    @model_validator(mode="after")
    def _fits(self) -> BudgetConfig:
        if self.min_rows > self.window:
            raise ValueError(
                f"min_rows={self.min_rows} is above window={self.window}, so nothing would ever move; lower min_rows"
            )
        return self


def check_cascade_controller(c: Config) -> None:
    """Raise ValueError for contradictions of these sections with each other and with the rest of the job."""
    wanted = c.rewards.consistency
    certificate, share = wanted.certificate, wanted.budget.judge_frac
    by = None if wanted.audit.by == "judge" else wanted.audit.by
    audited = {"correction": wanted.correction, "certificate.limit": certificate.limit, "audit.by": by}
    for key, value in {**audited, "budget.judge_frac": share, "audit_frac": wanted.audit_frac}.items():
        if value in ("off", None, 0.0):
            continue
        if wanted.mode != "hybrid":
            raise ValueError(
                f"rewards.consistency.{key}={value} but mode={wanted.mode!r}, which has no trust interval; "
                "use mode='hybrid' or leave it out"
            )
        if key in audited and not wanted.audit_frac:
            raise ValueError(
                f"rewards.consistency.{key}={value} but audit_frac=0, so that nothing is audited; "
                "set rewards.consistency.audit_frac (for example 0.05)"
            )
    for name in wanted.audit.pools:
        possible = sorted(n for n, pool in c.pools.items() if pool.role == "judge" and n != wanted.judge)
        if name not in possible:
            raise ValueError(
                f"rewards.consistency.audit.pools has {name!r}, which is not another pool with role 'judge' than the "
                f"audited one; there are {possible}"
            )
    if certificate.narrow and (certificate.limit is None or share is not None):
        clash = f"budget.judge_frac={share}, which moves the interval too"
        if certificate.limit is None:
            clash = "limit=null, the bound that the interval has to keep"
        raise ValueError(f"rewards.consistency.certificate.narrow=true contradicts {clash}; change one of them")
    if share is not None and share < wanted.judge_audit_frac:
        raise ValueError(
            f"rewards.consistency.budget.judge_frac={share} is below audit_frac={wanted.audit_frac}, which alone calls "
            "the judge more often; lower audit_frac or raise the budget"
        )
