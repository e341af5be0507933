"""Time and memory of `make train` after the installation: `hamr train experiment=quickstart` with an empty cache.

    .venv/bin/python benchmarks/quickstart_time.py --out runs/quickstart_time

Runs the job once with the CPU's own instructions and once as on a CPU without AVX-512 (`ATEN_CPU_CAPABILITY=avx2`,
`ONEDNN_MAX_CPU_ISA=AVX2`; dtype=auto is float32 then, and vLLM loads its AVX2 kernels). Run it on a quiet machine.
Writes benchmarks/results/quickstart_time.json: seconds from the start of the command to each held-out evaluation and to
the end, seconds of each phase, the peak memory of all processes, and the held-out exact act.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from results_json import write_results

from hamr.apps.shared.machine import machine, versions
from hamr.telemetry.metrics import read_metrics

RESULTS = Path(__file__).resolve().parent / "results" / "quickstart_time.json"
CPUS = {"own": {}, "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}}


def measure(out: Path, cpu: str) -> dict[str, Any]:
    """Train with an empty cache, and return the figures."""
    folder = out / cpu
    cache = {"HAMR_CACHE": str(out / f"cache_{cpu}"), "TORCHINDUCTOR_CACHE_DIR": str(out / f"inductor_{cpu}")}
    began = time.time()
    command = [sys.executable, "-m", "hamr", "train", "experiment=quickstart", f"experiment.run_dir={folder}"]
    subprocess.run(command, env=os.environ | CPUS[cpu] | cache, check=True)
    total = time.time() - began
    rows = [row for row in read_metrics(folder / "metrics.jsonl") if row["stage"].startswith("eval-")]
    summary = json.loads((folder / "summary.json").read_text())
    return {
        "total_s": total,
        "evaluation_s": {row["stage"]: row["time"] - began for row in rows},
        "exact_act": {row["stage"]: row[f"eval/{row['stage'].removeprefix('eval-')}/exact_act"] for row in rows},
        "timing": summary["timing"],
        "memory_gb_peak": summary["memory_gb_peak"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs") / "quickstart_time", help="a new folder of the runs")
    args = parser.parse_args()
    args.out.mkdir(parents=True)
    out = args.out.resolve()
    body: dict[str, Any] = {"machine": machine(), "versions": versions(), "runs": {}}
    for cpu in CPUS:
        body["runs"][cpu] = own = measure(out, cpu)
        write_results(RESULTS, body)
        print(
            f"{cpu}: {own['total_s']:.0f} s, {own['memory_gb_peak']:.1f} GB, {own['evaluation_s']}, {own['exact_act']}"
        )


if __name__ == "__main__":
    main()
