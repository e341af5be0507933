"""vLLM's own fused CPU kernels, where its CPU platform would take plain torch operations.

vLLM compiles the plain ones away, given a compiler at run time; an eager engine runs them one by one, and a decoding
step of a small model then spends a tenth of its time in the little operations of its norms. Its kernel for gated
activations stays unused: torch's two operations take less than half of its time.
"""

from __future__ import annotations

import functools
from typing import Any

import torch


def use_fused_kernels(model: torch.nn.Module) -> int:
    """Norms of `model` (as vLLM built it) go through the fused kernels; returns how many.

    Norms of another kind, and those whose weights are not of the activations' type, stay as they are.
    """
    from vllm.model_executor.layers.layernorm import RMSNorm

    replaced = 0
    for module in model.modules():
        if type(module) is RMSNorm and module.has_weight and module.variance_size_override is None:
            module._forward_method = functools.partial(rms_norm, module)
            replaced += 1
    return replaced


def rms_norm(module: Any, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
    """The norm of `x`, or of `x + residual` beside that sum: then both tensors are overwritten.

    The kernels read memory as it lies and take weights of the input's type: anything else (a norm of some heads, cut
    out of a wider product) goes the plain way.
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
