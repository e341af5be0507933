"""CPU kernels for a policy's linear layers, gated MLPs and norms, with fewer passes over memory.

Shape legend: T rows, I and O in and out features, E width of a norm.
"""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROWS = 512
"""Rows per block of a weight gradient. The two factors of a block fit in the second-level cache, which takes two thirds
of the time of one large product (bfloat16, 1,000 to 4,000 rows)."""


def use_cpu_kernels(model: nn.Module) -> None:
    """Replace the forward functions of the plain linear layers, gated MLPs and RMS norms that this module supports."""
    for module in model.modules():
        if _is_gated_mlp(module):
            module.forward = partial(_gated_forward, module)  # type: ignore[method-assign]
        elif type(module) is nn.Linear:
            module.forward = partial(_linear_forward, module)  # type: ignore[method-assign]
        elif _is_rms_norm(module):
            module.forward = partial(_norm_forward, module)  # type: ignore[method-assign]


def _is_rms_norm(module: nn.Module) -> bool:
    """Return whether the module is a norm that scales by `weight` (not 1 + weight), checked by computing it."""
    weight, eps = getattr(module, "weight", None), getattr(module, "variance_epsilon", None)
    if not type(module).__name__.endswith("RMSNorm") or eps is None or not isinstance(weight, Tensor):
        return False
    if weight.dim() != 1 or not weight.numel():
        return False
    with torch.no_grad():
        x = torch.linspace(-2, 3, weight.numel(), device=weight.device).to(weight.dtype)[None]
        return torch.allclose(module(x).float(), rms_norm(x, weight, eps).float(), atol=0.05, rtol=0.02)


