"""Section `algorithm`: advantages, loss, sampling of groups, and off-policy correction."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from hamr.config.custom import FunctionConfig
from hamr.config.section import Fraction, NonNegative, PositiveFloat, PositiveInt, Section, SmallInt
from hamr.types import Credit, ImportanceLevel, PolicyAggregation


class DynamicSamplingConfig(Section):
    """DAPO: groups whose rewards are all equal carry no signal. They are dropped and replaced with further prompts."""

    enabled: bool = True
    """Drop and replace groups without signal. False trains on all groups."""
    max_rounds: PositiveInt = 3
    """Maximum rounds of generation in a step, including the first. Then it trains on the available groups."""
    oversample: Annotated[float, Field(ge=1.0, le=16.0)] = 1.0
    """Groups that a step keeps in flight per group that it needs. Above 1, it trains on the first groups with signal.
    1: rounds of exactly the missing groups."""
    surplus: Literal["abort", "keep"] = "abort"
    """With `oversample` above 1: groups that a step does not need. `abort` stays on policy: it discards those that are
    ready and cancels the others, whose prompts come first in the next step; short responses are more frequent in
    training. `keep` finishes them for the next steps, which take the oldest first; they are at most `oversample` - 1
    policy versions older, rounded up."""
    tolerance: NonNegative = 1e-6
    """Rewards that differ by no more than this count as equal. DAPO's rewards are 0 and 1. Those of a scorer differ in
    the third digit between two right replies, and advantages divide such differences by their deviation."""

    def bounds(self, max_policy_age: int) -> tuple[int, float]:
        """Return the age and oversampling of `hamr.experience.Experience`: a surplus that is kept gets older."""
        if self.surplus == "abort":
            return max_policy_age, self.oversample
        age = math.ceil(self.oversample) - 1
        return age, self.oversample - age


class OverlongConfig(Section):
    """DAPO's overlong reward shaping (section 3.4): a soft penalty that is 0 up to `max_new_tokens - cache`, then
    linear to -1 at the limit, and a filter that takes truncated responses out of the loss."""

    enabled: bool = False
    """Add the penalty to the rewards."""
    cache: PositiveInt = 16
    """Length of the range in tokens, before the limit, in which the penalty grows."""
    weight: NonNegative = 1.0
    """Weight of the penalty in the total reward, at least 0."""
    filter: bool = False
    """Overlong filtering: a response that is truncated at `max_new_tokens` has no loss. Its reward still counts in the
    baseline of its group. Text after a finished answer may be truncated."""


class AllWrongConfig(Section):
    """Remedies for groups in which no response is right: no consistency reward is above 0.5.

    Rewards of such a group are equal or only distinguish degrees of wrong, so responses that are never sampled are
    never learned. Both remedies are off by default and may be combined.
    """

    more_samples: Annotated[int, Field(ge=0, le=4096)] = 0
    """Number of additional responses to the prompt, which join its group."""
    reference: bool = False
    """Add one reference of the sample to the group as a response. Its total is the best of the group with a consistency
    reward of 1. It has no importance weight, since no engine sampled it."""


class KlConfig(Section):
    coef: NonNegative = 0.0
    """Weight of the divergence from the reference policy in the loss, at least 0. 0 disables it."""
    measure: bool = False
    """Report `policy/kl_to_reference`, the distance from the start of the stage, even with `coef=0`. Costs a forward
    pass of every training batch and a frozen copy of the policy, which an adapter does not need. Off by default, so
    that steps without a KL term pay neither."""
    estimator: Literal["k1", "k2", "k3", "chi2"] = "k3"
    """`k1` only to report it: as a loss its expected gradient is 0. `chi2` is the chi-squared divergence instead of KL.
    It penalises replies that are rare under the reference policy more strongly."""


class ImportanceConfig(Section):
    """Off-policy correction: the weight of a token or a response, from the ratio of its probability in the trainer to
    that in the rollout engine. With `cap`, `mask_outside` and `reject_above` null, all weights are 1."""

    level: ImportanceLevel = "token"
    """Ratio of the `token`, of its whole response (`sequence`: the product over its tokens), or the geometric mean of
    the response's tokens (`geometric`)."""
    cap: PositiveFloat | None = 2.0
    """Maximum weight (truncated importance sampling). null: none."""
    mask_outside: tuple[PositiveFloat, PositiveFloat] | None = None
    """Range [low, high] of ratios; others have weight 0 (masked importance sampling). IcePop has [0.5, 5] and no cap.
    null: no mask."""
    reject_above: PositiveFloat | None = None
    """Largest divergence of a response: the mean of its tokens' k3 estimates of KL(engine || trainer), in nats. Beyond
    it, all of its tokens have weight 0. null: no limit."""

    @model_validator(mode="after")
    def _check_range(self) -> ImportanceConfig:
        if self.mask_outside is not None and self.mask_outside[0] >= self.mask_outside[1]:
            raise ValueError(f"mask_outside={list(self.mask_outside)} is empty; set [low, high] with low < high")
        if self.mask_outside is not None and not self.mask_outside[0] <= 1 <= self.mask_outside[1]:
            raise ValueError(
                f"mask_outside={list(self.mask_outside)} masks ratios of 1, which agreement has; set low <= 1 <= high"
            )
        return self


