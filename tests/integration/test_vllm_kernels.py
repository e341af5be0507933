"""The fused kernels against their formulas, and the modules that use them."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from hamr.config.pools import EngineConfig
from hamr.rollout.vllm_settings import engine_env

pytestmark = pytest.mark.integration  # it imports vLLM


@pytest.fixture(scope="module", autouse=True)
def kernels() -> None:
    from vllm.platforms import current_platform

    current_platform.import_kernels()


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 2e-2)])
def test_fused_norms_match_the_formula(dtype: str, tolerance: float) -> None:
    """x / sqrt(mean x^2 + eps) * w; with a residual, of the sum, which is returned as well."""
    import torch

    from hamr.rollout.vllm_kernels import rms_norm

    def expected(values: Any) -> Any:
        wide = values.float()
        return wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.float()

    torch.manual_seed(0)
    x, residual = (torch.randn(5, 96).to(getattr(torch, dtype)) for _ in range(2))
    weight = torch.rand(96).to(x.dtype)
    module = SimpleNamespace(weight=torch.nn.Parameter(weight), variance_epsilon=1e-5)
    torch.testing.assert_close(rms_norm(module, x).float(), expected(x), atol=tolerance, rtol=tolerance)
    total = x + residual
    normed, summed = rms_norm(module, x.clone(), residual.clone())
    torch.testing.assert_close(summed.float(), total.float(), atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(normed.float(), expected(total), atol=tolerance, rtol=tolerance)


@pytest.mark.deep
def test_only_supported_modules_are_replaced() -> None:
    import torch
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.activation import GeluAndMul, SiluAndMul
    from vllm.model_executor.layers.layernorm import RMSNorm

    from hamr.rollout.vllm_kernels import use_fused_kernels

    with set_current_vllm_config(VllmConfig()):
        plain, bare, partial = RMSNorm(64), RMSNorm(64, has_weight=False), RMSNorm(64, var_hidden_size=32)
        model = torch.nn.ModuleList([plain, bare, partial, SiluAndMul(), GeluAndMul(), torch.nn.Linear(64, 64)])
    wide = torch.randn(3, 5, 192)
    whole, heads = wide[0, :, :64].contiguous(), wide[..., 64:128]  # heads: cut out of a wider product
    before = [module(x.clone() if x is whole else x) for module in model for x in (whole, heads)]
    assert use_fused_kernels(model) == 1
    after = [module(x.clone() if x is whole else x) for module in model for x in (whole, heads)]
    for was, now in zip(before, after, strict=True):
        torch.testing.assert_close(now, was)
    # A norm whose weights are of another type than its input takes the plain way.
    assert plain(whole.bfloat16()).dtype == torch.bfloat16


KERNELS = """
from hamr.rollout.vllm_kernels import follow_cpu_capability
follow_cpu_capability()
import vllm._custom_ops
print(*{line.rsplit("/", 1)[-1].strip() for line in open("/proc/self/maps") if "/vllm/_C" in line})
"""


def test_avx2_capability_loads_the_avx2_kernels():
    environment = os.environ | engine_env(EngineConfig()) | {"ATEN_CPU_CAPABILITY": "avx2"}
    done = subprocess.run([sys.executable, "-c", KERNELS], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["_C_AVX2.abi3.so"]
