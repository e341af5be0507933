"""The schema of every group in `conf/`. Every default lives here and nowhere else.

Sections are frozen; unknown keys are errors. A function takes its own section, never the whole.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from hamr.config.cascade_controller import AdaptiveConfig, BudgetConfig, GroupAwareConfig
from hamr.config.contradictions import check_consistent
from hamr.config.faults import UnscoredConfig
from hamr.config.footprint import FootprintConfig
from hamr.config.judged import JudgedRewards
from hamr.config.launch import LaunchConfig
from hamr.config.logging import LoggingConfig
from hamr.config.lora import LoraConfig
from hamr.config.plan import PlanConfig
from hamr.config.pools import EngineConfig, PoolConfig, RouterConfig, default_pools
from hamr.config.sage import DialoguesConfig, PathForm
from hamr.config.scorers import ScorersConfig
from hamr.config.section import AbsolutePath, Fraction, NonNegative, Section
from hamr.config.sft import SftConfig
from hamr.config.use import ScoreConfig, ServeConfig
from hamr.hardware import DType, resolve_dtype
from hamr.types import Aggregation


class ModelConfig(Section):
    """The policy's starting point."""

    path: str = "smollm2-135m"
    """A bundled model (`smollm2-135m`, `compact`, `tiny`), a folder, or a Hugging Face name."""
    dtype: DType = "auto"
    """`auto` is resolved when the configuration is loaded: bfloat16 on GPUs and on CPUs that compute it (AVX-512-BF16,
    AMX), float32 elsewhere. The run's config.yaml has the resolved value."""
    max_context: PositiveInt = 1024
    """Prompt and response together, in tokens."""
    response_format: Literal["plain", "think_answer", "answer_think", "hybrid"] = "plain"
    """`plain`: the response is the action. `think_answer` (pre-CoT): <think>..</think><answer>..</answer>.
    `answer_think` (post-CoT): the answer first. `hybrid`: each sample asks for one of the two, by its system prompt."""
    post_cot_share: Fraction = 0.5
    """With `hybrid`: the share of samples that ask for their answer first. The second paper gives none; half is what
    rendering every item of its cold start in both orders comes to."""


class RolloutConfig(Section):
    workers: PositiveInt = 1
    placement: Literal["pack", "spread"] = "spread"
    """`spread`: on as many nodes as possible, so that a node that goes takes few of them along."""
    colocated: bool = False
    """Engine i shares GPU i with trainer rank i, and sleeps while the ranks train. Set `engine.num_gpus` and
    `trainer.num_gpus` to shares of one GPU, and `engine.gpu_memory_utilization` to leave the rank its room."""
    samples_per_prompt: PositiveInt = 16
    temperature: PositiveFloat = 1.0
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    max_new_tokens: PositiveInt = 64
    long_prompt: Literal["drop", "refuse"] = "drop"
    """What to do with a prompt that leaves no room for `max_new_tokens`: drop and count, or refuse to start."""
    transfer: Literal["shared_memory", "nccl"] = "shared_memory"
    deadline_s: PositiveFloat = 600.0
    """Longest wait for one batch of responses before the worker counts as dead."""
    check_logprobs: bool = True
    """After each sync, compare trainer and engine log-probabilities of the same tokens."""
    engine: EngineConfig = EngineConfig()


class TrainerConfig(FootprintConfig):
    """`num_cpus`, `num_gpus` and the like are those of one rank."""

    ranks: PositiveInt = 1
    placement: Literal["pack", "strict_pack", "spread"] = "pack"
    """`pack`: ranks on as few nodes as possible; `strict_pack`: on one; `spread`: on as many as possible."""
    backend: Literal["gloo", "nccl"] = "gloo"
    zero_stage: Annotated[int, Field(ge=0, le=3)] = 2
    dtype: DType = "auto"
    """Compute type; master weights and optimiser state are float32. `auto` as for `model.dtype`, by `num_gpus`."""
    lora: LoraConfig | None = None
    gradient_checkpointing: bool = False
    attention: Literal["shared_prompt", "packed", "padded"] = "shared_prompt"
    """`shared_prompt` computes each group's prompt once; `packed` concatenates; `padded` is the plain oracle."""
    tokens_per_microbatch: PositiveInt = 2048
    learning_rate: PositiveFloat = 5e-6
    embedding_rate: NonNegative = 1.0
    """Learning rate of the token embeddings as a multiple of `learning_rate`. Below 1 it keeps words that the training
    data lack near those that they have."""
    schedule: Literal["constant", "cosine"] = "constant"
    warmup_frac: Fraction = 0.0
    min_learning_rate: NonNegative = 0.0
    weight_decay: NonNegative = 1e-4
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    grad_clip: PositiveFloat = 1.0
    max_bad_steps: PositiveInt = 3
    """Optimiser steps in a row with a non-finite gradient norm before the run stops."""
    threads: PositiveInt = 1
    deadline_s: PositiveFloat = 1800.0

    @model_validator(mode="after")
    def _resolve_dtype(self) -> TrainerConfig:
        object.__setattr__(self, "dtype", resolve_dtype(self.dtype, on_gpu=self.num_gpus > 0))
        return self


