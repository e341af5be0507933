"""Schema of every group in `conf/`. Every default lives here and nowhere else.

Sections are frozen. Unknown keys are errors. A function takes its own section, never the whole configuration.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    PositiveFloat,
    PositiveInt,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from hamr.config.cascade_controller import AdaptiveConfig, BudgetConfig
from hamr.config.contradictions import check_consistent
from hamr.config.custom import CustomRewardConfig, EpisodeFunctionConfig, FunctionConfig, ImporterConfig
from hamr.config.faults import UnscoredConfig
from hamr.config.footprint import FootprintConfig
from hamr.config.judged import JudgedRewards
from hamr.config.launch import LaunchConfig
from hamr.config.logging import LoggingConfig
from hamr.config.lora import LoraConfig
from hamr.config.matching import MatchingConfig
from hamr.config.plan import PlanConfig
from hamr.config.pools import EngineConfig, PoolConfig, RouterConfig, default_pools
from hamr.config.sage import SCRIPTED, DialoguesConfig, PathForm
from hamr.config.scorers import ScorersConfig
from hamr.config.section import AbsolutePath, FolderName, Fraction, NonNegative, RewardName, Samples, Section, Steps
from hamr.config.sft import SftConfig
from hamr.config.use import ScoreConfig, ServeConfig
from hamr.hardware import DType, resolve_dtype
from hamr.types import Aggregation, Credit, ImportanceLevel, PolicyAggregation


class ModelConfig(Section):
    """Starting point of the policy."""

    path: str = "smollm2-135m"
    """A bundled model (`smollm2-135m`, `compact`, `tiny`), a folder, or a Hugging Face name."""
    dtype: DType = "auto"
    """`auto` is resolved when the configuration is loaded: bfloat16 on GPUs and on CPUs that support it (AVX-512-BF16,
    AMX), float32 elsewhere. The run's config.yaml contains the resolved value."""
    max_context: Annotated[int, Field(ge=1, le=1 << 24)] = 1024
    """Maximum length of prompt and response together, in tokens."""
    response_format: Literal["plain", "think_answer", "answer_think", "hybrid"] = "plain"
    """`plain`: the response is the action. `think_answer` (pre-CoT): <think>..</think><answer>..</answer>.
    `answer_think` (post-CoT): the answer first. `hybrid`: the system prompt of each sample asks for one of the two."""
    tools_prompt: Literal["auto", "template", "compact"] = "auto"
    """Form of tools, tool calls and tool results. `template`: the model's chat template writes them, with all
    descriptions, as a server with an OpenAI-compatible API does. `compact`: hamr's own short form, one line per tool.
    `auto`: `template` if the chat template supports tools and its calls have the Hermes form (Qwen and others)."""
    post_cot_share: Fraction = 0.5
    """With `hybrid`: the share of samples with the answer first. The second paper does not state it. Rendering every
    item of its cold start in both orders gives one half."""


class RolloutConfig(Section):
    workers: PositiveInt = 1
    """Number of rollout engines."""
    placement: Literal["pack", "spread"] = "spread"
    """`spread`: on as many nodes as possible, so that a lost node affects few of them."""
    colocated: bool = False
    """Engine i shares GPU i with trainer rank i, and sleeps while the ranks train. Set `engine.num_gpus` and
    `trainer.num_gpus` to shares of one GPU, and `engine.gpu_memory_utilization` to leave memory for the rank."""
    samples_per_prompt: Annotated[int, Field(ge=2, le=4096)] = 16
    """Number of responses per prompt: the size of a group."""
    temperature: PositiveFloat = 1.0
    """Sampling temperature, above 0."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Nucleus sampling: smallest set of tokens whose probability reaches this share, in (0, 1]. 1 keeps all tokens."""
    sampling_extra: dict[str, Any] = Field(default_factory=dict)
    """Further parameters of vLLM's `SamplingParams`, by name: `{min_p: 0.02}`. Unknown names and those that hamr sets
    itself are refused. As with `top_p`, log-probabilities are those of the changed distribution."""
    max_new_tokens: PositiveInt = 64
    """Maximum length of a response in tokens."""
    long_prompt: Literal["drop", "refuse"] = "drop"
    """Handling of a prompt that leaves no room for `max_new_tokens`: drop and count, or refuse to start."""
    transfer: Literal["shared_memory", "nccl"] = "shared_memory"
    """Path of new weights from the trainer to the engines: `shared_memory` within one node, `nccl` between GPUs of any
    nodes."""
    deadline_s: PositiveFloat = 600.0
    """Maximum wait for one batch of responses before the worker counts as dead."""
    check_logprobs: bool = True
    """After each sync, compare trainer and engine log-probabilities of the same tokens."""
    engine: EngineConfig = EngineConfig()
    episode: EpisodeFunctionConfig | None = None
    """The dialogue that each prompt becomes: `async def run(episode, ask)`, or an environment class. null: the policy
    takes one decision."""
    max_turns: PositiveInt = 16
    """Maximum number of responses of the policy in a dialogue."""


