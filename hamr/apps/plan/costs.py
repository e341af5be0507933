"""How fast and how large: a roofline of one engine, and what of its memory goes where.

Decoding reads the weights once per token for all sequences together and each sequence's keys and values for itself;
reading prompts and training are bound by arithmetic, 2 operations per parameter and token forwards and 4 backwards.
What an engine reaches of a GPU's peak is an assumption; `hamr plan from=<run>` takes measured times instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hamr.apps.plan.models import ModelSize
from hamr.apps.plan.simulation import Service

GIB = 1 << 30
BYTES = 2
"""Per parameter: 16 bits."""
READING, COMPUTING, TRAINING = 0.6, 0.4, 0.35
"""Shares of the peaks that are reached: of the memory's in decoding, of the arithmetic's on prompts and in training."""
PARALLEL = 0.8
"""What is left of a GPU's speed per GPU when a model is spread over several."""
ENGINE_GIB = 3.0
"""Of an engine, per GPU, beside weights and cache: the libraries' own memory, activations, CUDA graphs."""
TRAINER_GIB = 6.0
"""The same for a trainer's rank, without the activations kept for the backward pass."""
LINK_GB_S = 25.0
"""Weights on their way from the trainers to an engine, in GB/s: one 200 Gbit/s network card a node."""


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """Data sheet: memory in GiB, its speed in TB/s, dense bfloat16 arithmetic in Tflop/s."""

    memory_gib: float
    read_tb_s: float
    tflops: float


GPUS: dict[str, Gpu] = {
    "l40s": Gpu(memory_gib=44, read_tb_s=0.864, tflops=362),
    "a100_40": Gpu(memory_gib=39, read_tb_s=1.555, tflops=312),
    "a100_80": Gpu(memory_gib=79, read_tb_s=2.039, tflops=312),
    "h100": Gpu(memory_gib=79, read_tb_s=3.35, tflops=989),
    "h200": Gpu(memory_gib=139, read_tb_s=4.8, tflops=989),
    "b200": Gpu(memory_gib=178, read_tb_s=8.0, tflops=2250),
}


def speedup(gpus: int) -> float:
    """How many times as fast as one GPU so many are that share a model."""
    return 1.0 if gpus == 1 else gpus * PARALLEL


def answer_time(
    model: ModelSize, gpu: Gpu, gpus: int, *, prompt_tokens: float, cached_frac: float, output_tokens: float
) -> Service:
    """Seconds of one answer as a function of how many an engine gives at a time.

    Fixed: reading the weights for each output token. Per answer under way: everybody's prompt, which all the others
    wait for, and for each output token its own keys and values and its arithmetic. (While an answer of mean length is
    given, every other place reads one prompt, too.)
    """
    bandwidth = gpu.read_tb_s * 1e12 * READING * speedup(gpus)
    flops = gpu.tflops * 1e12 * COMPUTING * speedup(gpus)
    per_token = model.kv_bytes_per_token * (prompt_tokens + output_tokens / 2) / bandwidth
    per_token += 2 * model.parameters / flops
    prompt = 2 * model.parameters * prompt_tokens * (1 - cached_frac) / flops
    return Service(
        fixed_s=output_tokens * model.parameters * BYTES / bandwidth, each_s=prompt + output_tokens * per_token
    )


def train_time(model: ModelSize, gpu: Gpu, ranks: int, tokens: float, *, recompute: bool) -> float:
    """Seconds of one pass over `tokens`: 6 operations per parameter and token, 8 where activations are recomputed."""
    return (8 if recompute else 6) * model.parameters * tokens / (ranks * gpu.tflops * 1e12 * TRAINING)


def sync_time(model: ModelSize) -> float:
    """Seconds until every engine has the new weights: one broadcast, bound by the slowest link."""
    return model.parameters * BYTES / (LINK_GB_S * 1e9)


@dataclass(frozen=True, kw_only=True)
class Memory:
    """GiB on each of a replica's GPUs."""

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
    """Weights, and the cache of `sequences` at a time of `tokens` each, none of which share a prefix (so that a cache
    of this size never makes an engine put a sequence off). `utilisation` of the GPU is the engine's."""
    return Memory(
        weights_gib=model.parameters * BYTES / gpus / GIB,
        cache_gib=sequences * tokens * model.kv_bytes_per_token / gpus / GIB,
        other_gib=ENGINE_GIB,
        have_gib=gpu.memory_gib * utilisation,
    )


def trainer_memory(model: ModelSize, gpu: Gpu, ranks: int, zero_stage: int, *, tokens: int, recompute: bool) -> Memory:
    """ZeRO (Rajbhandari et al. 2020): 2 bytes of weights, 2 of gradients and 12 of the optimiser's state (float32
    master, two moments) per parameter; stage 1 divides the state among the ranks, 2 the gradients too, 3 all of it.

    Activations under `cache_gib`: 2 bytes x hidden per token and layer with recomputation, about 17 times as much
    without (the inputs of every projection).
    """
    shares = [1 if zero_stage < stage else ranks for stage in (3, 2, 1)]
    per_parameter = BYTES / shares[0] + BYTES / shares[1] + 12 / shares[2]
    kept = BYTES * model.hidden * model.layers * tokens * (1 if recompute else 17)
    return Memory(
        weights_gib=model.parameters * per_parameter / GIB,
        cache_gib=kept / GIB,
        other_gib=TRAINER_GIB,
        have_gib=gpu.memory_gib,
    )


def gpus_needed(
    model: ModelSize, gpu: Gpu, *, sequences: int, tokens: float, utilisation: float, most: int = 8
) -> int | None:
    """Fewest GPUs (a power of two that divides the heads of keys and values, or is divided by them) that hold a
    replica; None where `most`, a node's, do not."""
    count = 1
    while count <= most:
        divides = model.kv_heads % count == 0 or count % model.kv_heads == 0
        memory = engine_memory(model, gpu, count, sequences=sequences, tokens=tokens, utilisation=utilisation)
        if divides and memory.fits:
            return count
        count *= 2
    return None


def at_least(load: float) -> int:
    return max(1, math.ceil(load - 1e-9))