class DynamicSamplingConfig(Section):
    """DAPO: groups whose rewards are all equal carry no signal; drop them and refill with further prompts."""

    enabled: bool = True
    max_rounds: PositiveInt = 3
    """Rounds of generation a step may take, the first included; then it trains on what it has."""
    tolerance: NonNegative = 1e-6
    """Rewards that differ by no more than this count as equal. DAPO's are 0 and 1; a scorer's differ in the third digit
    between two right replies, and a group's advantages are its differences divided by their deviation."""


class OverlongConfig(Section):
    """DAPO's soft overlong penalty: 0 up to `max_new_tokens - cache`, then linearly to -1 at the limit."""

    enabled: bool = False
    cache: PositiveInt = 16
    weight: NonNegative = 1.0


class AllWrongConfig(Section):
    """Remedies for groups in which no response is right (`right_above`).

    Rewards of such a group are equal, or only tell shades of wrong apart, so that what is never sampled is never
    learned. Both remedies are off by default and may be combined.
    """

    more_samples: Annotated[int, Field(ge=0)] = 0
    """So many further responses to the prompt, which join its group."""
    reference: bool = False
    """One of the sample's references joins the group as one more response. It has the best total of the group with a
    consistency reward of 1, and no importance weight, since no engine sampled it."""


class KlConfig(Section):
    coef: NonNegative = 0.0
    measure: bool = False
    """Report `policy/kl_to_reference`, the distance from the stage's start, also with `coef=0`; it costs a forward pass
    and a frozen copy of the policy."""
    estimator: Literal["k1", "k2", "k3"] = "k3"


class AlgorithmConfig(Section):
    name: Literal["dapo", "grpo"] = "dapo"
    clip_low: Fraction = 0.2
    clip_high: NonNegative = 0.28
    entropy_coef: NonNegative = 3.5e-4
    normalize_std: bool = True
    std_floor: NonNegative = 0.0
    """With `normalize_std`: advantages are divided by no less than this, however alike a group's rewards are."""
    right_above: Fraction = 0.5
    """A response counts as right in `groups/*` and for `all_wrong` if its consistency reward is above this."""
    all_wrong: AllWrongConfig = AllWrongConfig()
    loss_aggregation: Aggregation = "token_mean"
    dynamic_sampling: DynamicSamplingConfig = DynamicSamplingConfig()
    overlong: OverlongConfig = OverlongConfig()
    kl: KlConfig = KlConfig()
    importance_cap: PositiveFloat | None = 2.0
    """Truncated importance correction between rollout and trainer log-probabilities; null turns it off."""
    epochs: PositiveInt = 1
    minibatches: PositiveInt = 1
    """Optimiser steps per batch of responses and epoch."""


class CascadeConfig(Section):
    """Eq. 4 of the hybrid reward; defaults are the paper's Table 5."""

    tau_a: Fraction = 0.68
    tau_b: Fraction = 0.98
    w1: Fraction = 0.05
    w2: Fraction = 0.72

    @model_validator(mode="after")
    def _check_order(self) -> CascadeConfig:
        if self.tau_a > self.tau_b:
            raise ValueError(f"tau_a={self.tau_a} is above tau_b={self.tau_b}; set tau_a <= tau_b")
        return self


class LengthConfig(Section):
    weight: NonNegative = 0.0
    reference_length: PositiveInt | None = None
    """L_ref in tokens; null takes the longest reference of the sample."""
    cache_ratio: PositiveFloat = 1.0


class FormatConfig(Section):
    weight: NonNegative = 0.0


class RulesConfig(Section):
    weight: NonNegative = 0.0
    file: str | None = None
    """YAML of prohibited terms and patterns; null takes the shipped one."""


class SageLogicConfig(Section):
    """SAGE's logic score of responses in its form, by the gold that comes with a sample; no model is asked."""

    weight: NonNegative = 0.0
    path: PathForm = "intersection"
    scenarios: tuple[AbsolutePath, ...] = ()
    """Files of procedures of one's own; those that ship are known."""


