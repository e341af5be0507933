"""The schema of every group in `conf/`. Every default lives here and nowhere else.

Sections are frozen; unknown keys are errors. A function takes its own section, never the whole.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from hamr.config.judged import JudgedRewards
from hamr.config.section import Fraction, NonNegative, Section
from hamr.types import Aggregation

DType = Literal["bfloat16", "float32"]


class ModelConfig(Section):
    """The policy's starting point."""

    path: str = "smollm2-135m"
    """A bundled model (`smollm2-135m`, `tiny`), a folder, or a Hugging Face name."""
    dtype: DType = "bfloat16"
    max_context: PositiveInt = 1024
    """Prompt and response together, in tokens."""
    response_format: Literal["plain", "think_answer"] = "plain"
    """`plain`: the response is the action. `think_answer`: <think>..</think><answer>..</answer>, either order."""


class EngineConfig(Section):
    """One vLLM engine."""

    threads: PositiveInt = 1
    """OpenMP threads of the actor; on a CPU only."""
    max_num_seqs: PositiveInt = 32
    kv_cache_mb: PositiveInt = 64
    """On the CPU, where vLLM would otherwise take 0.92 of memory."""
    block_size: PositiveInt = 32
    """KV block in tokens; a prompt shorter than a block never hits the prefix cache."""
    gpu_memory_utilization: Fraction = 0.9
    tensor_parallel_size: PositiveInt = 1
    enforce_eager: bool = True
    num_cpus: NonNegative = 0.5
    num_gpus: NonNegative = 0.0


class RolloutConfig(Section):
    workers: PositiveInt = 1
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


class LoraConfig(Section):
    rank: PositiveInt = 16
    alpha: PositiveFloat = 32.0
    target_modules: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class TrainerConfig(Section):
    ranks: PositiveInt = 1
    backend: Literal["gloo", "nccl"] = "gloo"
    zero_stage: Annotated[int, Field(ge=0, le=3)] = 2
    dtype: DType = "bfloat16"
    """Compute type; master weights and optimiser state are float32."""
    lora: LoraConfig | None = None
    gradient_checkpointing: bool = False
    attention: Literal["shared_prompt", "packed", "padded"] = "shared_prompt"
    """`shared_prompt` computes each group's prompt once; `packed` concatenates; `padded` is the plain oracle."""
    tokens_per_microbatch: PositiveInt = 2048
    learning_rate: PositiveFloat = 5e-6
    schedule: Literal["constant", "cosine"] = "constant"
    warmup_frac: Fraction = 0.0
    min_learning_rate: NonNegative = 0.0
    weight_decay: NonNegative = 1e-4
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    grad_clip: PositiveFloat = 1.0
    max_bad_steps: PositiveInt = 3
    """Optimiser steps in a row with a non-finite gradient norm before the run stops."""
    threads: PositiveInt = 1
    num_cpus: NonNegative = 0.5
    num_gpus: NonNegative = 0.0
    deadline_s: PositiveFloat = 1800.0


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


class KlConfig(Section):
    coef: NonNegative = 0.0
    estimator: Literal["k1", "k2", "k3"] = "k3"


class AlgorithmConfig(Section):
    name: Literal["dapo", "grpo"] = "dapo"
    clip_low: Fraction = 0.2
    clip_high: NonNegative = 0.28
    entropy_coef: NonNegative = 3.5e-4
    normalize_std: bool = True
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
    def _ordered(self) -> CascadeConfig:
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
    audit_frac: Fraction = 0.0
    """Share of the replies inside the trust interval that the judge is asked about all the same. Their reward stays;
    what the judge says shows what the fast pass hides (`audit/*`)."""


class RewardsConfig(JudgedRewards):
    """Every reward has a section with its weight. The judged ones stand in `hamr.config.judged`."""

    consistency: ConsistencyConfig = ConsistencyConfig()
    format: FormatConfig = FormatConfig()
    length: LengthConfig = LengthConfig()
    rules: RulesConfig = RulesConfig()


