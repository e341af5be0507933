"""Number formats that this machine's hardware supports."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

DType = Literal["auto", "bfloat16", "float32"]

BFLOAT16_FLAGS = frozenset({"avx512_bf16", "amx_bf16"})
"""CPU flags of native bfloat16 matrix products. Without them, products are up to 90 times slower than in float32."""
_ATEN_WITHOUT = frozenset({"default", "avx2"})
_ONEDNN_WITH = frozenset({"ALL", "DEFAULT", "AVX512_CORE_BF16", "AVX512_CORE_FP16"})


def cpu_has_bfloat16() -> bool:
    """Return whether the CPU computes bfloat16 and the environment lets the kernels use it."""
    return computes_bfloat16(_cpu_flags(), os.environ)


def computes_bfloat16(flags: frozenset[str], environment: Mapping[str, str]) -> bool:
    """Return whether kernels compute bfloat16 natively.

    Args:
        flags: CPU flags as in /proc/cpuinfo.
        environment: `ATEN_CPU_CAPABILITY` and `ONEDNN_MAX_CPU_ISA` can disable instruction sets that the CPU has.
    """
    if disables_avx512(environment):
        return False
    isa = environment.get("ONEDNN_MAX_CPU_ISA", "").upper() or "DEFAULT"
    return bool(flags & BFLOAT16_FLAGS) and (isa in _ONEDNN_WITH or "AMX" in isa)


def disables_avx512(environment: Mapping[str, str]) -> bool:
    """Return True if `ATEN_CPU_CAPABILITY` disables AVX-512."""
    return environment.get("ATEN_CPU_CAPABILITY", "").lower() in _ATEN_WITHOUT


def resolve_dtype(dtype: DType, *, on_gpu: bool) -> Literal["bfloat16", "float32"]:
    """Resolve `auto`: bfloat16 on a GPU or on a CPU that supports it, float32 elsewhere."""
    if dtype != "auto":
        return dtype
    return "bfloat16" if on_gpu or cpu_has_bfloat16() else "float32"


@functools.cache
def _cpu_flags() -> frozenset[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line.partition(":")[2] for line in lines if line.startswith("flags")), "").split())