class ConsistencyConfig(Section):
    """The first paper's reward: type mismatch 0, tool calls by exact match, replies by the cascade."""

    weight: NonNegative = 1.0
    mode: Literal["hybrid", "reranker", "soft_judge", "hard_judge"] = "hybrid"
    cascade: CascadeConfig = CascadeConfig()
    reranker: str = "reranker"
    judge: str = "judge"
    """Names of pools."""
    judge_best_k: PositiveInt | None = None
    """Ask the judge only of the k references that the reranker likes best; null: all."""
    verbatim: bool = False
    """A reply in the very words of a reference is worth 1, and no scorer is asked. Off as in the paper, whose scorers
    say how well they agree with it; scorers much weaker than a reader give the same right words different rewards."""
    call_credit: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """What a call of the right tool earns at most while a parameter is wrong: the share of tool and parameters that
    agree, times this. 0 is the paper's exact match, under which a wrong call earns what a reply in its place earns; a
    policy whose scorers give wrong replies a little then drifts towards replies."""
    max_reasks: Annotated[int, Field(ge=0)] = 1
    """How often the judge is asked again for a verdict that cannot be read; then the outcome is a failure."""
    audit_frac: Fraction = 0.0
    """Share of the replies that the judge was not asked about, or not about all of their references, that it is asked
    about all the same. Their reward stays; what the judge says shows what the fast pass hides (`audit/*`)."""
    adaptive: AdaptiveConfig = AdaptiveConfig()
    budget: BudgetConfig = BudgetConfig()
    group_aware: GroupAwareConfig = GroupAwareConfig()
    fallback: Literal["exclude", "wait", "reranker"] = "exclude"
    """When a scorer is away (timed out, unavailable, its pool's breaker open). `exclude`: the response has a typed
    failure and no reward. `wait`: asked again until the response's deadline (`router.deadline_s`). `reranker`: where
    the judge is away its part of Eq. 4 falls to the reranker, R = S_R, and the record says so."""

    @model_validator(mode="after")
    def _stand_in(self) -> ConsistencyConfig:
        if self.fallback == "reranker" and self.mode != "hybrid":
            raise ValueError(
                f"mode={self.mode!r} and fallback='reranker' contradict each other; only in mode='hybrid' is there a "
                "reranker's score where a judge's is missing: use fallback='wait' or 'exclude'"
            )
        return self


class RewardsConfig(JudgedRewards):
    """Every reward has a section with its weight. The judged ones stand in `hamr.config.judged`."""

    consistency: ConsistencyConfig = ConsistencyConfig()
    format: FormatConfig = FormatConfig()
    length: LengthConfig = LengthConfig()
    rules: RulesConfig = RulesConfig()
    sage_logic: SageLogicConfig = SageLogicConfig()

    @property
    def scorers(self) -> dict[Literal["reranker", "judge"], str]:
        """Role -> pool, of those that the consistency reward asks in its mode."""
        wanted = self.consistency
        if not wanted.weight:
            return {}
        roles = {"hybrid": ("reranker", "judge"), "reranker": ("reranker",)}.get(wanted.mode, ("judge",))
        return {role: getattr(wanted, role) for role in ("reranker", "judge") if role in roles}

    @property
    def asked(self) -> dict[str, str]:
        """Setting -> pool that it has asked. A pool that is not among them has nothing to do."""
        return {
            **{f"consistency.{role}": pool for role, pool in self.scorers.items()},
            **{f"{reward}.pool": section.pool for reward, section in self.judged.items()},
        }


class SageDataConfig(Section):
    """Dialogues that a scenario generates."""

    scenario: str = "telecom_package"
    """A shipped scenario by name, a file of one's own by path, or `all` that ship in equal parts."""
    language: Literal["en", "zh"] = "en"
    train: PositiveInt = 600
    validation: PositiveInt = 80
    test: PositiveInt = 120
    seed: int = 0
    noise: Fraction = 0.0
    """Share of the samples that supervised fine-tuning sees with wrong references (another act, or a wrong argument),
    as in logs of real agents. The true ones stay in their `privileged.references`; rewards and evaluations use true
    ones throughout."""
    procedure: bool = True
    """Whether prompts spell out the procedure. A small policy that is trained from nothing on one procedure cannot read
    it and has to learn it from what it sees; its prompts are then half as long."""


class DataConfig(Section):
    type: Literal["sage", "jsonl"] = "jsonl"
    train: str | None = None
    validation: str | None = None
    test: str | None = None
    """JSONL files in the sample format; `type: jsonl` needs `train`, the others are split off if null."""
    sft: str | None = None
    """JSONL of the samples that supervised fine-tuning learns from; null: those of `train`."""
    held_out_frac: Fraction = 0.15
    sage: SageDataConfig = SageDataConfig()
    max_eval: PositiveInt = 120
    """At most so many held-out samples per evaluation."""
    max_pairs: PositiveInt = 4000
    """At most so many labelled reply pairs for scorer training and checks."""
    labelled_pairs: str | None = None
    """JSONL of {content_A, content_B, label}: an outside check of the scorers' AUC."""

    @model_validator(mode="after")
    def _train_file(self) -> DataConfig:
        if self.type == "jsonl" and self.train is None:
            raise ValueError("type='jsonl' and train=null contradict each other; set data.train to a JSONL file")
        return self


