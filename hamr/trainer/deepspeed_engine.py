"""DeepSpeed engine of the policy: ZeRO 0 to 3, float32 master weights and gradient accumulation."""

from __future__ import annotations

import inspect
import os
from contextlib import suppress
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hamr.algorithms.packing import Layout
from hamr.config.schema import TrainerConfig
from hamr.errors import ConfigError
from hamr.trainer.policy_kernels import use_cpu_kernels
from hamr.trainer.policy_model import PolicyModel, load_policy

NCCL_TIMEOUT_S = 1800.0
"""Longest wait of a rank for the others in one operation on GPUs: a checkpoint of rank 0 to slow storage fits. It does
not depend on `trainer.deadline_s`, which bounds a whole call; when it passes, NCCL ends the process."""
BUCKET_ELEMENTS = 50_000_000
"""Size of gradient buckets in elements: large enough for a network, small compared with the model."""


def join_world(config: TrainerConfig, rank: int, world: int, init_method: str) -> None:
    """Initialise the process group. Call once per process.

    DeepSpeed's shared-memory all-reduce is turned off: it is compiled at first use, waits by spinning (which starves
    other ranks on shared cores) and leaves its buffers in /dev/shm when a rank is killed.
    """
    gpu = config.backend == "nccl"
    # Each rank sees only its own GPU, as number 0.
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK="0" if gpu else str(rank))
    os.environ.setdefault("LOCAL_SIZE", str(world))
    import torch
    import torch.distributed as dist

    if gpu:
        torch.cuda.set_device(0)
        # Micro-batches differ in shape, and cuDNN's attention plans anew for each shape. torch then chooses between
        # its own flash, memory-efficient and math kernels.
        torch.backends.cuda.enable_cudnn_sdp(False)
    else:
        torch.set_num_threads(config.threads)
    import deepspeed
    import transformers.modeling_utils  # noqa: F401  (what loads the model, so that it is loaded once per process)
    from deepspeed.utils import groups

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    timeout = timedelta(seconds=NCCL_TIMEOUT_S if gpu else config.deadline_s)
    dist.init_process_group(
        config.backend,
        init_method=init_method,
        rank=rank,
        world_size=world,
        timeout=timeout,
        # NCCL connects now, where an error has a cause, and barriers do not have to guess the device. A single rank
        # has nothing to connect to; like DeepSpeed, hamr does not bind it.
        device_id=torch.device("cuda:0") if gpu and world > 1 else None,
    )
    deepspeed.init_distributed(dist_backend=config.backend, auto_mpi_discovery=False, verbose=False)
    # DeepSpeed's collectives run on a clone of the world group, which it would create with torch's default timeout (10
    # minutes with NCCL). It has no argument for another one.
    groups._WORLD_GROUP = dist.new_group(range(world), timeout=timeout)


def device_of(config: TrainerConfig) -> str:
    """Return the torch device of a rank: its only visible GPU with NCCL, else the CPU."""
    return "cuda:0" if config.backend == "nccl" else "cpu"


def autocast_only(config: TrainerConfig) -> bool:
    """Return whether bfloat16 is used by autocast only.

    ZeRO stage 0 has no optimiser with float32 master weights for bfloat16 weights. The weights themselves stay float32
    and the computation is autocast.
    """
    return config.zero_stage == 0 and config.dtype == "bfloat16"


def weight_dtype(config: TrainerConfig) -> Any:
    """Return the torch dtype of the weights. They stay float32 where bfloat16 is used by autocast only."""
    import torch

    return torch.float32 if config.dtype == "float32" or autocast_only(config) else torch.bfloat16


def engine_config(config: TrainerConfig) -> dict[str, Any]:
    """Return DeepSpeed's settings. The trainer, not DeepSpeed, counts the micro-batches of a step."""
    settings: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": config.grad_clip,
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 10**9,
        "zero_optimization": {
            "stage": config.zero_stage,
            "overlap_comm": config.backend == "nccl",
            "reduce_bucket_size": BUCKET_ELEMENTS,
        },
    }
    if config.offload_optimizer:
        # torch's own AdamW updates it there; DeepSpeed's would have to be compiled.
        settings["zero_optimization"]["offload_optimizer"] = {"device": "cpu", "pin_memory": config.backend == "nccl"}
        settings["zero_force_ds_cpu_optimizer"] = False
    if autocast_only(config):
        settings["torch_autocast"] = {"enabled": True, "dtype": "bfloat16"}
    elif config.dtype == "bfloat16":
        settings["bf16"] = {"enabled": True, "check_grad_overflow": True}
        settings["data_types"] = {"grad_accum_dtype": "fp32"}
    if config.backend == "gloo" and config.ranks > 1:
        settings["communication_data_type"] = "fp32"
    return settings