def _is_gated_mlp(module: nn.Module) -> bool:
    """Return whether the module computes down(silu(gate(x)) * up(x)) with plain linear layers, checked likewise."""
    layers = [getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    act = getattr(module, "act_fn", None)
    if act is None or not all(type(layer) is nn.Linear for layer in layers):
        return False
    gate, up, down = (cast(nn.Linear, layer) for layer in layers)
    with torch.no_grad():
        if not torch.allclose(act(torch.linspace(-4, 4, 65)), F.silu(torch.linspace(-4, 4, 65)), atol=1e-4):
            return False
        x = torch.linspace(-2, 3, gate.in_features).to(gate.weight.dtype)[None]
        theirs, ours = module(x).float(), down(F.silu(gate(x)) * up(x)).float()
        return bool((theirs - ours).norm() <= 0.02 * ours.norm())


def _linear_forward(layer: nn.Linear, x: Tensor) -> Tensor:
    weight, bias = layer.weight, layer.bias
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        x, weight, bias = x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    if x.dtype is not torch.bfloat16 or not torch.is_grad_enabled():
        return F.linear(x, weight, bias)
    return _Linear.apply(x, weight, bias)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_OI: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight_OI)
        with torch.autocast("cpu", enabled=False):
            return F.linear(x, weight_OI, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight_OI = ctx.saved_tensors
        grad_TO = grads[0].flatten(0, -2)
        d_x = (grad_TO @ weight_OI).view(x.shape) if ctx.needs_input_grad[0] else None
        d_weight = weight_gradient(grad_TO, x.flatten(0, -2)) if ctx.needs_input_grad[1] else None
        return d_x, d_weight, grad_TO.sum(0) if ctx.needs_input_grad[2] else None


def _gated_forward(mlp: Any, x: Tensor) -> Tensor:
    gate, up, down = mlp.gate_proj(x), mlp.up_proj(x), mlp.down_proj
    if gate.dtype is not torch.bfloat16 or not torch.is_grad_enabled():
        return down(F.silu(gate) * up)
    bias = None if down.bias is None else down.bias.to(gate.dtype)
    return _GatedDown.apply(gate, up, down.weight.to(gate.dtype), bias)


class _GatedDown(torch.autograd.Function):
    """Saves the two branches and recomputes their product.

    This keeps two tensors of the inner width, where plain operations keep four. They are most of the memory that a
    layer keeps for its backward pass.
    """

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, weight_OI: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(gate, up, weight_OI)
        with torch.autocast("cpu", enabled=False):
            return F.linear(F.silu(gate).mul_(up), weight_OI, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        gate, up, weight_OI = ctx.saved_tensors
        grad_TO = grads[0].flatten(0, -2)
        d_gate, d_up, d_weight = torch.empty_like(gate), torch.empty_like(up), torch.zeros_like(weight_OI)
        parts = (t.flatten(0, -2).split(ROWS) for t in (gate, up, d_gate, d_up))
        for grad, g, u, into_gate, into_up in zip(grad_TO.split(ROWS), *parts, strict=True):
            opened = F.silu(g)
            if ctx.needs_input_grad[2]:
                d_weight.addmm_(grad.t().contiguous(), opened * u)
            d_product = grad @ weight_OI
            torch.mul(d_product, opened, out=into_up)
            into_gate.copy_(torch.ops.aten.silu_backward(d_product.mul_(u), g))
        return d_gate, d_up, d_weight, grad_TO.sum(0) if ctx.needs_input_grad[3] else None


def weight_gradient(grad_TO: Tensor, x_TI: Tensor) -> Tensor:
    """Compute grad^T x -> [O, I], summed over blocks of ROWS rows."""
    # The product is fastest with its first factor in rows; transposing pays off if it is the narrow one.
    narrow = grad_TO.shape[1] < x_TI.shape[1]
    total: Tensor | None = None
    for grad, x in zip(grad_TO.split(ROWS), x_TI.split(ROWS), strict=True):
        turned = grad.t().contiguous() if narrow else grad.t()
        total = turned @ x if total is None else total.addmm_(turned, x)
    assert total is not None
    return total


def _norm_forward(norm: Any, x: Tensor) -> Tensor:
    return rms_norm(x, norm.weight, norm.variance_epsilon)


def rms_norm(x: Tensor, weight_E: Tensor, eps: float) -> Tensor:
    """Compute x / sqrt(mean x^2 + eps) * weight over the last dimension, in float32; returns the wider dtype.

    >>> rms_norm(torch.tensor([[3.0, 4.0]]), torch.ones(2), 0.0)
    tensor([[0.8485, 1.1314]])
    """
    return _RmsNorm.apply(x, weight_E, eps)


class _RmsNorm(torch.autograd.Function):
    """Saves its input and one number per row, and uses the kernels of other norms.

    Scaling rows is a batch norm whose channels are the rows. The backward pass is a layer norm whose mean was 0.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_E: Tensor, eps: float) -> Tensor:
        wider = torch.promote_types(x.dtype, weight_E.dtype)
        flat_TE = x.reshape(-1, x.shape[-1]).to(wider)
        lengths_T = torch.linalg.vector_norm(flat_TE, dim=-1, dtype=torch.promote_types(wider, torch.float32))
        inverse_T = lengths_T.square_().div_(flat_TE.shape[1]).add_(eps).rsqrt_()
        ctx.save_for_backward(flat_TE, weight_E, inverse_T)
        ctx.given = x.dtype
        return _rows_scaled(flat_TE, inverse_T).mul_(weight_E).view(x.shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        flat_TE, weight_E, inverse_T = ctx.saved_tensors
        grad_TE = grads[0].reshape(flat_TE.shape)
        width, inverse_T1 = flat_TE.shape[1], inverse_T[:, None]
        d_weight = _rows_scaled(flat_TE, inverse_T).mul_(grad_TE).sum(0, dtype=inverse_T.dtype)
        scale = weight_E.to(inverse_T.dtype)
        d_x, _, _ = torch.ops.aten.native_layer_norm_backward(
            grad_TE, flat_TE, [width], torch.zeros_like(inverse_T1), inverse_T1, scale, None, [True, False, False]
        )
        # A layer norm also subtracts the gradient's mean, for the mean that it subtracted from its input.
        mean_T1 = (grad_TE @ weight_E.to(grad_TE.dtype)).to(inverse_T.dtype)[:, None].mul_(inverse_T1).div_(width)
        d_x.add_(mean_T1.to(d_x.dtype))
        return d_x.to(ctx.given).view(grads[0].shape), d_weight.to(weight_E.dtype), None


def _rows_scaled(x_TE: Tensor, factor_T: Tensor) -> Tensor:
    """Compute x * factor in one pass. Factors may be float32 if x is not."""
    mean, variance = torch.zeros_like(factor_T), torch.ones_like(factor_T)
    return torch.native_batch_norm(x_TE[None], factor_T, None, mean, variance, False, 0.0, 0.0)[0][0]