class TrainerConfig(FootprintConfig):
    """`num_cpus`, `num_gpus` and similar settings are those of one rank."""

    ranks: PositiveInt = 1
    """Number of trainer processes."""
    placement: Literal["pack", "strict_pack", "spread"] = "pack"
    """`pack`: ranks on as few nodes as possible; `strict_pack`: on one; `spread`: on as many as possible."""
    backend: Literal["gloo", "nccl"] = "gloo"
    """Communication between the ranks: `gloo` on CPUs, `nccl` on GPUs."""
    zero_stage: Annotated[int, Field(ge=0, le=3)] = 2
    """ZeRO stage of DeepSpeed, 0 to 3: the ranks share nothing (0), the optimiser state (1), also the gradients
    (2), also     the weights (3)."""
    dtype: DType = "auto"
    """Compute type. Master weights and optimiser state are float32. `auto` as for `model.dtype`, by `num_gpus`."""
    lora: LoraConfig | None = None
    """Train an adapter instead of all weights. null trains the weights themselves."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, more computation."""
    attention: Literal["shared_prompt", "packed", "padded"] = "shared_prompt"
    """`shared_prompt` computes each group's prompt once; `packed` concatenates; `padded` is the plain reference
    implementation."""
    tokens_per_microbatch: PositiveInt = 2048
    """Maximum number of tokens per forward and backward pass of a rank."""
    learning_rate: PositiveFloat = 5e-6
    """Peak learning rate, above 0."""
    embedding_rate: NonNegative = 1.0
    """Learning rate of the token embeddings as a multiple of `learning_rate`. Below 1, words that are absent from the
    training data stay close to those that occur in it."""
    schedule: Literal["constant", "cosine"] = "constant"
    """Learning rate after the warm-up: `constant`, or a `cosine` down to `min_learning_rate`."""
    warmup_frac: Fraction = 0.0
    """Share of the steps, in [0, 1], in which the learning rate increases linearly to its peak."""
    min_learning_rate: NonNegative = 0.0
    """Learning rate at the end of a `cosine` schedule, at most `learning_rate`."""
    weight_decay: NonNegative = 1e-4
    """Decoupled weight decay of AdamW, at least 0."""
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    """AdamW's decay rates of the first and the second moment, each in [0, 1]."""
    grad_clip: PositiveFloat = 1.0
    """Maximum norm of the gradient, above 0. A larger gradient is scaled down to it."""
    max_bad_steps: PositiveInt = 3
    """Consecutive optimiser steps with a non-finite gradient norm before the run stops."""
    threads: PositiveInt = 1
    """OpenMP threads of a rank."""
    deadline_s: PositiveFloat = 1800.0
    """Maximum duration of one call of the ranks, and of their collective operations, in seconds."""

    @model_validator(mode="after")
    def _resolve_dtype(self) -> TrainerConfig:
        object.__setattr__(self, "dtype", resolve_dtype(self.dtype, on_gpu=self.num_gpus > 0))
        return self


class EnvConfig(Section):
    """Dialogues that prompts become in training."""

    type: Literal["decision", "sage", "tau2"] = "decision"
    """`decision`: a prompt is one decision. `sage`: a prompt is a customer of one of SAGE's procedures, played by the
    scenario's wordings without a model. The samples come from `hamr data sage` or `data=sage`. `tau2`: a prompt is a
    task of tau2-bench; the tasks of `domain` replace `data`. For a dialogue of your own see `rollout.episode`."""
    domain: Literal["retail", "airline", "telecom"] = "retail"
    """Domain of tau2-bench."""
    simulator: str = "scripted:case"
    """Pool that plays the customers of tau2-bench. `scripted:case` states its case, waits and leaves, without a
    model."""
    completion: NonNegative = 1.0
    """Weight of the completion of a dialogue in its outcome, at least 0: 1 if the customer's case ends with the action
    that the procedure demands (tau2-bench: if its evaluator gives 1), else 0."""
    extra_turns: NonNegative = 0.1
    """Weight of superfluous turns in the outcome, at least 0: minus their number, as a share of `rollout.max_turns`."""


