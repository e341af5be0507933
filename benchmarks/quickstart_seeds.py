"""Runs the quickstart with several seeds and shows what RL added to SFT, with the spread over the seeds.

    .venv/bin/python benchmarks/quickstart_seeds.py --seeds 0 1 2
    .venv/bin/python benchmarks/quickstart_seeds.py --name quickstart_rl_seeds experiment.sft.seed=0

Each run is a whole `hamr train experiment=quickstart`, into `--out`; a run folder that is already finished is read
instead of run again. Writes benchmarks/results/<name>.json and prints a table in Markdown. In the second form all runs
start RL from the same warm-up, and the spread is RL's own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import mean
from typing import Any

from results_json import write_results

FIGURES = {
    "action accuracy": lambda stage: stage["action_accuracy"],
    "tool-call exact match": lambda stage: stage["tool_exact_match"],
    "mean reward": lambda stage: stage["reward"]["total"],
    "format errors": lambda stage: stage["format_error_rate"],
}
STAGES = ("base", "sft", "rl")


def finished(seed: int, out: Path, overrides: list[str]) -> dict[str, Any]:
    folder = out / f"seed_{seed}"
    if not (folder / "summary.json").is_file():
        job = [sys.executable, "-m", "hamr", "train", "experiment=quickstart"]
        subprocess.run([*job, f"experiment.seed={seed}", f"experiment.run_dir={folder}", *overrides], check=True)
    return json.loads((folder / "summary.json").read_text())


def table(runs: dict[int, dict[str, Any]]) -> str:
    """One row per figure and seed: before SFT, after SFT, after RL, and what RL changed."""
    lines = ["| figure | seed | before SFT | after SFT | after RL | RL − SFT |", "|---|---|---|---|---|---|"]
    for name, figure in FIGURES.items():
        for seed, run in runs.items():
            base, sft, rl = (figure(run["stages"][stage]) for stage in STAGES)
            lines.append(f"| {name} | {seed} | {base:.3f} | {sft:.3f} | {rl:.3f} | {rl - sft:+.3f} |")
        lines.append(f"| **{name}** | **mean, spread** | {' | '.join(_spread(runs, figure, s) for s in STAGES)} | |")
    return "\n".join(lines)


def _spread(runs: dict[int, dict[str, Any]], figure: Any, stage: str) -> str:
    values = [figure(run["stages"][stage]) for run in runs.values()]
    return f"{mean(values):.3f} ({max(values) - min(values):.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--name", default="quickstart_seeds", help="of the results, and of the folder of the runs")
    parser.add_argument("--out", type=Path, help="folder of the runs; runs/<name> if not given")
    parser.add_argument("overrides", nargs="*", help="further key=value for every run")
    args = parser.parse_args()
    out = args.out or Path("runs") / args.name
    runs = {seed: finished(seed, out, args.overrides) for seed in args.seeds}
    results = Path(__file__).parent / "results" / f"{args.name}.json"
    results.parent.mkdir(exist_ok=True)
    write_results(results, {"overrides": args.overrides, "runs": runs})
    print(table(runs))
    for seed, run in runs.items():
        minutes = sum(run["timing"].values()) / 60
        print(f"seed {seed}: {minutes:.1f} min, peak {run['memory_gb_peak']:.1f} GiB, {run['machine']['cpu']}")


if __name__ == "__main__":
    main()
