"""Schema of a whole job, and the sections of most groups in `conf/`. Defaults live in these classes and nowhere else.

Sections are frozen. Unknown keys are errors. A function takes its own section, never the whole configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from hamr.config.algorithm import AlgorithmConfig
from hamr.config.contradictions import check_consistent
from hamr.config.custom import CodeConfig, EpisodeFunctionConfig, HarnessConfig, ImporterConfig
from hamr.config.experiment import ExperimentConfig
from hamr.config.launch import LaunchConfig
from hamr.config.logging import LoggingConfig
from hamr.config.plan import PlanConfig
from hamr.config.pools import EngineConfig, PoolConfig, RouterConfig, default_pools
from hamr.config.rewards import RewardsConfig
from hamr.config.sage import SCRIPTED
from hamr.config.scorers import ScorersConfig
from hamr.config.section import (
    FootprintConfig,
    Fraction,
    LoraConfig,
    NonNegative,
    PoolKey,
    PositiveFloat,
    PositiveInt,
    SampleCount,
    Section,
    Seed,
    SmallInt,
    Tokens,
)
from hamr.config.sft import SftConfig
from hamr.config.use import ScoreConfig, ServeConfig
from hamr.hardware import DType, resolve_dtype
from hamr.protocols import SamplingConfig

AttentionKernel = Literal["auto", "flex", "flash", "sdpa"]
Checkpointing = bool | Literal["offload"]
DecayRate = Annotated[float, Field(ge=0.0, lt=1.0)]


def choose_kernel(wanted: AttentionKernel, device: str) -> AttentionKernel:
    """Return the kernel for a device type: `auto` is `flex` on GPUs and `sdpa` on CPUs.

    >>> choose_kernel("auto", "cuda"), choose_kernel("auto", "cpu"), choose_kernel("flash", "cuda")
    ('flex', 'sdpa', 'flash')
    """
    return wanted if wanted != "auto" else "flex" if device == "cuda" else "sdpa"


class ModelConfig(Section):
    """Starting point of the policy."""

    path: str = "smollm2-135m"
    """A bundled model (`smollm2-135m`, `compact`, `tiny`), a folder, or a Hugging Face name."""
    dtype: DType = "auto"
    """`auto` is resolved when the configuration is loaded: bfloat16 on GPUs and on CPUs that are faster in it (AMX;
    AVX-512-BF16 on AMD), float32 elsewhere. The run's config.yaml contains the resolved value."""
    max_context: Tokens = 1024
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
    workers: SmallInt = 1
    """Number of rollout engines."""
    placement: Literal["pack", "spread"] = "spread"
    """`spread`: on as many nodes as possible, so that a lost node affects few of them."""
    colocated: bool = False
    """Engine i shares GPU i with trainer rank i, and sleeps while the ranks train. Set `engine.num_gpus` and
    `trainer.num_gpus` to shares of one GPU, and `engine.gpu_memory_utilization` to leave memory for the rank."""
    samples_per_prompt: Annotated[int, Field(ge=2, le=4096)] = 16
    """Number of responses per prompt: the size of a group."""
    temperature: Annotated[float, Field(ge=0.01, le=2.0)] = 1.0
    """Sampling temperature, in [0.01, 2], the range of vLLM without 0. SFT does not depend on it."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Nucleus sampling: smallest set of tokens whose probability reaches this share, in (0, 1]. 1 keeps all tokens."""
    sampling_extra: dict[str, Any] = Field(default_factory=dict)
    """Further parameters of vLLM's `SamplingParams`, by name: `{min_p: 0.02}`. Unknown names and those that hamr sets
    itself are refused. As with `top_p`, log-probabilities are those of the changed distribution."""
    max_new_tokens: PositiveInt = 64
    """Maximum length of a response in tokens. Prompts that leave no room for it are dropped and counted."""
    transfer: Literal["shared_memory", "nccl", "ipc", "adapter"] = "shared_memory"
    """Path of new weights from the trainer to the engines: `shared_memory` within one node, `nccl` between GPUs of any
    nodes, `ipc` (CUDA IPC) from each rank to the `colocated` engine on its GPU, on any number of nodes. `adapter` sends
    only the adapter of `trainer.lora`, through Ray, to engines on any nodes, which serve it on the weights of their
    start; generation is slower than with merged weights."""
    deadline_s: PositiveFloat = 600.0
    """Maximum time without a response from a worker that has requests, in seconds. Then the run ends and can be
    resumed. Requests that wait for a slot have no deadline. A worker that needs longer to load weights is replaced."""
    check_logprobs: bool = True
    """After each sync, compare trainer and engine log-probabilities of the same tokens."""
    engine: EngineConfig = EngineConfig()
    episode: EpisodeFunctionConfig | None = None
    """The dialogue that each prompt becomes: `async def run(episode, ask)`, or an environment class. null: the policy
    takes one decision."""
    max_turns: PositiveInt = 16
    """Maximum number of responses of the policy in a dialogue."""

    def sampling(self, **changed: Any) -> SamplingConfig:
        """Return the sampling parameters of a response, with these changed."""
        own = {name: getattr(self, name) for name in ("temperature", "top_p", "max_new_tokens")}
        return SamplingConfig(**{**own, "extra": self.sampling_extra, **changed})