class DynamicSamplingConfig(Section):
    """DAPO: groups whose rewards are all equal carry no signal. They are dropped and replaced with further prompts."""

    enabled: bool = True
    """Drop and replace groups without signal. False trains on all groups."""
    max_rounds: PositiveInt = 3
    """Maximum rounds of generation in a step, including the first. Then it trains on the available groups."""
    oversample: Annotated[float, Field(ge=1.0, le=16.0)] = 1.0
    """Groups that a step keeps in flight per group that it needs. Above 1, it trains on the first groups with signal
    and aborts the others, whose prompts come first in the next step. Steps are shorter, and short responses are more
    frequent in them. 1: rounds of exactly the missing groups."""
    tolerance: NonNegative = 1e-6
    """Rewards that differ by no more than this count as equal. DAPO's rewards are 0 and 1. Those of a scorer differ in
    the third digit between two right replies, and advantages divide such differences by their deviation."""


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
    """Remedies for groups in which no response is right (`right_above`).

    Rewards of such a group are equal or only distinguish degrees of wrong, so responses that are never sampled are
    never learned. Both remedies are off by default and may be combined.
    """

    more_samples: Annotated[int, Field(ge=0)] = 0
    """Number of additional responses to the prompt, which join its group."""
    reference: bool = False
    """Add one reference of the sample to the group as a response. Its total is the best of the group with a consistency
    reward of 1. It has no importance weight, since no engine sampled it."""


class KlConfig(Section):
    coef: NonNegative = 0.0
    """Weight of the divergence from the reference policy in the loss, at least 0. 0 disables it."""
    measure: bool = False
    """Report `policy/kl_to_reference`, the distance from the start of the stage, even with `coef=0`. Costs a forward
    pass and a frozen copy of the policy."""
    estimator: Literal["k1", "k2", "k3", "chi2"] = "k3"
    """`chi2` is the chi-squared divergence instead of KL. It penalises replies that are rare under the reference policy
    more strongly."""