def uses_liger(config: TrainerConfig) -> bool:
    """Return whether Liger's kernels are to be used. Raises ConfigError if they are demanded and not installed here."""
    if config.backend != "nccl" or not config.use_liger_kernel:
        return False
    installed = find_spec("liger_kernel") is not None
    if config.use_liger_kernel is True and not installed:
        remedy = "liger-kernel is not installed here; pip install 'hamr[cuda]', or set trainer.use_liger_kernel=auto"
        raise ConfigError("trainer.use_liger_kernel", "true", remedy)
    return installed


def load_model(path: Path, config: TrainerConfig, temperature: float, settings: dict[str, Any]) -> PolicyModel:
    """Load the policy on its device. Under ZeRO-3 each rank only ever holds its own partition."""
    layout: Layout = config.attention
    arguments: dict[str, Any] = dict(
        dtype=weight_dtype(config),
        layout=layout,
        kernel=config.attention_kernel,
        temperature=temperature,
        lora=config.lora,
        gradient_checkpointing=config.gradient_checkpointing,
        liger=uses_liger(config),
    )
    if config.zero_stage < 3:
        model = load_policy(path, **arguments)
        if device_of(config) == "cpu":
            use_cpu_kernels(model)
        return model.to(device_of(config))
    from transformers.integrations import HfDeepSpeedConfig

    # While this object exists, from_pretrained partitions what it loads.
    partition = HfDeepSpeedConfig(settings)
    model = load_policy(path, **arguments)
    del partition
    return model


def load_reference(path: Path, config: TrainerConfig, temperature: float) -> Any:
    """Load the reference policy: ZeRO-3 shards it over the ranks as it does the policy, otherwise each rank has one."""
    settings: dict[str, Any] = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": config.zero_stage}}
    if config.dtype == "bfloat16":
        settings["bf16"] = {"enabled": True}
    model = load_model(path, config.model_copy(update={"gradient_checkpointing": False}), temperature, settings)
    model.eval().requires_grad_(False)
    if config.zero_stage < 3:
        return model
    import deepspeed

    return deepspeed.initialize(model=model, config=settings)[0]


RATE_SCALE = "rate_scale"
"""Key of a parameter group whose learning rate is a multiple of the scheduled one."""


def build_engine(model: PolicyModel, config: TrainerConfig, settings: dict[str, Any], writer: Any) -> Any:
    """Build the engine with a fused AdamW over the trainable parameters. Vectors are not decayed.

    `writer` writes the engine's checkpoints.
    """
    import deepspeed
    import torch

    trainable = [p for p in model.parameters() if p.requires_grad]
    scaled = model.causal_lm.get_input_embeddings().weight if config.embedding_rate != 1.0 else None  # type: ignore[operator]
    matrices = [p for p in trainable if dimensions(p) > 1 and p is not scaled]
    vectors = [p for p in trainable if dimensions(p) <= 1]
    embeddings = [p for p in trainable if p is scaled]
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
        {"params": embeddings, "weight_decay": config.weight_decay, RATE_SCALE: config.embedding_rate},
    ]
    optimizer = torch.optim.AdamW(
        [g for g in groups if g["params"]], lr=config.learning_rate, betas=config.betas, fused=True
    )
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
    engine.checkpoint_engine = writer
    return engine


def release_modules(*engines: Any) -> None:
    """Remove the engines' models from where ZeRO-3 keeps them even after `engine.destroy`: a list and a cache."""
    from deepspeed.runtime.zero.parameter_offload import FWD_MODULE_STACK
    from deepspeed.runtime.zero.partitioned_param_coordinator import PartitionedParameterCoordinator

    released = [getattr(engine, "module", None) for engine in engines]
    FWD_MODULE_STACK[:] = [module for module in FWD_MODULE_STACK if not any(module is own for own in released)]
    # The keys of this cache are modules of all engines, and a decorator hides it. Engines in use fill it again.
    with suppress(AttributeError, KeyError):  # another version of DeepSpeed
        decorated = vars(PartitionedParameterCoordinator)["_PartitionedParameterCoordinator__params_to_release"]
        inspect.getclosurevars(decorated).nonlocals["func"].cache_clear()


def dimensions(parameter: Any) -> int:
    """Return the number of dimensions of the whole parameter, also if ZeRO-3 holds only a flat part of it."""
    return len(getattr(parameter, "ds_shape", parameter.shape))