class TrainerConfig(FootprintConfig):
    """`num_cpus`, `num_gpus` and similar settings are those of one rank."""

    ranks: SmallInt = 1
    """Number of trainer processes."""
    placement: Literal["pack", "strict_pack", "spread"] = "pack"
    """`pack`: ranks on as few nodes as possible; `strict_pack`: on one; `spread`: on as many as possible."""
    backend: Literal["gloo", "nccl"] = "gloo"
    """Communication between the ranks: `gloo` on CPUs, `nccl` on GPUs."""
    zero_stage: Annotated[int, Field(ge=0, le=3)] = 2
    """ZeRO stage of DeepSpeed, 0 to 3: the ranks share nothing (0), the optimiser state (1), also the gradients
    (2), also the weights (3)."""
    dtype: DType = "auto"
    """Compute type. Master weights and optimiser state are float32. `auto` as for `model.dtype`, by `num_gpus`."""
    lora: LoraConfig | None = None
    """Train an adapter instead of all weights. null trains the weights themselves."""
    gradient_checkpointing: Checkpointing = False
    """Recompute activations in the backward pass: less memory, more computation. `offload` also keeps the inputs of the
    layers in host memory until then, for long contexts."""
    offload_optimizer: bool = False
    """Keep float32 weights and optimiser state in host memory, and update them there. Needs `zero_stage` 1 to 3."""
    attention: Literal["shared_prompt", "packed", "padded"] = "shared_prompt"
    """`shared_prompt` computes each group's prompt once; `packed` concatenates; `padded` is the plain reference
    implementation."""
    attention_kernel: AttentionKernel = "auto"
    """Kernel of the attention of `shared_prompt` and `packed`: `flex`, one compiled FlexAttention call per layer, on
    GPUs; `flash`, torch's flash-attention, on GPUs in bfloat16; `sdpa`, torch's kernels block by block, except cuDNN's,
    which would plan anew for each shape. `auto`: `flex` on GPUs, `sdpa` on CPUs."""
    use_liger_kernel: Literal["auto"] | bool = "auto"
    """Compute norms, rotary embeddings and MLPs by the fused kernels of liger-kernel, on GPUs. `auto`: where it is
    installed (the extra `hamr[cuda]`). Models that it does not know keep their own code."""
    tokens_per_microbatch: PositiveInt = 2048
    """Maximum number of tokens per forward and backward pass of a rank."""
    learning_rate: PositiveFloat = 5e-6
    """Peak learning rate, above 0."""
    embedding_rate: NonNegative = 1.0
    """Learning rate of the token embeddings as a multiple of `learning_rate`. Below 1, words that are absent from the
    training data stay close to those that occur in it. `lora` freezes them."""
    schedule: Literal["constant", "cosine"] = "constant"
    """Learning rate after the warm-up: `constant`, or a `cosine` down to `min_learning_rate`."""
    warmup_frac: Fraction = 0.0
    """Share of the steps, in [0, 1], in which the learning rate increases linearly to its peak."""
    min_learning_rate: NonNegative = 0.0
    """Learning rate at the end of a `cosine` schedule, at most `learning_rate`."""
    weight_decay: NonNegative = 1e-4
    """Decoupled weight decay of AdamW, at least 0."""
    betas: tuple[DecayRate, DecayRate] = (0.9, 0.999)
    """AdamW's decay rates of the first and the second moment, each in [0, 1)."""
    grad_clip: PositiveFloat = 1.0
    """Maximum norm of the gradient, above 0. A larger gradient is scaled down to it."""
    max_bad_steps: PositiveInt = 3
    """Consecutive optimiser steps with a non-finite gradient norm before the run stops."""
    threads: SmallInt = 1
    """OpenMP threads of a rank."""
    deadline_s: PositiveFloat = 1800.0
    """Maximum duration of one call of the ranks, in seconds. Also that of one collective operation with `gloo`; with
    `nccl` that is 1,800 s."""

    @property
    def kernel(self) -> AttentionKernel:
        """The attention kernel of the ranks. Padded batches have torch's."""
        wanted = "sdpa" if self.attention == "padded" else self.attention_kernel
        return choose_kernel(wanted, "cuda" if self.backend == "nccl" else "cpu")

    @model_validator(mode="after")
    def _one_gpu_per_rank(self) -> TrainerConfig:
        if self.num_gpus > 1:
            raise self.clash(
                "num_gpus", "ranks", "; a rank uses one GPU: set num_gpus=1, and ranks to the number of GPUs"
            )
        return self

    @model_validator(mode="after")
    def _resolve_dtype(self) -> TrainerConfig:
        object.__setattr__(self, "dtype", resolve_dtype(self.dtype, on_gpu=self.num_gpus > 0))
        return self


