"""The CPU kernels equal the functions that they replace."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from hamr.trainer.policy_kernels import rms_norm, use_cpu_kernels, weight_gradient  # noqa: E402


def run(module: Any, x: Any, seed: int = 1) -> tuple[Any, Any, dict[str, Any]]:
    x = x.clone().requires_grad_()
    out = module(x)
    torch.manual_seed(seed)
    out.backward(torch.randn(out.shape).to(out.dtype))
    return out.detach(), x.grad, {name: p.grad for name, p in module.named_parameters()}


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(1, 7, 24), (2, 700, 24), (3, 5, 4, 24)])
@pytest.mark.parametrize("kind", ["LlamaRMSNorm", "Qwen3RMSNorm"])
@pytest.mark.parametrize(("dtype", "within"), [("float32", 1e-5), ("bfloat16", 0.01)])
def test_rms_norm_equals_that_of_transformers(kind: str, shape: tuple[int, ...], dtype: str, within: float) -> None:
    from transformers.models.llama import modeling_llama
    from transformers.models.qwen3 import modeling_qwen3

    plain = {"LlamaRMSNorm": modeling_llama.LlamaRMSNorm, "Qwen3RMSNorm": modeling_qwen3.Qwen3RMSNorm}[kind](24, 1e-5)
    torch.manual_seed(0)
    with torch.no_grad():
        plain.weight.normal_()
    plain = plain.to(getattr(torch, dtype))
    ours = copy.deepcopy(plain)
    use_cpu_kernels(ours)
    assert "forward" in vars(ours)
    x = 3 * torch.randn(shape).to(plain.weight.dtype) + 1
    (*expected, d_weights), (*found, ours_d_weights) = run(plain, x), run(ours, x)
    for theirs, own in zip((*expected, d_weights["weight"]), (*found, ours_d_weights["weight"]), strict=True):
        assert (own - theirs).float().norm() <= within * theirs.float().norm()


@pytest.mark.parametrize("types", [("float32", "bfloat16"), ("bfloat16", "float32")])
def test_mixed_dtype_norm_is_computed_in_the_wider_dtype(types: tuple[str, str]) -> None:
    torch.manual_seed(0)
    shapes = zip(((5, 8), (8,)), types, strict=True)
    x, weight = (torch.randn(shape).to(getattr(torch, name)).requires_grad_() for shape, name in shapes)
    out = rms_norm(x, weight, 1e-5)
    out.sum().backward()
    plain = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-5) * weight.float()
    assert out.dtype is torch.float32 and x.grad.dtype is x.dtype and weight.grad.dtype is weight.dtype
    torch.testing.assert_close(out, plain)


def test_norm_scaled_by_one_plus_weight_is_not_replaced() -> None:
    class OtherRMSNorm(torch.nn.Module):
        variance_epsilon = 1e-6

        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(8))

        def forward(self, x: Any) -> Any:
            return rms_norm(x, 1 + self.weight, self.variance_epsilon)

    module = OtherRMSNorm()
    use_cpu_kernels(module)
    assert "forward" not in vars(module)


@pytest.mark.parametrize("features", [(24, 64), (64, 24)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_bfloat16_layer_agrees_within_its_precision(features: tuple[int, int], bias: bool) -> None:
    torch.manual_seed(0)
    plain = torch.nn.Linear(*features, bias=bias).to(torch.bfloat16)
    ours = copy.deepcopy(plain)
    use_cpu_kernels(ours)
    x = torch.randn(2, 700, features[0]).to(torch.bfloat16)
    torch.testing.assert_close(run(ours, x), run(plain, x), atol=0.3, rtol=0.02)


@pytest.mark.parametrize(("dtype", "within"), [("float32", 1e-5), ("bfloat16", 0.03)])
@pytest.mark.parametrize("bias", [True, False])
def test_gated_mlp_equals_that_of_transformers(dtype: str, within: float, bias: bool) -> None:
    from transformers.models.llama.modeling_llama import LlamaConfig, LlamaMLP

    torch.manual_seed(0)
    plain = LlamaMLP(LlamaConfig(hidden_size=24, num_attention_heads=2, intermediate_size=64, mlp_bias=bias)).to(
        getattr(torch, dtype)
    )
    ours = copy.deepcopy(plain)
    use_cpu_kernels(ours)
    assert vars(ours)["forward"].func.__name__ == "_gated_forward"
    x = torch.randn(2, 700, 24).to(getattr(torch, dtype))
    for mine, expected in zip(_flat(run(ours, x)), _flat(run(plain, x)), strict=True):
        assert float((mine - expected).norm() / expected.norm()) < within


def _flat(results: tuple[Any, Any, dict[str, Any]]) -> list[Any]:
    return [results[0], results[1], *results[2].values()]


def test_gated_mlp_with_another_activation_is_not_replaced() -> None:
    from transformers.models.llama.modeling_llama import LlamaConfig, LlamaMLP

    module = LlamaMLP(LlamaConfig(hidden_size=24, num_attention_heads=2, intermediate_size=64, hidden_act="gelu"))
    use_cpu_kernels(module)
    assert "forward" not in vars(module)


def test_autocast_weights_get_gradients_in_their_own_dtype() -> None:
    layer = torch.nn.Linear(8, 4)
    use_cpu_kernels(layer)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, _, gradients = run(layer, torch.randn(6, 8))
    assert out.dtype is torch.bfloat16
    assert {g.dtype for g in gradients.values()} == {torch.float32}


@pytest.mark.parametrize("rows", [1, 512, 1300])
def test_weight_gradient_is_the_sum_over_all_rows(rows: int) -> None:
    grad, x = torch.randn(rows, 5, dtype=torch.float64), torch.randn(rows, 9, dtype=torch.float64)
    torch.testing.assert_close(weight_gradient(grad, x), grad.t() @ x)
    torch.testing.assert_close(weight_gradient(x, grad), x.t() @ grad)