class ImportanceConfig(Section):
    """Off-policy correction: the weight of a token or a response, from the ratio of its probability in the trainer to
    that in the rollout engine. With `cap` and `mask_outside` null, all weights are 1."""

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
    `dppo`: limit of the change in probability."""
    advantage: Literal["group", "leave_one_out", "maxrl", "reinforce_pp", "reinforce_pp_baseline"] = "group"
    """Advantages of a group (`hamr/algorithms/estimators.py`). `group`: reward minus the mean, over the standard
    deviation. `leave_one_out`: reward minus the mean of the others. `maxrl`: reward minus the mean, over the mean.
    `reinforce_pp`: reward, normalised over the tokens of the batch. `reinforce_pp_baseline`: reward minus the mean of
    the group, normalised in the same way."""
    clip_low: Fraction = 0.2
    """Lower clipping range in [0, 1]: probability ratios below 1 - clip_low are clipped. With `gmpo` it limits the
    log-ratio, with `dppo` the change in probability."""
    clip_high: NonNegative = 0.28
    """Upper clipping range, at least 0: probability ratios above 1 + clip_high are clipped. With `gmpo` it limits the
    log-ratio, with `dppo` the change in probability."""
    dual_clip: Annotated[float, Field(gt=1.0)] | None = None
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
    right_above: Fraction = 0.5
    """A response counts as right in `groups/*` and for `all_wrong` if its consistency reward is above this."""
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
    epochs: PositiveInt = 1
    """Number of passes over the responses of a step."""
    minibatches: PositiveInt = 1
    """Optimiser steps per batch of responses and epoch."""
    loss: FunctionConfig | None = None
    """`def f(tokens)`: the loss of each token (see `hamr.algorithms.losses.TokenTerms`). null: `objective`."""

    @model_validator(mode="before")
    @classmethod
    def _accept_importance_cap(cls, values: Any) -> Any:
        """Read `importance_cap`, the former name of `importance.cap`."""
        if not isinstance(values, dict) or "importance_cap" not in values:
            return values
        rest = {key: value for key, value in values.items() if key != "importance_cap"}
        return rest | {"importance": {"cap": values["importance_cap"]} | dict(rest.get("importance", {}))}


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
    """Maximum number of references that the judge scores: the k with the highest reranker scores. null: all."""
    verbatim: bool = False
    """A reply identical to a reference scores 1 without a scorer. Off as in the paper, whose scorers rate the
    agreement. Much weaker scorers give the same correct wording different rewards."""
    call_credit: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Maximum reward of a call of the right tool with a wrong parameter: the share of tool and parameters that agree,
    times this. 0 is the paper's exact match. Where a call is due, a reply earns 0 and a wrong call earns 0 or this
    credit, so the difference never favours replies. Where a reply is due, a call earns 0 and a wrong reply earns its
    score: raise the credit if the scorers give wrong replies a noticeable reward."""
    matching: MatchingConfig = MatchingConfig()
    max_reasks: Annotated[int, Field(ge=0)] = 1
    """Number of judge retries for an unparseable verdict. After them, the outcome is a failure."""
    audit_frac: Fraction = 0.0
    """Share of the replies not judged, or not against all references, that are audited by the judge. Their reward is
    unchanged. The audit shows what the fast pass hides (`audit/*`)."""
    adaptive: AdaptiveConfig = AdaptiveConfig()
    budget: BudgetConfig = BudgetConfig()
    fallback: Literal["exclude", "wait", "reranker"] = "exclude"
    """Behaviour if a scorer is unavailable (timeout, unavailable, circuit breaker of its pool open). `exclude`: the
    response has a typed failure and no reward. `wait`: retry until the response's deadline (`router.deadline_s`).
    `reranker`: if the judge is unavailable, the reranker takes its part of Eq. 4, R = S_R, and the record is marked."""

    @model_validator(mode="after")
    def _stand_in(self) -> ConsistencyConfig:
        if self.fallback == "reranker" and self.mode != "hybrid":
            raise ValueError(
                f"mode={self.mode!r} and fallback='reranker' contradict each other; only mode='hybrid' has a reranker "
                "score that can replace a missing judge score: use fallback='wait' or 'exclude'"
            )
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
    def scorers(self) -> dict[Literal["reranker", "judge"], str]:
        """Role -> pool of the scorers that the consistency reward uses in its mode."""
        wanted = self.consistency
        if not wanted.weight:
            return {}
        asked = {"hybrid": ("reranker", "judge"), "reranker": ("reranker",), "exact": ()}
        roles = asked.get(wanted.mode, ("judge",))
        return {role: getattr(wanted, role) for role in ("reranker", "judge") if role in roles}

    @property
    def asked(self) -> dict[str, str]:
        """Setting -> pool that it uses. Other pools are idle."""
        return {
            **{f"consistency.{role}": pool for role, pool in self.scorers.items()},
            **{f"{self.key(reward)}.pool": section.pool for reward, section in self.judges.items()},
        }


class SageDataConfig(Section):
    """Dialogues generated from a scenario."""

    scenario: str = "telecom_package"
    """A shipped scenario by name, a user's file by path, or `all` for the shipped ones in equal parts."""
    language: Literal["en", "zh"] = "en"
    """Language of the dialogues."""
    train: Samples = 600
    """Number of training samples."""
    validation: Samples = 80
    """Number of validation samples."""
    test: Samples = 120
    """Number of test samples."""
    seed: int = 0
    """Seed of the generated dialogues. Any integer."""
    noise: Fraction = 0.0
    """Share of the samples that supervised fine-tuning sees with wrong references (another act, or a wrong argument),
    as in logs of real agents. The true ones stay in their `privileged.references`. Rewards and evaluations always use
    the true ones."""
    procedure: bool = True
    """If true, prompts contain the procedure. A small policy trained from scratch on one procedure cannot read it and
    must learn it from examples; without it, prompts are half as long."""


