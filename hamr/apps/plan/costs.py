"""Speed and memory of one engine by a roofline model.

Decoding reads the weights once per token for all sequences together, and the keys and values of each sequence
separately. Prompt processing and training are compute-bound: 2 operations per parameter and token for the forward pass
and 4 for the backward pass. The achieved share of a GPU's peak is an assumption; `hamr plan from=<run>` uses measured
times instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from hamr.apps.plan.models import ModelSize
from hamr.apps.plan.simulation import Service
from hamr.config.schema import Config, TrainerConfig
from hamr.config.section import LoraConfig

GIB = 1 << 30
BYTES = 2
"""Bytes per parameter: 16 bits."""
READING, COMPUTING, TRAINING = 0.6, 0.4, 0.35
"""Achieved shares of the peaks: memory bandwidth in decoding, arithmetic on prompts and in training. That of training
was measured: 0.36 with a 4B shape on an H200 with Liger's kernels and recomputation, 0.27 without these kernels."""
PARALLEL = 0.8
"""Speed per GPU, relative to one GPU, when a model is split over several."""
ENGINE_GIB = 3.0
"""Memory of an engine per GPU besides weights and cache: libraries, activations, CUDA graphs."""
TRAINER_GIB = 6.0
"""The same for a trainer's rank, without the activations kept for the backward pass."""
RESTING_GIB = 2.0
"""Memory of a CUDA context and of what stays with a sleeping engine or a resting rank, without weights."""
TRANSFER_GIB = 2.0
"""Memory of a rank during a transfer over CUDA IPC, for tensors of at most 1 GiB: vLLM's buffer, and as many weights
that are gathered or cast. An embedding of 1.5 GiB, of a model of 32B parameters, takes 1 GiB more."""
ADAPTED = 0.01
"""Share of a model's parameters in an adapter of rank 16 on all linear layers of a block."""
KEPT, KEPT_BY_LIGER = 35, 23
"""Activations of a token in a layer without recomputation, in multiples of its hidden size, without and with Liger's
kernels: 93 and 62 GiB with 15,744 tokens of a 4B shape on an H200."""
LINK_GB_S = 25.0
"""Weight transfer from the trainers to an engine, in GB/s: one 200 Gbit/s network card per node."""


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """Data sheet values: memory in GiB, bandwidth in TB/s, dense bfloat16 compute in Tflop/s."""

    memory_gib: float
    read_tb_s: float
    tflops: float


GPUS: dict[str, Gpu] = {
    "rtx4090": Gpu(memory_gib=23, read_tb_s=1.008, tflops=165),
    "l40s": Gpu(memory_gib=44, read_tb_s=0.864, tflops=362),
    "a100_40": Gpu(memory_gib=39, read_tb_s=1.555, tflops=312),
    "a100_80": Gpu(memory_gib=79, read_tb_s=2.039, tflops=312),
    "h100": Gpu(memory_gib=79, read_tb_s=3.35, tflops=989),
    "h200": Gpu(memory_gib=139, read_tb_s=4.8, tflops=989),
    "b200": Gpu(memory_gib=178, read_tb_s=8.0, tflops=2250),
}


def speedup(gpus: int) -> float:
    """Return the speed of `gpus` GPUs that share a model, relative to one GPU."""
    return 1.0 if gpus == 1 else gpus * PARALLEL


def answer_time(
    model: ModelSize, gpu: Gpu, gpus: int, *, prompt_tokens: float, cached_frac: float, output_tokens: float
) -> Service:
    """Return the seconds of one answer as a function of the number of concurrent answers.

    Fixed part: reading the weights for each output token. Part per concurrent answer: its prompt, which delays all
    others, and for each output token its own keys and values and its arithmetic. (During an answer of mean length,
    every other slot processes one prompt, too.)
    """
    bandwidth = gpu.read_tb_s * 1e12 * READING * speedup(gpus)
    flops = gpu.tflops * 1e12 * COMPUTING * speedup(gpus)
    per_token = model.kv_bytes_per_token * (prompt_tokens + output_tokens / 2) / bandwidth
    per_token += 2 * model.parameters / flops
    prompt = 2 * model.parameters * prompt_tokens * (1 - cached_frac) / flops
    return Service(
        fixed_s=output_tokens * model.parameters * BYTES / bandwidth, each_s=prompt + output_tokens * per_token
    )


def train_time(
    model: ModelSize, gpu: Gpu, ranks: int, tokens: float, *, recompute: bool, trained: float = 1.0
) -> float:
    """Return the seconds of one pass over `tokens`.

    Per parameter and token 2 operations forward, 2 for the gradients of the activations, 2 for those of the share
    `trained` of the weights, and 2 for recomputed activations.
    """
    operations = 4 + 2 * trained + (2 if recompute else 0)
    return operations * model.parameters * tokens / (ranks * gpu.tflops * 1e12 * TRAINING)


def trained_share(lora: LoraConfig | None) -> float:
    """Return the share of a model's parameters that is trained."""
    return 1.0 if lora is None else ADAPTED * lora.rank / 16


def sync_time(model: ModelSize, share: float) -> float:
    """Return the seconds until every engine has this share of the weights anew: one broadcast, bound by the slowest
    link."""
    return share * model.parameters * BYTES / (LINK_GB_S * 1e9)


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Memory in GiB on each of a replica's GPUs."""

    weights_gib: float
    cache_gib: float
    other_gib: float
    have_gib: float

    @property
    def total_gib(self) -> float:
        return self.weights_gib + self.cache_gib + self.other_gib

    @property
    def fits(self) -> bool:
        return self.total_gib <= self.have_gib


