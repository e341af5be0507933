"""RL on dialogues as it ships: `hamr train experiment=dialogues` with real engines, before and after RL.

    .venv/bin/python benchmarks/dialogues_run.py --seeds 0 1 2

Held-out customers are those of the test split: cases and wordings that no training dialogue has, on the procedure's
usual paths. For each, the share of turns with the expected act and its facts, and whether the case was completed.
Intervals are 95 % crossed bootstraps over seeds and customers. A finished run folder is read instead of run again.
Writes benchmarks/results/dialogues_run.json and prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from learning import crossed
from results_json import write_results

from hamr.apps.shared.machine import machine, versions
from hamr.telemetry.ledger import Ledger

HERE = Path(__file__).resolve().parent
STAGES = ("base", "sft", "rl-20", "rl-40", "rl")
TURNS = """SELECT run, prompt, AVG(value) FROM components WHERE name = 'exact_act' AND run LIKE '%/eval-%/dialogues'
    GROUP BY run, prompt ORDER BY prompt"""
ENDS = """SELECT run, prompt, json_extract(c.value, '$.outcome.value')
    FROM records, json_each(record, '$.episode.components') AS c
    WHERE run LIKE '%/eval-%/dialogues' AND json_extract(c.value, '$.name') = 'completion' ORDER BY prompt"""


def finished(seed: int, out: Path) -> Path:
    """Return the seed's run folder, made now if it is not there."""
    folder = out / f"seed_{seed}"
    if not (folder / "summary.json").is_file():
        job = [sys.executable, "-m", "hamr", "train", "experiment=dialogues"]
        subprocess.run([*job, f"experiment.seed={seed}", f"experiment.run_dir={folder}"], check=True)
    return folder


def by_customer(folder: Path) -> dict[str, dict[str, list[float]]]:
    """Return figure -> stage -> its value for each held-out customer, in the order of their ids."""
    found: dict[str, dict[str, list[float]]] = {"exact turns": {}, "completed": {}}
    with Ledger(folder / "ledger.sqlite", readonly=True) as ledger:
        for figure, query in (("exact turns", TURNS), ("completed", ENDS)):
            for run, _, value in ledger.query(query):
                stage = run.partition("/eval-")[2].removesuffix("/dialogues")
                found[figure].setdefault(stage, []).append(value)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--out", type=Path, default=Path("runs/dialogues_run"), help="folder of the runs")
    args = parser.parse_args()
    folders = {seed: finished(seed, args.out) for seed in args.seeds}
    runs = {seed: by_customer(folder) for seed, folder in folders.items()}
    timing = {seed: json.loads((folder / "summary.json").read_text())["timing"] for seed, folder in folders.items()}
    figures: dict[str, Any] = {}
    print("| | seed | before SFT | after SFT | 20 | 40 | at the end | gain |\n|---|---|---|---|---|---|---|---|")
    for name in ("exact turns", "completed"):
        means = {seed: {stage: float(np.mean(run[name][stage])) for stage in STAGES} for seed, run in runs.items()}
        gains = crossed(np.array([np.subtract(run[name]["rl"], run[name]["sft"]) for run in runs.values()]))
        figures[name] = {"gain": gains, "seeds": means, "customers": len(next(iter(runs.values()))[name]["rl"])}
        for seed, own in means.items():
            shown = " | ".join(f"{own[stage]:.3f}" for stage in STAGES)
            print(f"| {name} | {seed} | {shown} | {own['rl'] - own['sft']:+.3f} |")
        print(f"| **{name}** | | | | | | | {gains['mean']:+.3f} [{gains['low']:+.3f}, {gains['high']:+.3f}] |")
    body = {"machine": machine(), "versions": versions(), "seeds": args.seeds, "figures": figures, "timing": timing}
    write_results(HERE / "results" / "dialogues_run.json", body)


if __name__ == "__main__":
    main()