class DataConfig(Section):
    type: Literal["sage", "jsonl", "importer"] = "jsonl"
    """Source of the samples: `jsonl` files, `sage`, dialogues generated from a scenario as in `data.sage`, or the
    function in `data.importer`, which sets this type."""
    importer: ImporterConfig | None = None
    """`def f()` that yields the training samples as objects of the sample format. null: none."""
    train: str | None = None
    """JSONL of the training samples. Required for `type: jsonl`."""
    validation: str | None = None
    """JSONL of the samples for evaluations in the run. null: split off `train`."""
    test: str | None = None
    """JSONL files in the sample format. `type: jsonl` needs `train`; the others are split off if null."""
    sft: str | None = None
    """JSONL of the samples for supervised fine-tuning. null: those of `train`."""
    held_out_frac: Fraction = 0.15
    """Share of the training samples, in [0, 1], that is split off for each missing split, in whole dialogues."""
    sage: SageDataConfig = SageDataConfig()
    max_eval: PositiveInt | None = None
    """Maximum number of held-out samples per evaluation. null: all of the test split."""
    max_pairs: PositiveInt = 4000
    """Maximum number of labelled reply pairs for scorer training and checks."""
    labelled_pairs: str | None = None
    """JSONL of {content_A, content_B, label}: an external check of the scorers' AUC."""

    @model_validator(mode="before")
    @classmethod
    def _by_importer(cls, given: Any) -> Any:
        """Let `data.importer.path=` alone replace the data of an experiment."""
        if not isinstance(given, Mapping) or given.get("importer") is None:
            return given
        return {**given, "type": "importer", "train": None}

    @model_validator(mode="after")
    def _train_file(self) -> DataConfig:
        if self.type == "importer" and self.importer is None:
            raise ValueError("type='importer' and importer=null contradict each other; set data.importer.path")
        if self.type == "jsonl" and self.train is None:
            raise ValueError("type='jsonl' and train=null contradict each other; set data.train to a JSONL file")
        return self


class ClusterConfig(Section):
    type: Literal["local", "ray", "kuberay", "slurm"] = "local"
    """Place where `hamr submit` runs a job: `local`, the Ray cluster behind `dashboard`, or a cluster that Kubernetes
    or Slurm starts for it with nodes as in `launch`."""
    address: str | None = None
    """Ray address. null starts a local Ray for this run."""
    num_cpus: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Logical CPUs of the local Ray. null: 8 or those of the machine, whichever is more."""
    object_store_mb: PositiveInt = 512
    """Size of the object store of a local Ray in MiB."""
    temp_dir: str | None = None
    """Folder for the files of a local Ray. null: the system's folder for temporary files."""
    start_timeout_s: PositiveFloat = 300.0
    """Maximum time for the start of actors and pools, in seconds."""
    allow_unauthenticated: bool = False
    """Join a remote cluster although no Ray token is set. Everyone who can reach it can run code on it."""
    dashboard: str = "http://127.0.0.1:8265"
    """URL that accepts jobs for the cluster."""
    run_root: str | None = None
    """Folder for the run folders of submitted jobs, on storage visible to this machine and every node. null: `runs` in
    the working folder, for a cluster on this machine only."""
    max_package_mb: PositiveFloat = 64.0
    """Maximum size of a working tree that is sent with a job."""
    package_also: tuple[str, ...] = ()
    """Patterns of files that are sent with a job although they are in a folder that starts with a dot or look like
    keys."""
    elastic: bool = False
    """The cluster adds nodes on request. A plan that does not fit now is reported instead of refused."""


class SftStageConfig(Section):
    """A short supervised warm-up before RL. 0 steps skips it."""

    steps: Steps = 0
    """Number of optimiser steps. 0 skips the warm-up."""
    samples_per_step: Samples = 16
    """Number of samples per optimiser step."""
    seed: int | None = None
    """Seed of the order of the samples and of the drawn references. null: that of the experiment. With its own seed,
    the warm-up is the same in runs with several seeds, which then differ only in RL."""
    learning_rate: PositiveFloat = 1e-4
    """Peak learning rate of the warm-up, above 0."""
    schedule: Literal["constant", "cosine"] = "constant"
    """Learning rate schedule. A rate that decreases to `trainer.min_learning_rate` ends nearer to the result of further
    steps. At a constant rate the last few batches determine the result of a short warm-up."""
    warmup_frac: Fraction = 0.0
    """Share of the steps, in [0, 1], in which the learning rate increases linearly to its peak."""
    references_per_sample: PositiveInt = 1
    """Maximum number of references of a sample that are drawn as targets in a step."""
    turns: Literal["last", "all"] = "last"
    """`all`: also train on earlier agent turns of the dialogue. Use it only if those turns are good examples."""
    loss_aggregation: Aggregation = "token_mean"
    """`sequence_mean` gives a reply of ten tokens the same weight as a tool call of thirty."""


