"""Memory of each part of a run on each of its GPUs, from the configuration alone."""

from __future__ import annotations

import math
from dataclasses import replace

from hamr.apps.plan.build import output_tokens, places, response_tokens
from hamr.apps.plan.costs import (
    BYTES,
    GIB,
    GPUS,
    RESTING_GIB,
    TRANSFER_GIB,
    Memory,
    engine_memory,
    host_memory,
    trained_share,
    trainer_memory,
)
from hamr.apps.plan.models import model_size
from hamr.apps.plan.workload import Workload
from hamr.config.schema import Config


def memory_per_gpu(config: Config, workload: Workload) -> dict[str, Memory]:
    """Return the memory on each GPU by part, where the part has GPUs. `have_gib` is what it may take.

    Optimiser states on the host are a part of their own, of the node's memory.

    Engines have all concurrent requests in their cache. A rank that shares its GPU with an engine needs room for its
    step next to the sleeping engine, and for its weights and a transfer of them next to the one that generates.
    """
    gpu, prompt, answer = GPUS[config.plan.gpu], config.plan.prompt_tokens, response_tokens(config)
    found = {}
    for name, pool in config.pools.items():
        if pool.engine.num_gpus:
            found[f"pools.{name}"] = engine_memory(
                model_size(f"pools.{name}.model", pool.model),
                gpu,
                pool.engine.tensor_parallel_size,
                sequences=places(pool),
                tokens=min(prompt + answer + output_tokens(config, name, workload), pool.max_context),
                utilisation=pool.engine.gpu_memory_utilization,
            )
    rollout, trainer, engine = config.rollout, config.trainer, config.rollout.engine
    model = model_size("model.path", config.model.path)
    if engine.num_gpus:
        found["rollout.workers"] = engine_memory(
            model,
            gpu,
            engine.tensor_parallel_size,
            sequences=min(engine.max_num_seqs, math.ceil(workload.rounds[0] * workload.samples / rollout.workers)),
            tokens=prompt + answer,
            utilisation=engine.gpu_memory_utilization,
        )
    if not trainer.num_gpus:
        return found
    reference = bool(config.algorithm.kl.coef or config.algorithm.kl.measure) and trainer.lora is None
    step = trainer_memory(
        model,
        gpu,
        trainer.ranks,
        trainer.zero_stage,
        tokens=trainer.tokens_per_microbatch,
        recompute=trainer.gradient_checkpointing,
        liger=bool(trainer.use_liger_kernel),
        trained=trained_share(trainer.lora),
        offload=trainer.offload_optimizer,
        reference=reference,
    )
    if rollout.colocated:
        step = replace(step, have_gib=gpu.memory_gib - RESTING_GIB)
        per_parameter: float = 2 * BYTES if trainer.zero_stage == 0 else BYTES
        if trainer.zero_stage == 3:
            per_parameter = BYTES * (1 + reference) / trainer.ranks
        found["trainer.ranks, while engines generate"] = Memory(
            weights_gib=per_parameter * model.parameters / GIB,
            cache_gib=0.0,
            other_gib=RESTING_GIB + (TRANSFER_GIB if rollout.transfer == "ipc" else 0.0),
            have_gib=gpu.memory_gib * (1 - engine.gpu_memory_utilization),
        )
    if trainer.offload_optimizer:
        found["trainer.ranks, on the host"] = Memory(
            weights_gib=host_memory(model, trainer.ranks, trainer.zero_stage, trained_share(trainer.lora)),
            cache_gib=0.0,
            other_gib=0.0,
            have_gib=float(config.launch.memory_gib_per_node),
        )
    return found | {"trainer.ranks": step}
