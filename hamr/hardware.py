"""Number formats that this machine's hardware is fastest in."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

DType = Literal["auto", "bfloat16", "float32"]

CPU_INFO = Path("/proc/cpuinfo")
_ATEN_WITHOUT = frozenset({"default", "avx2"})
_ONEDNN_ALL = frozenset({"ALL", "DEFAULT"})
_ONEDNN_AVX512_BF16 = _ONEDNN_ALL | {"AVX512_CORE_BF16", "AVX512_CORE_FP16"}


def cpu_prefers_bfloat16() -> bool:
    """Return whether this CPU, with the kernels that the environment allows, is faster in bfloat16 than in float32."""
    return prefers_bfloat16(proc_field(CPU_INFO, "flags"), proc_field(CPU_INFO, "vendor_id"), os.environ)


def prefers_bfloat16(flags: str, vendor: str, environment: Mapping[str, str]) -> bool:
    """Return whether matrix products are faster in bfloat16 than in float32.

    They are with AMX, and with AVX-512-BF16 on AMD's CPUs. On Intel's, the instructions of AVX-512-BF16 are slower than
    those of float32: a Xeon whose virtual machine hides AMX is half as fast in bfloat16. Without both, products in
    bfloat16 are up to 90 times slower.

    Args:
        flags: CPU flags as in /proc/cpuinfo, separated by spaces.
        vendor: The CPU's `vendor_id`.
        environment: `ATEN_CPU_CAPABILITY` and `ONEDNN_MAX_CPU_ISA` can disable instruction sets that the CPU has.
    """
    if disables_avx512(environment):
        return False
    has = flags.split()
    isa = environment.get("ONEDNN_MAX_CPU_ISA", "").upper() or "DEFAULT"
    if "amx_bf16" in has and (isa in _ONEDNN_ALL or "AMX" in isa):
        return True
    return "avx512_bf16" in has and vendor != "GenuineIntel" and (isa in _ONEDNN_AVX512_BF16 or "AMX" in isa)


def disables_avx512(environment: Mapping[str, str]) -> bool:
    """Return True if `ATEN_CPU_CAPABILITY` disables AVX-512."""
    return environment.get("ATEN_CPU_CAPABILITY", "").lower() in _ATEN_WITHOUT


def resolve_dtype(dtype: DType, *, on_gpu: bool) -> Literal["bfloat16", "float32"]:
    """Resolve `auto`: bfloat16 on a GPU or on a CPU that is faster in it, float32 elsewhere."""
    if dtype != "auto":
        return dtype
    return "bfloat16" if on_gpu or cpu_prefers_bfloat16() else "float32"


@functools.cache
def proc_field(path: Path, key: str) -> str:
    """Return the value of the first `key: value` line of a file in /proc; empty if there is none."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == key), "")
