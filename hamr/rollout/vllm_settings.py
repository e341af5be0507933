"""vLLM settings: environment of an engine's process, engine arguments, and sampling parameters of a request."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hamr.config.pools import DType, EngineConfig
from hamr.errors import BadInput, did_you_mean
from hamr.models.cpu_env import ALLOCATOR_ENV, WAITING_ENV
from hamr.protocols import SamplingConfig
from hamr.rollout.vllm_adapter import adapter_args

if TYPE_CHECKING:
    from vllm import SamplingParams

CPU_BLOCK = 32
OWN_ENGINE_ARGS = frozenset(
    {
        "block_size", "disable_log_stats", "distributed_executor_backend", "dtype", "enable_chunked_prefill",
        "enable_lora", "enable_prefix_caching", "enable_sleep_mode", "enforce_eager", "gpu_memory_utilization",
        "kv_cache_memory_bytes", "logprobs_mode", "max_lora_rank", "max_loras", "max_model_len",
        "max_num_batched_tokens", "max_num_seqs", "model", "seed", "structured_outputs_config", "tensor_parallel_size",
        "use_tqdm_on_load", "weight_transfer_config", "worker_extension_cls",
    }
)  # fmt: skip
"""Arguments that hamr derives from its own keys or needs as they are."""
OWN_SAMPLING_PARAMS = frozenset(
    {
        "detokenize", "flat_logprobs", "include_stop_str_in_output", "logprob_token_ids", "logprobs", "max_tokens", "n",
        "output_kind", "prompt_logprobs", "seed", "stop", "structured_outputs", "temperature", "thinking_token_budget",
        "top_p", "watermarking",
    }
)  # fmt: skip
"""The same for sampling parameters."""
CPU_TOKENS_PER_STEP = 2048
"""Maximum prompt tokens per step; a prompt that does not fit waits for the next step."""


def engine_env(engine: EngineConfig) -> dict[str, str]:
    """Return the environment variables of a process that runs an engine."""
    env = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "PYTHONWARNINGS": "ignore::FutureWarning",
    }
    if engine.num_gpus:
        # CUDA IPC handles hold types, which vLLM sends to its own core process by pickle.
        return env | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}
    return env | {
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(engine.threads),
        **WAITING_ENV,
        "TORCH_COMPILE_DISABLE": "1",
        **ALLOCATOR_ENV,
    }


def engine_args(
    model_path: str,
    engine: EngineConfig,
    dtype: DType,
    max_context: int,
    seed: int,
    *,
    transfer: str = "shared_memory",
    sleeps: bool = False,
    adapter_rank: int = 0,
) -> dict[str, Any]:
    """Return vLLM's EngineArgs. With an `adapter_rank` the engine serves an adapter of at most this rank.

    Log-probabilities are those of the distribution that was sampled from (after temperature and top-p). At temperature
    1 they are the model's own.
    """
    args: dict[str, Any] = {
        "model": model_path,
        "dtype": dtype,
        "max_model_len": max_context,
        "max_num_seqs": engine.max_num_seqs,
        "enforce_eager": engine.enforce_eager,
        "block_size": engine.block_size,
        "enable_prefix_caching": True,
        "logprobs_mode": "processed_logprobs",
        "worker_extension_cls": "hamr.rollout.vllm_worker.WorkerExtension",
        # A model can also loop between two keys, so allow only one form of white space.
        "structured_outputs_config": {"backend": "guidance", "disable_any_whitespace": True},
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        "seed": seed % (1 << 32),  # NumPy's range; workers add their number to the run's seed
    }
    if adapter_rank:
        args |= adapter_args(adapter_rank)
    if engine.num_gpus:
        args["gpu_memory_utilization"] = engine.gpu_memory_utilization
        args["tensor_parallel_size"] = engine.tensor_parallel_size
        if engine.tensor_parallel_size > 1:
            # In a placement group vLLM would choose Ray and reject the group: an engine's GPUs are one bundle of it.
            args["distributed_executor_backend"] = "mp"
        if transfer in ("nccl", "ipc"):
            args["weight_transfer_config"] = {"backend": transfer}
        if sleeps:
            args["enable_sleep_mode"] = True
        return args | engine.extra
    if engine.block_size % CPU_BLOCK:
        raise BadInput("engine.block_size", engine.block_size, f"must be a multiple of {CPU_BLOCK} on a CPU")
    return args | {
        "enforce_eager": True,
        "kv_cache_memory_bytes": engine.kv_cache_mb << 20,
        # With chunked prefill vLLM rewinds the request's random generator, which CPU generators do not support: one
        # seeded request cut in two would end the engine. So a step must hold a whole prompt.
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(CPU_TOKENS_PER_STEP, max_context),
        **engine.extra,
    }


def check_engine_extra(where: str, extra: Mapping[str, Any]) -> None:
    """Check further engine arguments against the names and plain types of vLLM's own. Raises BadInput."""
    if not extra:
        return
    from vllm import EngineArgs

    fields = {field.name: field for field in dataclasses.fields(EngineArgs)}
    _check_names(where, extra, fields, OWN_ENGINE_ARGS, "argument of vLLM's engine")
    for name, value in extra.items():
        kind = type(fields[name].default)
        if kind in (bool, int, str) and type(value) is not kind:
            raise BadInput(f"{where}.{name}", value, f"must be of type {kind.__name__}, as in vLLM's EngineArgs")


def check_sampling_extra(where: str, extra: Mapping[str, Any], own: Iterable[str] = ()) -> None:
    """Check further sampling parameters by vLLM's own checks. Raises BadInput."""
    if not extra:
        return
    import msgspec
    from vllm import SamplingParams
    from vllm.exceptions import VLLMClientError

    known = [name for name in SamplingParams.__struct_fields__ if not name.startswith("_")]
    _check_names(where, extra, known, OWN_SAMPLING_PARAMS.union(own), "sampling parameter of vLLM")
    try:
        msgspec.convert(dict(extra), SamplingParams)  # checks the types, which the constructor does not
        SamplingParams(**extra)
    except (TypeError, ValueError, VLLMClientError, msgspec.ValidationError) as error:
        raise BadInput(where, dict(extra), f"vLLM rejects it: {str(error).splitlines()[0]}") from error


def _check_names(where: str, extra: Mapping[str, Any], known: Iterable[str], own: Iterable[str], what: str) -> None:
    known = set(known)
    for name in extra:
        if name in own:
            raise BadInput(f"{where}.{name}", extra[name], "hamr sets it; use the keys next to this section")
        if name not in known:
            raise BadInput(where, name, f"{did_you_mean(name, known)}no such {what}")


def sampling_params(
    sampling: SamplingConfig,
    seed: int | None,
    *,
    stop: Sequence[str],
    logprobs: bool,
    schema: Mapping[str, Any] | None = None,
    mark: str = "",
    keep_stop: bool = False,
) -> SamplingParams:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        max_tokens=sampling.max_new_tokens,
        seed=seed,
        stop=list(stop),
        # A rollout's text includes the string that it stopped at.
        include_stop_str_in_output=keep_stop and bool(stop),
        # 0 returns the sampled token only. The flat form avoids one object per token.
        logprobs=0 if logprobs else None,
        flat_logprobs=logprobs,
        # Detokenize once at the end, unless the text must be searched during generation.
        detokenize=bool(stop or mark),
        output_kind=RequestOutputKind.CUMULATIVE if mark else RequestOutputKind.FINAL_ONLY,
        structured_outputs=None if schema is None else StructuredOutputsParams(json=dict(schema)),
        **({"top_k": sampling.top_k} if sampling.top_k else {}),
        **sampling.extra,
    )