class EnvConfig(Section):
    """Dialogues that prompts become in training."""

    type: Literal["decision", "sage", "tau2", "endpoint"] = "decision"
    """`decision`: a prompt is one decision. `sage`: a prompt is a customer of one of SAGE's procedures. The samples
    come from `hamr data sage` or `data=sage`. `tau2`: a prompt is a task of tau2-bench; the tasks of `domain` replace
    `data`. `endpoint`: a prompt is a task of the agent harness `command`, which asks the policy as an OpenAI-compatible
    server. For a dialogue in Python see `rollout.episode`."""
    command: HarnessConfig | None = None
    """With `type=endpoint`: the harness."""
    domain: Literal["retail", "airline", "telecom"] = "retail"
    """Domain of tau2-bench."""
    simulator: str = "scripted:case"
    """Pool that plays the customers of tau2-bench, or words the messages of those of `type=sage`. `scripted:case`: they
    state their case without a model."""
    reader: str | None = None
    """Pool that reads the messages that `simulator` has worded with `type=sage`. Customers that show another case than
    their own are faulty. null: none, for `scripted:case`."""
    levels: tuple[str, ...] = ()
    """With `type=sage`: adversarial levels of the customers, such as `[zero, weak, strong]`. Each customer has one of
    those that fit its case, in every dialogue. Empty: no levels."""
    completion: NonNegative = 1.0
    """Weight of the completion of a dialogue in its outcome, at least 0: 1 if the customer's case ends with the action
    that the procedure demands (tau2-bench: if its evaluator gives 1), else 0."""
    curriculum: bool = True
    """With `type=sage`: draw customers more often from paths on which the policy fails, by the share of right turns in
    the last groups of the path. False: every sample once per epoch."""
    extra_turns: NonNegative = 0.1
    """Weight of superfluous turns in the outcome, at least 0: minus their number, as a share of `rollout.max_turns`."""
    violations: NonNegative = 0.0
    """With `type=sage`: weight of violations of the procedure in the outcome, at least 0: minus the number of actions
    that tools did although the case demands another action or amount, or not yet. A policy that answers with labels in
    SAGE's JSON form acts by the action that its last answer names."""
    cost: NonNegative = 0.0
    """With `type=sage`: weight of the policy's tokens in the outcome, at least 0: minus their number in thousands."""


class SageDataConfig(Section):
    """Dialogues generated from a scenario."""

    scenario: str = "telecom_package"
    """A shipped scenario by name, a user's file by path, or `all` for the shipped ones in equal parts."""
    language: Literal["en", "zh"] = "en"
    """Language of the dialogues."""
    train: SampleCount = 600
    """Number of training samples."""
    validation: SampleCount = 80
    """Number of validation samples."""
    test: SampleCount = 120
    """Number of test samples."""
    seed: Seed = 0
    """Seed of the generated dialogues, from 0 to 2^32 - 1."""
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
    """JSONL of the samples on which scorers are prepared and checked, and references of `hamr sft` are evaluated. null:
    split off `train`."""
    test: str | None = None
    """JSONL of the samples on which the policy is evaluated, during the run and at its end. null: split off `train`."""
    sft: str | None = None
    """JSONL of the samples for supervised fine-tuning, of which those of the held-out splits are left out. null: those
    of `train`."""
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
            raise self.clash("type", "importer", "; set data.importer.path")
        if self.type == "jsonl" and self.train is None:
            raise self.clash("type", "train", "; give data=FOLDER (with a train.jsonl), data=FILE.jsonl or data.train")
        if self.type == "sage":
            for key in ("train", "validation", "test", "sft"):
                if getattr(self, key) is not None:
                    why = ", and data=sage generates all splits; remove it, or give data=FOLDER or data=FILE.jsonl"
                    raise self.clash("type", key, why)
        return self