class EvaluationConfig(Section):
    """Sampling of a policy on held-out prompts.

    Temperature 0 gives the most likely response, as in a deployment without sampling. Responses at the rollout
    temperature (with its top_p) estimate the mean that RL optimises.
    """

    temperature: NonNegative = 0.0
    """Sampling temperature, at least 0. 0 takes the most likely token."""
    samples: PositiveInt = 1
    """Number of responses per prompt. More than 1 needs a temperature above 0."""
    stop_at_answer: bool = False
    """Post-CoT: generation ends with the answer, as in a deployment. Later text cannot change the answer. In training
    the rationale is always generated."""

    @model_validator(mode="after")
    def _check_sampling(self) -> EvaluationConfig:
        if self.samples > 1 and self.temperature == 0:
            raise ValueError(
                f"samples={self.samples} at temperature={self.temperature:g} would all be the same response; "
                "set samples=1 or a temperature above 0"
            )
        return self


class CheckpointConfig(Section):
    every: PositiveInt = 10
    """Interval between two checkpoints in steps."""
    keep: Annotated[int, Field(ge=2)] = 2
    """Number of complete checkpoints that are kept, at least 2. Older ones are deleted."""
    grace_s: Annotated[float, Field(ge=0)] = 4.0
    """Seconds after SIGTERM or Ctrl-C in which a running optimiser step may end and be saved. Then it is dropped, and
    the run resumes from its newest checkpoint. With the default, the whole run ends within 10 s. Raise it for a large
    model, up to a few seconds less than the scheduler waits before SIGKILL."""


class AsynchronyConfig(Section):
    """Generation and scoring that continue while the trainer works, so that slow scorers do not slow down the steps."""

    max_policy_age: Annotated[int, Field(ge=0, le=64)] = 0
    """Largest number of policy versions between sampling a token and training on it. At most (this + 1) x
    `experiment.prompts_per_step` groups are in flight. A group that gets older is recorded as `stale` and replaced. 0:
    every step samples its own groups and waits for them."""
    in_flight: bool = True
    """With `max_policy_age` above 0: load new weights while responses are being generated, which continue under the new
    weights. False: finish these responses first; further ones wait until the weights are loaded."""


