"""Section `rewards`: the components of a reward and their weights."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from hamr.config.cascade_controller import AuditConfig, BudgetConfig, CascadeConfig, CertificateConfig
from hamr.config.custom import CustomRewardConfig
from hamr.config.judged import JudgedRewards
from hamr.config.matching import MatchingConfig
from hamr.config.sage import PathForm
from hamr.config.section import (
    AbsolutePath,
    Fraction,
    NonNegative,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    RewardName,
    Section,
)


class LengthConfig(Section):
    weight: NonNegative = 0.0
    """Weight of the length reward in the total, at least 0. 0 disables it."""
    reference_length: PositiveInt | None = None
    """L_ref in tokens. null: the longest reference of the sample."""
    cache_ratio: PositiveFloat = 1.0
    """Length over which the penalty grows to -1, as a multiple of L_ref, above 0."""


class FormatConfig(Section):
    weight: NonNegative = 0.0
    """Weight of the reward for the response format in the total, at least 0. 0 disables it."""


class RulesConfig(Section):
    weight: NonNegative = 0.0
    """Weight of the reward for rule violations in the total, at least 0. 0 disables it."""
    file: str | None = None
    """YAML of prohibited terms and patterns. null: the shipped one."""


class SageLogicConfig(Section):
    """SAGE's logic score of responses in its format, by the gold of the sample, without a model."""

    weight: NonNegative = 0.0
    """Weight of the reward in the total, at least 0. 0 disables it."""
    path: PathForm = "intersection"
    """Score of the path: `intersection`, the paper's Eq. 6, or `prefix`, where order and additional stages count
    too."""
    scenarios: tuple[AbsolutePath, ...] = ()
    """Files of the user's own procedures. Shipped procedures are always available."""


def _unquoted_off(value: object) -> object:
    """Return "off" for the YAML word off, which is read as false."""
    return "off" if value is False else value