class ClusterConfig(Section):
    type: Literal["local", "ray", "kuberay", "slurm"] = "local"
    """Where `hamr submit` runs a job: here, on the Ray cluster behind `dashboard`, or on one that Kubernetes or Slurm
    starts for it out of nodes as `launch` describes them."""
    address: str | None = None
    """Ray address; null starts a local Ray for this run."""
    num_cpus: PositiveInt | None = None
    """Logical CPUs of the local Ray; null: 8 or the machine's, whichever is more."""
    object_store_mb: PositiveInt = 512
    temp_dir: str | None = None
    start_timeout_s: PositiveFloat = 300.0
    allow_unauthenticated: bool = False
    """Join a cluster elsewhere although no token of Ray's is in force: everyone who reaches it runs code on it."""
    dashboard: str = "http://127.0.0.1:8265"
    """URL that takes jobs for the cluster."""
    run_root: str | None = None
    """Folder for the run folders of submitted jobs, on storage that this machine and every node see; null: `runs` in
    the working folder, for a cluster on this machine only."""
    max_package_mb: PositiveFloat = 64.0
    """Most of a working tree that is sent along with a job."""
    elastic: bool = False
    """The cluster adds nodes when they are asked for: what does not fit now is said, not refused."""


class SftStageConfig(Section):
    """A short supervised warm-up before RL; 0 steps skips it."""

    steps: Annotated[int, Field(ge=0)] = 0
    samples_per_step: PositiveInt = 16
    seed: int | None = None
    """Of the samples' order and the references drawn; null: the experiment's. With a seed of its own the warm-up is
    the same in runs of several seeds, and what differs between them is RL."""
    learning_rate: PositiveFloat = 1e-4
    schedule: Literal["constant", "cosine"] = "constant"
    """A rate that falls to `trainer.min_learning_rate` ends nearer to what further steps would give: at a constant one
    the last few batches decide where a short warm-up stops."""
    warmup_frac: Fraction = 0.0
    references_per_sample: PositiveInt = 1
    turns: Literal["last", "all"] = "last"
    """`all`: learn what the agent said earlier in the dialogue too; only where those turns are good examples."""
    loss_aggregation: Aggregation = "token_mean"
    """`sequence_mean` lets a reply of ten tokens count as much as a tool call of thirty."""


class EvaluationConfig(Section):
    """How a policy answers held-out prompts. Its likeliest response (temperature 0) is what a deployment without
    sampling shows; responses at the rollouts' temperature (with their top_p) estimate the very mean that RL raises."""

    temperature: NonNegative = 0.0
    samples: PositiveInt = 1
    stop_at_answer: bool = False
    """Post-CoT: generation ends with the answer, as where a customer waits; what would follow cannot change it. In
    training the rationale is always written."""

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
    keep: Annotated[int, Field(ge=2)] = 2
    grace_s: Annotated[float, Field(ge=0)] = 4.0
    """Seconds after SIGTERM or Ctrl-C in which a running optimiser step may end and be saved; then it is dropped, and
    the run resumes from its newest checkpoint. The whole run ends within 10 s with the default. Raise it for a large
    model, up to a few seconds less than what the scheduler waits before SIGKILL."""


class ExperimentConfig(Section):
    name: str = "run"
    seed: int = 0
    steps: Annotated[int, Field(ge=0)] = 10
    prompts_per_step: PositiveInt = 8
    run_dir: str | None = None
    """Run folder; null makes `runs/<name>-<time>` in the working folder."""
    sft: SftStageConfig = SftStageConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    eval_every: Annotated[int, Field(ge=0)] = 0
    """Evaluate on the held-out split every so many steps; 0: before and after each stage only."""
    evaluation: EvaluationConfig = EvaluationConfig()
    sage: DialoguesConfig = DialoguesConfig()
    unscored: UnscoredConfig = UnscoredConfig()


class Config(Section):
    """A whole job."""

    experiment: ExperimentConfig = ExperimentConfig()
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

    def with_asked_pools(self, *more: str) -> Config:
        """Without the pools that no reward asks and that are not among `more`, but with those whose training another
        one starts from."""
        names = {*self.rewards.asked.values(), *more}
        names |= {t.start_from for n in names if (t := self.pools[n].finetune) is not None and t.start_from}
        return self.model_copy(update={"pools": {name: p for name, p in self.pools.items() if name in names}})