class AlgorithmConfig(Section):
    name: Literal[
        "dapo",
        "grpo",
        "dr_grpo",
        "gspo",
        "cispo",
        "rloo",
        "reinforce_plus_plus",
        "gmpo",
        "sapo",
        "dppo",
        "maxrl",
        "gdpo",
    ] = "dapo"
    """Name of the method, for the record. The other settings define it; the override `algorithm=grpo` sets them all."""
    objective: Literal["clip", "gspo", "cispo", "gmpo", "sapo", "dppo"] = "clip"
    """Loss of a token (`hamr/algorithms/objectives/`). `clip`: clipped probability ratio. `gspo`: ratio of the whole
    response. `cispo`: clipped weight of the gradient. `gmpo`: geometric mean over the response. `sapo`: soft gate.
    `dppo`: limit of the difference to the probability in the engine; instead of `importance.cap` it has its own."""
    advantage: Literal["group", "leave_one_out", "maxrl", "reinforce_pp", "reinforce_pp_baseline"] = "group"
    """Advantages of a group (`hamr/algorithms/estimators.py`). `group`: reward minus the mean, over the standard
    deviation. `leave_one_out`: reward minus the mean of the others. `maxrl`: reward minus the mean, over the mean.
    `reinforce_pp`: reward, normalised over the tokens of the batch. `reinforce_pp_baseline`: reward minus the mean of
    the group, normalised in the same way."""
    clip_low: Fraction = 0.2
    """Lower clipping range in [0, 1]: probability ratios below 1 - clip_low are clipped. With `gmpo` it limits the
    log-ratio, with `dppo` the difference in probability to the engine."""
    clip_high: NonNegative = 0.28
    """Upper clipping range, at least 0: probability ratios above 1 + clip_high are clipped. With `gmpo` it limits the
    log-ratio, with `dppo` the difference in probability to the engine."""
    dual_clip: Annotated[float, Field(gt=1.0, le=1e9)] | None = None
    """With `objective=clip`: largest probability ratio of a token with a negative advantage, above 1; 3 is usual. Acts
    only with several optimiser steps per batch. null: none."""
    tau_positive: PositiveFloat = 1.0
    """With `objective=sapo`: temperature of the gate for positive advantages."""
    tau_negative: PositiveFloat = 1.05
    """With `objective=sapo`: temperature of the gate for the others. A larger one closes it faster."""
    entropy_coef: NonNegative = 3.5e-4
    """Weight of the entropy bonus in the loss, at least 0."""
    normalize_std: bool = True
    """With `advantage=group`: divide by the standard deviation of the group's rewards."""
    std_floor: NonNegative = 0.0
    """With `normalize_std`: minimum divisor of the advantages, even if the rewards of a group are nearly equal."""
    all_wrong: AllWrongConfig = AllWrongConfig()
    loss_aggregation: PolicyAggregation = "token_mean"
    """Mean of the loss: over all tokens of the batch (`token_mean`, DAPO), first over the tokens of each response
    (`sequence_mean`, GRPO), or the sum over each response divided by `rollout.max_new_tokens` (`constant_length`, Dr.
    GRPO)."""
    dynamic_sampling: DynamicSamplingConfig = DynamicSamplingConfig()
    overlong: OverlongConfig = OverlongConfig()
    kl: KlConfig = KlConfig()
    importance: ImportanceConfig = ImportanceConfig()
    credit: Credit = "turn_normalised"
    """Share of a dialogue's rewards that its turns get. `turn_normalised`: a turn's own reward, compared with the same
    turn of the other dialogues of the group, plus the outcome of the dialogue, compared with their outcomes. `outcome`:
    only the outcome; the sum of the turns if there is none. `turn`: the sum of this reward, the later ones and the
    outcome, compared over all turns of the group. They do not differ for single decisions."""
    epochs: SmallInt = 1
    """Number of passes over the responses of a step."""
    minibatches: PositiveInt = 1
    """Optimiser steps per batch of responses and epoch."""
    loss: FunctionConfig | None = None
    """`def f(tokens)`: the loss of each token (see `hamr.algorithms.losses.TokenTerms`). null: `objective`."""
