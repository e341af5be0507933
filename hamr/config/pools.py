"""Sections of `pools`, of the engines behind them (and behind the rollouts), and of the router."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from hamr.config.faults import BreakerConfig, HedgeConfig
from hamr.config.section import (
    FootprintConfig,
    Fraction,
    LoraConfig,
    Megabytes,
    NonNegative,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SampleCount,
    Section,
    SmallInt,
    Temperature,
    Tokens,
)
from hamr.hardware import DType, resolve_dtype

BUNDLED = ("smollm2-135m", "compact", "tiny", "all-minilm-l6-v2", "compact-encoder")
"""Names of the models that hamr brings."""
ENDPOINT_THINKING = 500
"""Tokens of an endpoint's judge for its reasoning, unless the pool has a number. Its prompt asks for reasoning."""
SPEED_ONLY = {
    "replicas", "max_replicas_per_node", "autoscaling", "engine", "max_ongoing_requests", "max_queued_requests",
    "batch_size", "batch_wait_ms", "deadline_s", "attempts", "hedge", "breaker", "api_key_env", "price_per_1k_tokens",
}  # fmt: skip
"""Settings of a pool that affect only its speed, not its answers. A resumed file may, for example, use more
replicas."""


class EngineConfig(FootprintConfig):
    """One vLLM engine."""

    threads: SmallInt = 1
    """OpenMP threads of the actor, on a CPU only."""
    max_num_seqs: SampleCount = 32
    """Maximum number of sequences that the engine decodes concurrently."""
    kv_cache_mb: Megabytes = 64
    """Size of the KV cache on the CPU, where vLLM would otherwise take 0.92 of memory."""
    block_size: SampleCount = 32
    """KV block size in tokens. A prompt shorter than a block never hits the prefix cache."""
    gpu_memory_utilization: Annotated[float, Field(gt=0.0, le=1.0)] = 0.9
    """Share of the GPU memory, in (0, 1], that the engine may take for weights and KV cache. Without effect on a
    CPU."""
    tensor_parallel_size: SmallInt = 1
    """Number of GPUs that share the model. More than 1 needs `num_gpus` of the same value."""
    enforce_eager: bool = True
    """Skip the capture of CUDA graphs: a faster start and less memory, but slower decoding on GPUs."""
    extra: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of vLLM's engine, by their names in `EngineArgs`: `{quantization: fp8}`. Unknown names and
    those that hamr sets itself are refused. Like all settings of an engine they count as settings of speed."""

    @model_validator(mode="after")
    def _one_gpu_a_shard(self) -> EngineConfig:
        shards = self.tensor_parallel_size
        if max(shards, self.num_gpus) > 1 and self.num_gpus != shards:
            reason = "every shard needs its own GPU" if shards > 1 else "one shard uses one GPU"
            raise ValueError(
                f"tensor_parallel_size={shards} and num_gpus={self.num_gpus:g} contradict each other; {reason}: set "
                f"num_gpus={shards}"
            )
        return self


class ScorerTrainingConfig(Section):
    """Fine-tunes the pool's model before the run; the result is cached by content.

    The training data are labelled pairs of replies or, for a grader, labelled responses.
    """

    when: Literal["needed", "always"] = "needed"
    """`needed`: skip training if the AUC of the raw model on held-out pairs is clearly (by two standard errors) above
    that of word overlap."""
    start_from: str | None = None
    """Name of another pool whose trained model is the starting point. A small judge's verdicts were better from a
    trained reranker than from the raw model. null: the pool's own `model`."""
    layers: PositiveInt | None = None
    """Keep only this number of first decoder layers of the starting model. null keeps all."""
    examples: PositiveInt = 2000
    """Maximum number of training examples."""
    epochs: SmallInt = 1
    """Number of passes over the examples."""
    batch_size: SampleCount = 32
    """Examples per optimiser step."""
    learning_rate: PositiveFloat = 3e-4
    """Peak learning rate, above 0."""
    warmup_frac: Fraction = 0.1
    """Share of the steps in which the rate increases. Then it decreases linearly."""
    lora: LoraConfig | None = None
    """Train an adapter and merge it at the end. null trains the weights themselves. The second paper's judge has one
    (`experiment=scorer_lora`)."""
    train_embeddings: bool = True
    """False freezes the embeddings (and a head tied to them): a fifth of the weights of a small model, which a scorer
    does not need to change. With `lora` they are always frozen."""
    threads: SmallInt = 1
    """OpenMP threads of the training."""
    num_gpus: Literal[0, 1] = 0
    """1 trains on a GPU of the machine where the command runs, before pools and trainer have theirs, and recomputes
    activations. 0: on the CPU. A `cross_encoder` is always trained on the CPU."""
    part: Fraction = 0.5
    """`cross_encoder` only: score that it learns for a reply in which a detail is missing or too much. 0.5 is the
    middle verdict of the paper. A policy that cannot get a detail right then learns to leave it out, for half of the
    reward; 0 does not pay for that."""
    reward: Literal["risk", "hallucination"] = "hallucination"
    """Grader only: the judged reward that it learns, with the prompt of that reward in `rewards`."""
    labelled: str | None = None
    """Grader only, required: JSONL of samples with `response`, `label` ("none", or the error) and `reason`, as `hamr
    data hallucination` writes them, or of labelled responses such as the planted.jsonl of `hamr data olabench`."""
    held_out: str | None = None
    """Grader only: a file of the same format for evaluation. null: a fifth of the samples of `labelled`."""
    dtype: DType = "auto"
    """Compute type of the training. `auto` is resolved as for `model.dtype`, by `num_gpus`."""

    @model_validator(mode="after")
    def _resolve_dtype(self) -> ScorerTrainingConfig:
        object.__setattr__(self, "dtype", resolve_dtype(self.dtype, on_gpu=self.num_gpus > 0))
        return self


