"""Speed of matrix products on this CPU, by number format.

`python -m hamr.models.precision` prints the figures as JSON. `hamr doctor` runs it in a separate process, so that a
broken installation of torch does not break the command.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from hamr.config.schema import Config
from hamr.hardware import cpu_prefers_bfloat16

SIZE = 512


def measure_gflops(seconds: float = 0.5) -> dict[str, float]:
    """Return GFLOP/s per number format of the fastest of several square matrix products on one thread.

    Args:
        seconds: Time to measure each format. A single product may take longer.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return {name: _gflops(getattr(torch, name), seconds) for name in ("float32", "bfloat16")}
    finally:
        torch.set_num_threads(threads)


def _gflops(dtype: object, seconds: float) -> float:
    import torch

    a = torch.ones(SIZE, SIZE, dtype=dtype)  # type: ignore[call-overload]
    torch.mm(a, a)
    end, fastest = time.perf_counter() + seconds, math.inf
    while math.isinf(fastest) or time.perf_counter() < end:
        start = time.perf_counter()
        torch.mm(a, a)
        fastest = min(fastest, time.perf_counter() - start)
    return 2 * SIZE**3 / fastest / 1e9


@dataclass(frozen=True, kw_only=True)
class Computation:
    """Number format of one part of a job (`trainer`, `pools.judge`), and whether the part runs on a GPU."""

    part: str
    dtype: str
    on_gpu: bool


def computations(config: Config) -> list[Computation]:
    """Return the computations of an RL run: the rollout engines, the trainer and the pools that hamr serves."""
    engine = config.rollout.engine
    pools = {name: pool for name, pool in config.pools.items() if pool.type != "openai"}
    return [
        Computation(part="model", dtype=config.model.dtype, on_gpu=engine.num_gpus > 0),
        trainer_computation(config),
        *(Computation(part=f"pools.{n}", dtype=p.dtype, on_gpu=p.engine.num_gpus > 0) for n, p in pools.items()),
    ]


def trainer_computation(config: Config) -> Computation:
    return Computation(part="trainer", dtype=config.trainer.dtype, on_gpu=config.trainer.num_gpus > 0)


def precision_notes(parts: Sequence[Computation]) -> list[str]:
    """Return the resolved number formats as one line, and a warning if bfloat16 is slower than float32."""
    notes = ["dtype: " + ", ".join(f"{p.part} {p.dtype}" for p in parts)]
    slow = [p.part for p in parts if p.dtype == "bfloat16" and not p.on_gpu]
    if slow and not cpu_prefers_bfloat16():
        speed = measure_gflops()
        notes.append(
            f"warning: on this CPU bfloat16 is {speed['float32'] / speed['bfloat16']:.1f} times slower than float32 "
            f"({speed['bfloat16']:.1f} against {speed['float32']:.1f} GFLOP/s); set dtype=auto or float32 for "
            + ", ".join(slow)
        )
    return notes


if __name__ == "__main__":
    print(json.dumps(measure_gflops()))