class ClusterConfig(Section):
    type: Literal["local", "ray", "kuberay", "slurm"] = "local"
    """Place where `hamr submit` runs a job: `local`, the Ray cluster behind `dashboard`, or a cluster that Kubernetes
    or Slurm starts for it with nodes as in `launch`."""
    address: str | None = None
    """Ray address. null starts a local Ray for this run."""
    num_cpus: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Logical CPUs of the local Ray. null: 8 or those of the machine, whichever is more."""
    object_store_mb: Annotated[int, Field(ge=75, le=1_000_000_000)] = 512
    """Size of the object store of a local Ray in MiB, at least 75."""
    temp_dir: str | None = None
    """Folder for the files of a local Ray. null: the system's folder for temporary files."""
    start_timeout_s: PositiveFloat = 300.0
    """Maximum time for the start of actors and pools, in seconds. Rollout workers and trainer ranks have at least the
    deadline of their section. With GPUs it is 1,800 unless it is set: loading a model of 32B parameters and capturing
    its CUDA graphs takes minutes."""
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


class Config(Section):
    """A whole job."""

    experiment: ExperimentConfig = ExperimentConfig()
    env: EnvConfig = EnvConfig()
    model: ModelConfig = ModelConfig()
    rollout: RolloutConfig = RolloutConfig()
    trainer: TrainerConfig = TrainerConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    rewards: RewardsConfig = RewardsConfig()
    pools: dict[PoolKey, PoolConfig] = Field(default_factory=default_pools)
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
    def _wait_longer_for_gpus(self) -> Config:
        gpus = (
            self.trainer.num_gpus or self.rollout.engine.num_gpus or any(p.engine.num_gpus for p in self.pools.values())
        )
        if gpus and "start_timeout_s" not in self.cluster.model_fields_set:
            object.__setattr__(self, "cluster", self.cluster.model_copy(update={"start_timeout_s": 1800.0}))
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
    def functions(self) -> dict[str, CodeConfig]:
        """The user's functions and harness by the key of their section, without rewards that have no weight and an
        importer that was called."""
        found: dict[str, CodeConfig] = {
            f"rewards.custom.{name}": section for name, section in self.rewards.custom.items() if section.weight
        }
        importer = self.data.importer if self.data.importer and self.data.importer.samples is None else None
        own = (("algorithm.loss", self.algorithm.loss), ("data.importer", importer), ("env.command", self.env.command))
        for key, section in (*own, ("rollout.episode", self.rollout.episode)):
            if section is not None:
                found[key] = section
        return found | {
            f"logging.callbacks.{name}": section for name, section in self.logging.callbacks.sections.items()
        }

    @property
    def dialogue_pools(self) -> dict[str, str]:
        """Setting -> pool of the participants of dialogues in training and its evaluations."""
        found = {f"experiment.sage.{key}": name for key, name in self.experiment.sage.dialogue_pools.items()}
        if self.env.type in ("sage", "tau2") and not self.env.simulator.startswith(SCRIPTED):
            found["env.simulator"] = self.env.simulator
        if self.env.type == "sage" and self.env.reader is not None:
            found["env.reader"] = self.env.reader
        return found

    def with_functions(self, functions: Mapping[str, CodeConfig]) -> Config:
        """Return a copy with these sections of `functions` replaced."""
        changed = self
        for key, section in functions.items():
            changed = _replace(changed, key.split("."), section)
        return changed

    def with_asked_pools(self, *more: str) -> Config:
        """Return the configuration with only the pools used by rewards or in `more`, and those whose training another
        one starts from."""
        names = {*self.rewards.used_pools.values(), *more}
        names |= {t.start_from for n in names if (t := self.pools[n].finetune) is not None and t.start_from}
        return self.model_copy(update={"pools": {name: p for name, p in self.pools.items() if name in names}})


GROUPS = (*Config.model_fields, "schedule")
"""Groups of choices: one per section, and `schedule`, the readings of a paper's number of steps."""


def _replace(section: Any, keys: list[str], value: CodeConfig) -> Any:
    if not keys:
        return value
    first, *rest = keys
    if isinstance(section, Mapping):
        return {**section, first: _replace(section[first], rest, value)}
    return section.model_copy(update={first: _replace(getattr(section, first), rest, value)})