class ConsistencyConfig(Section):
    """The first paper's reward: type mismatch 0, tool calls by exact match, replies by the cascade."""

    weight: NonNegative = 1.0
    """Weight of the reward in the total, at least 0. 0 disables it."""
    mode: Literal["hybrid", "reranker", "soft_judge", "hard_judge", "exact"] = "hybrid"
    """`exact` asks no scorer: a reply is worth 1 in a reference's very words and 0 otherwise. Data without any reply
    get it by themselves."""
    cascade: CascadeConfig = CascadeConfig()
    reranker: str = "reranker"
    """Pool of the reranker."""
    judge: str = "judge"
    """Pool of the judge. `reranker` is likewise the name of a pool."""
    hard_part: Fraction = 0.5
    """Reward of a partially consistent reply with `mode=hard_judge`. 0: binary, as the paper's hard judge. 0.5: the
    three levels of the soft score."""
    judge_best_k: PositiveInt | None = None
    """Maximum number of references that the judge scores with `mode=hybrid`, audits included: the k with the highest
    reranker scores. null: all, as in the other modes."""
    verbatim: bool = False
    """A reply identical to a reference scores 1 without a scorer. Off as in the paper, whose scorers rate the
    agreement. Much weaker scorers give the same correct wording different rewards."""
    repeated_words: Annotated[int, Field(ge=2, le=1000)] | None = None
    """A reply that says this many words in a row twice (numbers not counted; of Chinese, twice as many characters)
    scores 0 without a scorer, unless a reference does the same. Scorers overlook such repetition, and a policy can
    learn it in place of what it should say. 3 suits short replies; long ones repeat more. null: not checked."""
    allowed_repetitions: tuple[str, ...] = ()
    """Phrases that a reply may say twice despite `repeated_words`. A training run adds those that references of its
    training data say twice (of more than 1,000, the most frequent ones)."""
    call_credit: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Maximum reward of a call of the right tool with a wrong parameter: the share of tool and parameters that agree,
    times this. 0 is the paper's exact match. Where a call is due, a reply earns 0 and a wrong call earns 0 or this
    credit, so the difference never favours replies. Where a reply is due, a call earns 0 and a wrong reply earns its
    score: raise the credit if the scorers give wrong replies a noticeable reward."""
    matching: MatchingConfig = MatchingConfig()
    max_reasks: NonNegativeInt = 1
    """Number of judge retries for an unparseable verdict. After them, the outcome is a failure."""
    audit_frac: Fraction = 0.0
    """Share of the replies not judged, or not against all references (of `judge_best_k` the best), that are audited by
    the judge, drawn at random. Without `correction` their reward is unchanged. The audit shows what the fast pass hides
    (`audit/*`)."""
    audit: AuditConfig = AuditConfig()
    correction: Annotated[Literal["off", "stratified"], BeforeValidator(_unquoted_off)] = "off"
    """Correction of the rewards inside the trust interval during training by the audits of earlier steps: `stratified`
    adds the mean difference between judge and reranker of similar audited replies, and an audited reply takes the
    judge's reward. With another auditor than the judge, replies outside the interval are corrected too. Needs
    `audit_frac`."""
    certificate: CertificateConfig = CertificateConfig()
    budget: BudgetConfig = BudgetConfig()
    fallback: Literal["exclude", "wait", "reranker"] = "exclude"
    """Behaviour if a scorer is unavailable (timeout, unavailable, circuit breaker of its pool open). `exclude`: the
    response has a typed failure and no reward. `wait`: retry until the response's deadline (`router.deadline_s`).
    `reranker`: if the judge is unavailable, the reranker takes its part of Eq. 4, R = S_R, and the record is marked."""

    @property
    def judge_audit_frac(self) -> float:
        """Share of the replies inside the trust interval for which audits call the judge."""
        return self.audit_frac if self.audit.by == "judge" else 0.0

    @property
    def moves_interval(self) -> bool:
        """True if the trust interval may move during a run."""
        return self.budget.judge_frac is not None or self.certificate.narrow

    @model_validator(mode="after")
    def _stand_in(self) -> ConsistencyConfig:
        if self.fallback == "reranker" and self.mode != "hybrid":
            why = (
                "; only mode='hybrid' has a reranker score that can replace a missing judge score: use fallback='wait' "
                "or 'exclude'"
            )
            raise self.clash("mode", "fallback", why)
        return self


RESERVED = ("total", "outcome")
"""Names in metrics (`reward/total/mean`) that no reward may have."""


Normalisation = Literal["sum", "gdpo"]


class RewardsConfig(JudgedRewards):
    """Every reward has a section with its weight. The judged ones are in `hamr.config.judged`, the user's own ones in
    `hamr.config.custom`."""

    consistency: ConsistencyConfig = ConsistencyConfig()
    format: FormatConfig = FormatConfig()
    length: LengthConfig = LengthConfig()
    rules: RulesConfig = RulesConfig()
    sage_logic: SageLogicConfig = SageLogicConfig()
    custom: dict[RewardName, CustomRewardConfig] = Field(default_factory=dict)
    """Reward functions of your own, by the name of their component in records and metrics."""
    normalise: Normalisation = "sum"
    """`sum`: advantages are those of the total reward. `gdpo`: each component is normalised within its group before
    they are summed with their weights, so that scale and frequency of a component do not decide how much it counts."""

    @model_validator(mode="after")
    def _own_names(self) -> RewardsConfig:
        taken = {*RESERVED, *type(self).model_fields}
        for key, names in (("custom", self.custom), ("judged", self.judged)):
            if own := sorted(taken.intersection(names)):
                raise ValueError(f"{key}.{own[0]}: {own[0]!r} is a name of hamr's own; rename your reward")
        if both := sorted(self.custom.keys() & self.judged.keys()):
            raise ValueError(f"custom.{both[0]} and judged.{both[0]} have the same name; rename one of them")
        return self

    def section(self, component: str) -> Section | None:
        """Return the section of a component, None if the configuration does not have it."""
        section = self.custom.get(component) or self.judged.get(component) or getattr(self, component, None)
        return section if isinstance(section, Section) else None

    @property
    def weight_keys(self) -> list[str]:
        """Keys of the rewards that have a weight, below `rewards`."""
        fixed = ("consistency", "format", "length", "rules", "sage_logic")
        own = (f"custom.{name}" for name, section in self.custom.items() if section.weight)
        return [*(key for key in fixed if getattr(self, key).weight), *map(self.key, self.judges), *own]

    @property
    def has_weight(self) -> bool:
        """True if some reward has a weight."""
        return bool(self.weight_keys)

    @property
    def pool_keys(self) -> list[str]:
        """Keys of the rewards that ask pools, below `rewards`."""
        return [*(["consistency"] if self.scorers else []), *map(self.key, self.judges)]

    @property
    def scorers(self) -> dict[Literal["reranker", "judge"], str]:
        """Role -> pool of the scorers that the consistency reward uses in its mode."""
        wanted = self.consistency
        if not wanted.weight:
            return {}
        asked = {"hybrid": ("reranker", "judge"), "reranker": ("reranker",), "exact": ()}
        roles = asked.get(wanted.mode, ("judge",))
        return {role: getattr(wanted, role) for role in ("reranker", "judge") if role in roles}

    @property
    def used_pools(self) -> dict[str, str]:
        """Setting -> pool that it uses. Other pools are idle."""
        ensemble = self.consistency.audit.pools if self.scorers else ()
        return {
            **{f"consistency.{role}": pool for role, pool in self.scorers.items()},
            **{f"consistency.audit.pools[{i}]": pool for i, pool in enumerate(ensemble)},
            **{f"{self.key(reward)}.pool": section.pool for reward, section in self.judges.items()},
            **({"rubric.reranker": name} if self.rubric.weight and (name := self.rubric.reranker) else {}),
        }