class AutoscalingConfig(Section):
    min_replicas: SmallInt = 1
    """Minimum number of replicas."""
    max_replicas: SmallInt = 1
    """Maximum number of replicas, at least `min_replicas`."""
    target_ongoing_requests: PositiveFloat = 4.0
    """Concurrent requests per replica that the autoscaling aims at, above 0."""

    @model_validator(mode="after")
    def _check_order(self) -> AutoscalingConfig:
        if self.min_replicas > self.max_replicas:
            raise ValueError(
                f"min_replicas={self.min_replicas} is above max_replicas={self.max_replicas}; raise the maximum"
            )
        return self


class TopicConfig(Section):
    """Factor of a cross-encoder's score: the probability that both texts are about the same thing.

    It is sigmoid(slope (cos - middle)), with the cosine of an embedding model. The defaults are fitted to the training
    groups of `benchmarks/cross_encoder.py`.
    """

    model: str = "all-minilm-l6-v2"
    """The embedding model: a bundled one, or a folder that sentence-transformers saved."""
    slope: PositiveFloat = 18.9
    """Steepness of the rise with the cosine, above 0."""
    middle: Annotated[float, Field(ge=-1.0, le=1.0)] = 0.3
    """Cosine at which the probability is 0.5, in [-1, 1]."""