class ScorerTrainingConfig(Section):
    """Fine-tunes the pool's model on labelled pairs before the run; the result is cached by content."""

    when: Literal["needed", "always"] = "needed"
    """`needed`: unless the raw model's AUC on held-out pairs is clearly (by two standard errors) above that of word
    overlap."""
    start_from: str | None = None
    """Name of another pool: start from what that pool's training ends with. A small judge's
    verdicts were better from a trained reranker than from the raw model. null: the pool's own `model`."""
    layers: PositiveInt | None = None
    """Keep only the first so many decoder layers of the model that training starts from; null keeps all."""
    examples: PositiveInt = 2000
    epochs: PositiveInt = 1
    batch_size: PositiveInt = 32
    learning_rate: PositiveFloat = 3e-4
    train_embeddings: bool = True
    """False leaves the embeddings (and a head tied to them) as they are: a fifth of a small model's weights, and
    nothing that a scorer has to learn about words."""
    threads: PositiveInt = 1


class AutoscalingConfig(Section):
    min_replicas: PositiveInt = 1
    max_replicas: PositiveInt = 1
    target_ongoing_requests: PositiveFloat = 4.0

    @model_validator(mode="after")
    def _ordered(self) -> AutoscalingConfig:
        if self.min_replicas > self.max_replicas:
            raise ValueError(
                f"min_replicas={self.min_replicas} is above max_replicas={self.max_replicas}; raise the maximum"
            )
        return self


class PoolConfig(Section):
    """A named pool of scorers. Pools scale alone."""

    role: Literal["reranker", "judge", "grader"]
    """`reranker` and `judge` answer with a label of the pool's own prompt. A judge also writes answers to prompts that
    rewards bring with them; a `grader` does nothing else."""
    type: Literal["vllm", "openai"] = "vllm"
    model: str = "smollm2-135m"
    prompt: str = ""
    """Template name in `prompts/`, without its ending: `reranker.en`, `judge.en`. A grader has none."""
    replicas: PositiveInt = 1
    autoscaling: AutoscalingConfig | None = None
    engine: EngineConfig = EngineConfig()
    dtype: DType = "bfloat16"
    max_context: PositiveInt = 1024
    max_ongoing_requests: PositiveInt = 8
    """Requests (small batches) that one replica works on at a time; the rest queue."""
    max_queued_requests: int = -1
    batch_size: PositiveInt = 16
    """Most questions in one request."""
    batch_wait_ms: NonNegative = 5.0
    deadline_s: PositiveFloat = 120.0
    attempts: PositiveInt = 3
    """Tries on different replicas before the outcome is a failure; all within the deadline."""
    thinking_tokens: Annotated[int, Field(ge=0)] = 0
    """Judge only: budget of the reasoning before the verdict is asked for; 0 asks at once."""
    answer_tokens: PositiveInt = 512
    """Longest written answer to a reward's own prompt, in tokens; one that is cut off there cannot be read."""
    structured: bool = False
    """Hold written answers to the reward's JSON schema, where the engine can; the analysis then goes into `reason`."""
    endpoint: str | None = None
    """Base URL of an OpenAI-compatible server; `type: openai` only."""
    api_key_env: str | None = None
    """Name of the environment variable that holds the endpoint's key."""
    price_per_1k_tokens: NonNegative = 0.0
    finetune: ScorerTrainingConfig | None = None

    @model_validator(mode="after")
    def _endpoint(self) -> PoolConfig:
        if (self.type == "openai") != (self.endpoint is not None):
            raise ValueError(
                f"type={self.type!r} and endpoint={self.endpoint!r} contradict each other; "
                "an openai pool needs an endpoint and a vllm pool has none"
            )
        if (self.role == "grader") != (not self.prompt):
            raise ValueError(
                f"role={self.role!r} and prompt={self.prompt!r} contradict each other; a reranker and a judge need a "
                "prompt, a grader's come with the questions"
            )
        if self.role == "grader" and self.finetune:
            raise ValueError("role='grader' and a finetune section contradict each other; remove the section")
        return self


