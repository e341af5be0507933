"""Times the quickstart on this CPU as it is, and with its AVX-512 and AMX units left unused.

    .venv/bin/python benchmarks/quickstart_time.py [key=value ...]

Each run is a whole `hamr train experiment=quickstart` with an empty cache, as after an installation. Writes
benchmarks/results/quickstart_time.json: wall seconds, CPU seconds of the whole machine, the seconds of each phase, peak
memory, the measured speed of matrix products, and the two constants of `hamr doctor`'s estimate that fit both runs.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import yaml

RESULTS = Path(__file__).parent / "results/quickstart_time.json"
MODES: dict[str, dict[str, str]] = {
    "native": {},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
}


def timed(environment: dict[str, str], overrides: list[str]) -> dict[str, Any]:
    """Run the quickstart once. Keep the machine idle otherwise."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        env = {**os.environ, **environment, "HAMR_CACHE": f"{folder}/cache"}
        speed = subprocess.run(
            [sys.executable, "-m", "hamr.backends.precision"], env=env, check=True, capture_output=True, text=True
        )
        job = [sys.executable, "-m", "hamr", "train", "experiment=quickstart", f"experiment.run_dir={folder}/run"]
        before, start = _cpu_seconds(), time.monotonic()
        subprocess.run([*job, *overrides], env=env, check=True)
        wall = time.monotonic() - start
        summary = json.loads(Path(folder, "run/summary.json").read_text())
        return {
            "wall_s": round(wall, 1),
            "cpu_s": round(_cpu_seconds() - before, 1),
            "gflops": json.loads(speed.stdout),
            "dtype": yaml.safe_load(Path(folder, "run/config.yaml").read_text())["model"]["dtype"],
            "phases_s": summary["timing"],
            "memory_gib_peak": summary["memory_gb_peak"],
            "machine": summary["machine"],
            "versions": summary["versions"],
            "stages": summary["stages"],
        }


def _cpu_seconds() -> float:
    used = psutil.cpu_times()
    return float(used.user + used.nice + used.system)


def fit(runs: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Return `seconds` and `tflop` of `wall = seconds + tflop / (speed of two threads)`, the line through both runs."""
    points = [(1e3 / (2 * run["gflops"][run["dtype"]]), run["wall_s"]) for run in runs.values()]
    (x1, y1), (x2, y2) = points
    tflop = (y2 - y1) / (x2 - x1)
    return {"seconds": round(y1 - tflop * x1, 1), "tflop": round(tflop, 2)}


def main() -> None:
    runs = {mode: timed(environment, sys.argv[1:]) for mode, environment in MODES.items()}
    found = {"overrides": sys.argv[1:], "system": platform.platform(), "runs": runs, "fit": fit(runs)}
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    for mode, run in runs.items():
        figures = f"{run['wall_s']:.0f} s wall, {run['cpu_s']:.0f} s CPU, {run['memory_gib_peak']} GiB"
        print(f"{mode}: {run['dtype']}, {figures}")
    print(f"estimate: {found['fit']}")


if __name__ == "__main__":
    main()