class PoolConfig(Section):
    """A named pool of scorers. Pools scale independently."""

    role: Literal["reranker", "judge", "grader"]
    """`reranker` and `judge` answer with a label of the pool's own prompt. A judge also writes answers to prompts of
    rewards; a `grader` does only that."""
    type: Literal["vllm", "openai", "cross_encoder", "embedding"] = "vllm"
    """`vllm`: a language model served by hamr. `openai`: a model behind an endpoint. `cross_encoder` and `embedding`:
    small rerankers without a prompt, through sentence-transformers (see `hamr.pools.scorer_pairs`)."""
    model: str = "smollm2-135m"
    """Model of the pool: a bundled one, a folder, a Hugging Face name or, for an endpoint, the name that it serves."""
    prompt: str = ""
    """Template name in `prompts/`, without its extension: `reranker.en`, `judge.en`, which are the defaults of `type:
    openai`. Empty for a grader, a `cross_encoder` and an `embedding`."""
    replicas: SmallInt = 1
    """Initial number of replicas. With `autoscaling`, at least `min_replicas`."""
    max_replicas_per_node: Annotated[int, Field(ge=1, le=100)] | None = None
    """Maximum number of replicas on one node, in [1, 100], to spread the pool. null: no limit."""
    autoscaling: AutoscalingConfig | None = None
    """Bounds between which Ray Serve scales the pool: up after 30 s of load, down after 10 min with less. null: the
    number of replicas is fixed."""
    engine: EngineConfig = EngineConfig()
    dtype: DType = "auto"
    """`auto` is resolved as for `model.dtype`, by `engine.num_gpus`."""
    max_context: Tokens = 1024
    """Maximum length of a question with its answer, in tokens."""
    max_ongoing_requests: SampleCount = 8
    """Concurrent requests (small batches) of one replica. The rest queue."""
    max_queued_requests: Annotated[int, Field(ge=-1, le=1_000_000_000)] = -1
    """Maximum number of queued requests per client before more are rejected. -1: no limit."""
    batch_size: SampleCount = 16
    """Maximum number of questions in one request. An endpoint gets every question in a request of its own; there this
    only multiplies `max_ongoing_requests`."""
    batch_wait_ms: NonNegative = 5.0
    """Maximum time that a question waits for others to share its request, in milliseconds, at least 0."""
    deadline_s: PositiveFloat = 120.0
    """Maximum time for a question, retries included, in seconds."""
    attempts: PositiveInt = 3
    """Attempts on different replicas before the outcome is a failure, all within the deadline."""
    hedge: HedgeConfig | None = None
    """Sends late requests to a second replica. null: never."""
    breaker: BreakerConfig | None = BreakerConfig()
    """Circuit breaker of the pool. null: none."""
    thinking_tokens: NonNegativeInt = 0
    """Judge only: token budget of the reasoning before the verdict. 0: no reasoning; with `type: openai`, where it only
    bounds the answer, 500."""
    answer_tokens: PositiveInt = 512
    """Maximum length of a written answer to a reward's own prompt, in tokens. A truncated answer is unparseable."""
    temperature: Temperature | None = None
    """Sampling temperature of reasoning and written answers, in [0, 2]. null: greedy, and 0.7 where a question is
    asked again. Reasoning models such as Qwen3 and QwQ advise against greedy decoding. A recipe's own temperature goes
    before. The verdict's label is read from probabilities and never sampled."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Nucleus sampling of reasoning and written answers, in (0, 1]. 1 keeps all tokens."""
    top_k: NonNegativeInt = 0
    """Sample reasoning and written answers from this number of most likely tokens. 0 keeps all tokens."""
    sampling_extra: dict[str, Any] = Field(default_factory=dict)
    """Further sampling parameters of reasoning and written answers: by their names in vLLM's `SamplingParams`, or
    additional fields of the request to an endpoint."""
    structured: bool = False
    """Constrain written answers to the JSON schema of the reward, if the engine supports it. The analysis is then in
    `reason`."""
    activation: Literal["sigmoid", "identity"] = "sigmoid"
    """Cross-encoder only: conversion of its logit to a score in [0, 1]. `identity` clips it."""
    topic: TopicConfig | None = None
    """Cross-encoder only: lowers the score of texts about different things, which a cross-encoder that was trained on
    other services tells apart worse than an embedding does. null: none."""
    endpoint: str | None = None
    """Base URL of an OpenAI-compatible server, with `http://` or `https://`. `type: openai` only."""
    api_key_env: str | None = None
    """Name of the environment variable with the key of the endpoint."""
    logprobs: bool = True
    """`type: openai` only: request log-probabilities, for soft scores. Some endpoints reject this. Without them the
    written verdict counts as 1, 0.5 or 0."""
    price_per_1k_tokens: NonNegative = 0.0
    """Price of 1,000 tokens of input and output, in any currency, at least 0, for the reported cost."""
    finetune: ScorerTrainingConfig | None = None
    """Fine-tuning of the model before the run. null: none, as for every endpoint."""

    @model_validator(mode="before")
    @classmethod
    def _behind_endpoint(cls, given: Any) -> Any:
        """Let `pools.judge.type=openai` replace a pool whose own model is fine-tuned or compares without a prompt."""
        if not isinstance(given, Mapping) or given.get("type") != "openai":
            return given
        default = f"{given['role']}.en" if given.get("role") in ("reranker", "judge") else ""
        thinking = given.get("thinking_tokens") or (ENDPOINT_THINKING if given.get("role") == "judge" else 0)
        there = {"prompt": given.get("prompt") or default, "thinking_tokens": thinking}
        return {**given, "finetune": None, "topic": None, **there}

    @model_validator(mode="after")
    def _resolve_dtype(self) -> PoolConfig:
        object.__setattr__(self, "dtype", resolve_dtype(self.dtype, on_gpu=self.engine.num_gpus > 0))
        return self

    @model_validator(mode="after")
    def _queues_requests(self) -> PoolConfig:
        if self.max_queued_requests == 0:
            raise ValueError("max_queued_requests=0 would reject every request; set -1 for no limit, or at least 1")
        return self

    @model_validator(mode="after")
    def _endpoint(self) -> PoolConfig:
        if (self.type == "openai") != (self.endpoint is not None):
            raise self.clash("type", "endpoint", "; an openai pool needs an endpoint and no other has one")
        if self.endpoint is not None and not re.match("https?://[^/]", self.endpoint):
            shown = self.endpoint.rpartition("@")[2].partition("?")[0]  # without credentials
            raise ValueError(f"endpoint={shown!r} does not begin with http:// or https://; write http://HOST:PORT/v1")
        if self.type != "vllm" and self.engine.extra:
            why = "; only a vllm pool has an engine of its own: remove engine.extra"
            raise self.clash("type", "engine.extra", why)
        if self.topic and self.type != "cross_encoder":
            raise self.clash("type", "topic", "; only a cross_encoder has one: set topic=null")
        if self.compares:
            self._check_comparing()
            return self
        if (self.role == "grader") != (not self.prompt):
            why = "; a reranker and a judge need a prompt, a grader gets it with the questions"
            raise self.clash("role", "prompt", why)
        if self.finetune and (self.role == "grader") != (self.finetune.labelled is not None):
            why = "; only a grader is trained on labelled responses: set finetune.labelled or remove it"
            raise self.clash("role", "finetune.labelled", why)
        return self

    @model_validator(mode="after")
    def _check_hedge(self) -> PoolConfig:
        if self.hedge is None:
            return self
        if self.most_replicas == 1:
            key = "autoscaling.max_replicas" if self.autoscaling else "replicas"
            raise ValueError(
                f"{key}=1 and a hedge section contradict each other; a second try needs a second replica: "
                f"raise {key} or remove the section"
            )
        if self.hedge.floor_s >= self.deadline_s:
            raise ValueError(
                f"hedge.floor_s={self.hedge.floor_s:g} is not below deadline_s={self.deadline_s:g}, so no request "
                "would ever be hedged; lower the first or raise the second"
            )
        if self.hedge.burst < self.request_size:
            raise ValueError(
                f"hedge.burst={self.hedge.burst} is below batch_size={self.batch_size}, so no full request would ever "
                "be hedged; raise the first or lower the second"
            )
        return self

    @model_validator(mode="after")
    def _within_bounds(self) -> PoolConfig:
        if self.autoscaling and self.replicas > self.autoscaling.max_replicas:
            raise ValueError(
                f"replicas={self.replicas} is above autoscaling.max_replicas={self.autoscaling.max_replicas}; lower "
                "the first or raise the second"
            )
        return self

    @property
    def first_replicas(self) -> int:
        """Initial number of replicas. The pool counts as started when all of them run."""
        return max(self.replicas, self.autoscaling.min_replicas) if self.autoscaling else self.replicas

    @property
    def most_replicas(self) -> int:
        return self.autoscaling.max_replicas if self.autoscaling else self.replicas

    @property
    def places(self) -> int:
        """Maximum number of questions that the pool processes concurrently. More wait in its queue."""
        return self.places_of(self.most_replicas)

    def places_of(self, replicas: int) -> int:
        return replicas * self.max_ongoing_requests * self.batch_size

    @property
    def request_size(self) -> int:
        """Maximum number of questions in one request. A late answer of an endpoint delays no other question."""
        return 1 if self.type == "openai" else self.batch_size

    @property
    def learns_pairs(self) -> bool:
        """True if it is fine-tuned on pairs of replies, which are made from `data`."""
        return self.finetune is not None and self.role != "grader"

    @property
    def compares(self) -> bool:
        """True if it compares two texts, without a prompt."""
        return self.type in ("cross_encoder", "embedding")

    def _check_comparing(self) -> None:
        if self.role == "grader" or (self.role == "judge" and self.type == "embedding"):
            other = " or a judge" if self.type == "cross_encoder" else ""
            raise self.clash("type", "role", f"; it compares two texts and can only be a reranker{other}")
        if self.prompt:
            raise self.clash("type", "prompt", "; it takes no instructions: set prompt=''")
        for key in ("sampling_extra", "temperature", "top_p", "top_k", "thinking_tokens", "structured"):
            if getattr(self, key) != PoolConfig.model_fields[key].get_default(call_default_factory=True):
                raise self.clash("type", key, f"; it writes no text: remove {key}")
        if self.finetune and self.type == "embedding":
            raise ValueError(
                f"type={self.type!r} has a finetune section; only vllm and cross_encoder pools are fine-tuned: set "
                "finetune=null"
            )
        if self.finetune and self.finetune.num_gpus:
            raise self.clash("type", "finetune.num_gpus", "; it is trained on the CPU: set finetune.num_gpus=0")
        if self.finetune and self.finetune.lora:
            why = " is set; a cross-encoder's own weights are trained: set finetune.lora=null"
            raise ValueError(f"type={self.type!r} but finetune.lora{why}")


def default_pools() -> dict[str, PoolConfig]:
    return {
        "reranker": PoolConfig(role="reranker", prompt="reranker.en"),
        "judge": PoolConfig(role="judge", prompt="judge.en", thinking_tokens=24),
    }


class RouterConfig(Section):
    num_cpus: NonNegative = 0.1
    """Logical CPUs that Ray reserves for the router, at least 0."""
    deadline_s: PositiveFloat = 180.0
    """Maximum time that a response waits for its reward before its outcome is a failure."""
    group_wait_s: PositiveFloat | None = None
    """Maximum time that the first response of a group waits for its siblings, for comparative judges. Then the
    responses present are judged. null: half of `deadline_s`."""

    @model_validator(mode="after")
    def _wait_ends_first(self) -> RouterConfig:
        if self.group_wait_s is not None and self.group_wait_s >= self.deadline_s:
            raise ValueError(
                f"group_wait_s={self.group_wait_s:g} leaves the judge no time before deadline_s={self.deadline_s:g}; "
                "lower the first or raise the second"
            )
        return self
