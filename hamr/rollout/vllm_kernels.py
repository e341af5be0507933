"""vLLM's fused CPU kernels for operations that its CPU platform runs as plain torch operations.

vLLM expects its compiler to fuse the plain operations. An eager engine runs them one by one, and a decoding step of a
small model then spends a tenth of its time in the operations of its norms. vLLM's kernel for gated activations is not
used: torch's two operations take less than half of its time.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import torch

from hamr.hardware import disables_avx512


def follow_cpu_capability() -> None:
    """Let vLLM load its AVX2 kernels if `ATEN_CPU_CAPABILITY` disables AVX-512. Call it before vLLM is imported.

    vLLM asks torch for the features of the CPU, which that variable does not change.
    """
    if disables_avx512(os.environ):
        for feature in ("avx512", "avx512_bf16", "amx_tile"):
            setattr(torch.cpu, f"_is_{feature}_supported", lambda: False)


def use_fused_kernels(model: torch.nn.Module) -> int:
    """Route the norms of `model` (as vLLM built it) through the fused kernels. Return their number.

    Other kinds of norms, and those whose weights differ in dtype from the activations, are not changed.
    """
    from vllm.model_executor.layers.layernorm import RMSNorm

    replaced = 0
    for module in model.modules():
        if type(module) is RMSNorm and module.has_weight and module.variance_size_override is None:
            module._forward_method = functools.partial(rms_norm, module)
            replaced += 1
    return replaced


def rms_norm(module: Any, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
    """Return the norm of `x`, or the norm of `x + residual` and that sum; then both tensors are overwritten.

    The kernels need contiguous memory and weights of the input's dtype. Other inputs (e.g. a norm of some heads, sliced
    from a wider product) use the plain operations.
    """
    strided = not x.is_contiguous() or (residual is not None and not residual.is_contiguous())
    if strided or x.dtype != module.weight.dtype:
        return module.forward_native(x, residual)
    if residual is None:
        out = torch.empty_like(x)
        torch.ops._C.rms_norm.default(out, x, module.weight.data, module.variance_epsilon)
        return out
    torch.ops._C.fused_add_rms_norm.default(x, residual, module.weight.data, module.variance_epsilon)
    return x, residual