class ExperimentConfig(Section):
    name: FolderName = "run"
    """Name of the run: in its folder, on the console and in W&B. Without a slash, at most 200 bytes, no dot first."""
    seed: int = 0
    """Seed of the order of the prompts, of the sampling and of the splits. Any integer."""
    steps: Steps = 10
    """Number of RL steps. 0 skips RL. null, or not set, with `episodes`: as many as these take."""
    episodes: PositiveFloat | None = None
    """Passes over the training samples, for runs without `steps`: steps = ceil(episodes x samples / prompts_per_step).
    Prompts that replace groups without signal are not counted. null: `steps` decides."""
    prompts_per_step: Samples = 8
    """Number of prompts per RL step. Each gets `rollout.samples_per_prompt` responses."""
    run_dir: str | None = None
    """Run folder. null: `runs/<name>-<time>` in the working folder."""
    sft: SftStageConfig = SftStageConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    asynchrony: AsynchronyConfig = AsynchronyConfig()
    max_restarts: Annotated[int, Field(ge=0, le=100)] = 0
    """Largest number of times that `hamr train` resumes the run from its newest checkpoint after the death of its
    driver, a trainer rank or the rollout workers. The run is then a process of its own. 0: it stops, and names the
    command that resumes it."""
    eval_every: Annotated[int, Field(ge=0)] = 0
    """Evaluate on the held-out split every this number of steps. 0: only before and after each stage."""
    evaluation: EvaluationConfig = EvaluationConfig()
    sage: DialoguesConfig = DialoguesConfig()
    unscored: UnscoredConfig = UnscoredConfig()

    @model_validator(mode="before")
    @classmethod
    def _unset_steps(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and given.get("steps", 0) is None:
            return {key: value for key, value in given.items() if key != "steps"}
        return given

    @model_serializer(mode="wrap")
    def _dump(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {**handler(self), **({"steps": None} if self.is_open else {})}

    @property
    def is_open(self) -> bool:
        """Return True if the number of steps depends on the number of training samples."""
        return self.episodes is not None and "steps" not in self.model_fields_set

    def with_steps(self, samples: int) -> ExperimentConfig:
        """Return a copy with the steps that `episodes` takes on this number of training samples.

        Steps that are set, as in the config.yaml of a run, stay.
        """
        if self.episodes is None or not self.is_open:
            return self
        return self.model_copy(update={"steps": math.ceil(self.episodes * samples / self.prompts_per_step)})


class Config(Section):
    """A whole job."""

    experiment: ExperimentConfig = ExperimentConfig()
    env: EnvConfig = EnvConfig()
    model: ModelConfig = ModelConfig()
    rollout: RolloutConfig = RolloutConfig()
    trainer: TrainerConfig = TrainerConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    rewards: RewardsConfig = RewardsConfig()
    pools: dict[str, PoolConfig] = Field(default_factory=default_pools)
    router: RouterConfig = RouterConfig()
    scorers: ScorersConfig = ScorersConfig()
    data: DataConfig
    cluster: ClusterConfig = ClusterConfig()
    logging: LoggingConfig = LoggingConfig()
    score: ScoreConfig = ScoreConfig()
    serve: ServeConfig = ServeConfig()
    sft: SftConfig = SftConfig()
    plan: PlanConfig = PlanConfig()
    launch: LaunchConfig = LaunchConfig()

    @model_validator(mode="after")
    def _resolve_dtype(self) -> Config:
        on_gpu = self.rollout.engine.num_gpus > 0 or self.trainer.num_gpus > 0
        resolved = {"dtype": resolve_dtype(self.model.dtype, on_gpu=on_gpu)}
        object.__setattr__(self, "model", self.model.model_copy(update=resolved))
        return self

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        check_consistent(self)
        return self

    @property
    def holds_dialogues(self) -> bool:
        """True if a prompt becomes a dialogue instead of a single decision."""
        return self.env.type != "decision" or self.rollout.episode is not None

    @property
    def functions(self) -> dict[str, FunctionConfig]:
        """The user's functions by the key of their section, without rewards that have no weight and an importer that
        was called."""
        found: dict[str, FunctionConfig] = {
            f"rewards.custom.{name}": section for name, section in self.rewards.custom.items() if section.weight
        }
        importer = self.data.importer if self.data.importer and self.data.importer.samples is None else None
        own = (("algorithm.loss", self.algorithm.loss), ("data.importer", importer))
        for key, section in (*own, ("rollout.episode", self.rollout.episode)):
            if section is not None:
                found[key] = section
        return found | {f"logging.callbacks.{name}": section for name, section in self.logging.callbacks.given.items()}

    @property
    def asked(self) -> dict[str, str]:
        """Setting -> pool of the participants of dialogues in training and its evaluations."""
        found = {f"experiment.sage.{key}": name for key, name in self.experiment.sage.asked.items()}
        if self.env.type == "tau2" and not self.env.simulator.startswith(SCRIPTED):
            found["env.simulator"] = self.env.simulator
        return found

    def with_functions(self, functions: Mapping[str, FunctionConfig]) -> Config:
        """Return a copy with these sections of `functions` replaced."""
        changed = self
        for key, section in functions.items():
            changed = _replace(changed, key.split("."), section)
        return changed

    def with_asked_pools(self, *more: str) -> Config:
        """Return the configuration with only the pools used by rewards or in `more`, and those whose training another
        one starts from."""
        names = {*self.rewards.asked.values(), *more}
        names |= {t.start_from for n in names if (t := self.pools[n].finetune) is not None and t.start_from}
        return self.model_copy(update={"pools": {name: p for name, p in self.pools.items() if name in names}})


GROUPS = (*Config.model_fields, "schedule")
"""Groups of choices: one per section, and `schedule`, the readings of a paper's number of steps."""


def _replace(section: Any, keys: list[str], value: FunctionConfig) -> Any:
    if not keys:
        return value
    first, *rest = keys
    if isinstance(section, Mapping):
        return {**section, first: _replace(section[first], rest, value)}
    return section.model_copy(update={first: _replace(getattr(section, first), rest, value)})