def _default_pools() -> dict[str, PoolConfig]:
    return {
        "reranker": PoolConfig(role="reranker", prompt="reranker.en"),
        "judge": PoolConfig(role="judge", prompt="judge.en", thinking_tokens=24),
    }


class RouterConfig(Section):
    num_cpus: NonNegative = 0.1
    deadline_s: PositiveFloat = 180.0
    """Longest a single response may wait for its reward before it gets a failure as its outcome."""
    group_wait_s: PositiveFloat | None = None
    """Where responses are compared: longest wait of a group's first response for its siblings; then those who came are
    judged. Null: half of `deadline_s`."""

    @model_validator(mode="after")
    def _wait_ends_first(self) -> RouterConfig:
        if self.group_wait_s is not None and self.group_wait_s >= self.deadline_s:
            raise ValueError(
                f"group_wait_s={self.group_wait_s:g} leaves the judge no time before deadline_s={self.deadline_s:g}; "
                "lower the first or raise the second"
            )
        return self


class SageDataConfig(Section):
    """Generated dialogues over the Telecom Package procedure."""

    train: PositiveInt = 600
    validation: PositiveInt = 80
    test: PositiveInt = 120
    seed: int = 0


class DataConfig(Section):
    type: Literal["sage", "jsonl"] = "jsonl"
    train: str | None = None
    validation: str | None = None
    test: str | None = None
    """JSONL files in the sample format; `type: jsonl` needs `train`, the others are split off if null."""
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
    address: str | None = None
    """Ray address; null starts a local Ray for this run."""
    num_cpus: PositiveInt | None = None
    """Logical CPUs of the local Ray; null: 8 or the machine's, whichever is more."""
    object_store_mb: PositiveInt = 512
    temp_dir: str | None = None
    start_timeout_s: PositiveFloat = 300.0


class WandbConfig(Section):
    mode: Literal["offline", "online", "disabled"] = "offline"
    project: str = "hamr"
    entity: str | None = None


class AlarmsConfig(Section):
    """Limits beyond which a step's figure raises an alarm (a line on the terminal, `alarm/<name>` = 1); null: none."""

    audit_drift: PositiveFloat | None = 4.0
    """Standard errors by which the reranker's distance from the judge inside the trust interval has moved."""
    length_correlation: Fraction | None = 0.8
    """Of reward and response length, whatever the sign."""
    duplicate_frac: Fraction | None = None
    """Share of responses that a sibling has said word for word."""
    scorer_gap: Fraction | None = 0.5
    """Mean distance between reranker and judge where both spoke."""
    top_component: Fraction | None = None
    """Share of the rewards' spread that comes from one component."""


class LoggingConfig(Section):
    wandb: WandbConfig = WandbConfig()
    console: bool = True
    sample_rows: PositiveInt = 8
    """Sampled responses per step in the table with their reward breakdown."""
    alarms: AlarmsConfig = AlarmsConfig()


class SftStageConfig(Section):
    """A short supervised warm-up before RL; 0 steps skips it."""

    steps: Annotated[int, Field(ge=0)] = 0
    samples_per_step: PositiveInt = 16
    learning_rate: PositiveFloat = 1e-4
    references_per_sample: PositiveInt = 1
    loss_aggregation: Aggregation = "token_mean"
    """`sequence_mean` lets a reply of ten tokens count as much as a tool call of thirty."""


class EvaluationConfig(Section):
    """How a policy answers held-out prompts. Its likeliest response (temperature 0) is what a deployment without
    sampling shows; responses at the rollouts' temperature estimate the very mean that RL raises."""

    temperature: NonNegative = 0.0
    samples: PositiveInt = 1

    @model_validator(mode="after")
    def _sampled(self) -> EvaluationConfig:
        if self.samples > 1 and self.temperature == 0:
            raise ValueError(
                f"samples={self.samples} at temperature={self.temperature:g} would all be the same response; "
                "set samples=1 or a temperature above 0"
            )
        return self


class CheckpointConfig(Section):
    every: PositiveInt = 10
    keep: Annotated[int, Field(ge=2)] = 2


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