def engine_memory(
    model: ModelSize, gpu: Gpu, gpus: int, *, sequences: int, tokens: float, utilisation: float
) -> Memory:
    """Return the memory for the weights and the cache of `sequences` concurrent sequences of `tokens` each.

    The sequences share no prefix, so with a cache of this size an engine never preempts a sequence. `utilisation` is
    the engine's GPU memory utilisation.
    """
    return Memory(
        weights_gib=model.parameters * BYTES / gpus / GIB,
        cache_gib=sequences * tokens * model.kv_bytes_per_token / gpus / GIB,
        other_gib=ENGINE_GIB,
        have_gib=gpu.memory_gib * utilisation,
    )


def trainer_memory(model: ModelSize, gpu: Gpu, trainer: TrainerConfig, *, reference: bool) -> Memory:
    """Return the memory of a trainer rank by ZeRO stage (Rajbhandari et al. 2020).

    Per parameter: 2 bytes of weights, 4 of gradients (sums in float32) and 12 of optimiser state (float32 master
    weights, two moments); stage 0 has no master weights, but float32 weights. Stage 1 shards the state over the ranks,
    stage 2 the gradients too, stage 3 everything.

    Activations under `cache_gib`: 2 bytes x hidden per token and layer with recomputation, KEPT times as much without;
    those of one layer if they are kept on the host.

    With `offload_optimizer`, the optimiser state is on the host (`host_memory`). Stage 3 has its gradient sums there
    too, and gradients pass through the GPU in 2 bytes; stages 1 and 2 sum them on the GPU. A `reference` policy is
    sharded by stage 3; the others keep it on the host.
    """
    stage, ranks = trainer.zero_stage, trainer.ranks
    shares = [1 if stage < sharding else ranks for sharding in (3, 2, 1)]
    weights, gradients, state = (2 * BYTES, 2 * BYTES, 8) if stage == 0 else (BYTES, 2 * BYTES, 12)
    if trainer.offload_optimizer:
        gradients, state = BYTES if stage == 3 else gradients, 0
    per_parameter = weights / shares[0] + trained_share(trainer.lora) * (gradients / shares[1] + state / shares[2])
    if reference and stage == 3:
        per_parameter += BYTES / ranks
    if not trainer.gradient_checkpointing:
        layers = (KEPT_BY_LIGER if trainer.use_liger_kernel else KEPT) * model.layers
    else:
        layers = 1 if trainer.gradient_checkpointing == "offload" else model.layers
    return Memory(
        weights_gib=model.parameters * per_parameter / GIB,
        cache_gib=BYTES * model.hidden * layers * trainer.tokens_per_microbatch / GIB,
        other_gib=TRAINER_GIB,
        have_gib=gpu.memory_gib,
    )


def rank_memory(config: Config, model: ModelSize) -> dict[str, Memory]:
    """Return the memory of a trainer rank with GPUs: in a step, next to an engine that generates, on the host.

    A rank that shares its GPU with an engine needs room for its step next to the sleeping engine, and for its weights
    and a transfer of them next to the one that generates. On the host, `have_gib` is the node's memory.
    """
    gpu, trainer, rollout = GPUS[config.plan.gpu], config.trainer, config.rollout
    reference = bool(config.algorithm.kl.coef or config.algorithm.kl.measure) and trainer.lora is None
    step = trainer_memory(model, gpu, trainer, reference=reference)
    found = {}
    if rollout.colocated:
        step = replace(step, have_gib=gpu.memory_gib - RESTING_GIB)
        per_parameter: float = 2 * BYTES if trainer.zero_stage == 0 else BYTES
        if trainer.zero_stage == 3:
            per_parameter = BYTES * (1 + reference) / trainer.ranks
        found["trainer.ranks, while engines generate"] = Memory(
            weights_gib=per_parameter * model.parameters / GIB,
            cache_gib=0.0,
            other_gib=RESTING_GIB + (TRANSFER_GIB if rollout.transfer == "ipc" else 0.0),
            have_gib=gpu.memory_gib * (1 - rollout.engine.gpu_memory_utilization),
        )
    if trainer.offload_optimizer:
        # The ranks of a node share its memory.
        ranks_per_node = min(trainer.ranks, max(1, int(config.launch.gpus_per_node / (trainer.num_gpus or 1))))
        found["trainer.ranks, on the host"] = Memory(
            weights_gib=host_memory(model, trainer),
            cache_gib=0.0,
            other_gib=0.0,
            have_gib=config.launch.memory_gib_per_node / ranks_per_node,
        )
    return found | {"trainer.ranks": step}


def host_memory(model: ModelSize, trainer: TrainerConfig) -> float:
    """Return the GiB of host memory of a rank with `offload_optimizer`: DeepSpeed has 12 bytes of optimiser state per
    parameter there, 4 of gradients, and 2 for the updated weights (stages 1 and 2) or 4 for gradient sums (stage 3)."""
    each = 20 if trainer.zero_stage == 3 else 18
    return each * trained_share(trainer.lora) * model.parameters / trainer.ranks / GIB


def gpus_needed(model: ModelSize, gpu: Gpu, *, sequences: int, tokens: float, utilisation: float) -> int | None:
    """Return the fewest GPUs that hold a replica; None where the 8 GPUs of a node do not suffice.

    The number is a power of two that divides the key-value heads, or is divided by them.
    """
    for count in (1, 2, 4, 8):
        divides = model.kv_heads % count == 0 or count % model.kv_heads == 0
        memory = engine_memory(model, gpu, count, sequences=sequences, tokens=tokens, utilisation=utilisation)
        if divides and memory.fits:
            return count
    return None


def at_least(load: float) -> int:
    return max(1, math.ceil(load - 1e-9))