class Config(Section):
    """A whole job."""

    experiment: ExperimentConfig = ExperimentConfig()
    model: ModelConfig = ModelConfig()
    rollout: RolloutConfig = RolloutConfig()
    trainer: TrainerConfig = TrainerConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    rewards: RewardsConfig = RewardsConfig()
    pools: dict[str, PoolConfig] = Field(default_factory=_default_pools)
    router: RouterConfig = RouterConfig()
    data: DataConfig
    cluster: ClusterConfig = ClusterConfig()
    logging: LoggingConfig = LoggingConfig()

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        _check_consistent(self)
        return self


def _check_consistent(c: Config) -> None:
    """Contradictions between sections: each message has both values and what to change."""
    for name, pool in c.pools.items():
        start = pool.finetune.start_from if pool.finetune else None
        tuning = c.pools[start].finetune if start in c.pools else None
        if start is not None and (tuning is None or tuning.start_from is not None):
            possible = sorted(n for n, p in c.pools.items() if p.finetune and p.finetune.start_from is None)
            raise ValueError(
                f"pools.{name}.finetune.start_from={start!r} is not a pool that is fine-tuned from its own model; "
                f"use one of {possible} or null"
            )
    wanted = c.rewards.consistency
    if wanted.weight:
        for key, role in (("reranker", "reranker"), ("judge", "judge")):
            name = getattr(wanted, key)
            needed = wanted.mode == "hybrid" or wanted.mode.endswith(role)
            if not needed:
                continue
            if name not in c.pools:
                raise ValueError(
                    f"rewards.consistency.{key}={name!r} but pools has only {sorted(c.pools)}; "
                    "add the pool or rename it"
                )
            if c.pools[name].role != role:
                raise ValueError(
                    f"rewards.consistency.{key}={name!r} but pools.{name}.role={c.pools[name].role!r}; "
                    f"point it at a pool with role {role!r}"
                )
    _check_judges(c)
    if c.rollout.max_new_tokens >= c.model.max_context:
        raise ValueError(
            f"rollout.max_new_tokens={c.rollout.max_new_tokens} leaves no room for a prompt in "
            f"model.max_context={c.model.max_context}; lower the first or raise the second"
        )
    if c.rollout.transfer == "nccl" and not c.rollout.engine.num_gpus:
        raise ValueError(
            f"rollout.transfer='nccl' but rollout.engine.num_gpus={c.rollout.engine.num_gpus}; "
            "use transfer='shared_memory' on CPUs"
        )
    if c.trainer.backend == "nccl" and not c.trainer.num_gpus:
        raise ValueError(
            f"trainer.backend='nccl' but trainer.num_gpus={c.trainer.num_gpus}; use backend='gloo' on CPUs"
        )
    if c.algorithm.overlong.enabled and c.algorithm.overlong.cache >= c.rollout.max_new_tokens:
        raise ValueError(
            f"algorithm.overlong.cache={c.algorithm.overlong.cache} is not below "
            f"rollout.max_new_tokens={c.rollout.max_new_tokens}; lower the cache"
        )
    if c.experiment.prompts_per_step * c.rollout.samples_per_prompt % c.algorithm.minibatches:
        raise ValueError(
            f"algorithm.minibatches={c.algorithm.minibatches} does not divide "
            f"{c.experiment.prompts_per_step} x {c.rollout.samples_per_prompt} responses; change one of them"
        )


def _check_judges(c: Config) -> None:
    """Every judged reward has a pool that can write."""
    for reward, section in c.rewards.judged.items():
        if section.pool not in c.pools:
            raise ValueError(
                f"rewards.{reward}.pool={section.pool!r} but pools has only {sorted(c.pools)}; "
                "add the pool or rename it"
            )
        if c.pools[section.pool].role == "reranker":
            raise ValueError(
                f"rewards.{reward}.pool={section.pool!r} but pools.{section.pool}.role='reranker'; "
                "point it at a pool with role 'judge' or 'grader'"
            )
