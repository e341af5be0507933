"""Effects of the algorithm and of the age of responses: RL from one warm-up policy at equal samples per step.

    .venv/bin/python benchmarks/learning_arms.py algorithms --seeds 0 1 2
    .venv/bin/python benchmarks/learning_arms.py ages --seeds 0 1 2 3 4

One warm-up of `experiment=quickstart` gives every run its policy; seeds differ in the prompts and the sampling of RL.
All arms train on every group, with `algorithm.std_floor=0.1`, so that each step has the same number of responses, and
without references for groups that are all wrong. `algorithms`: the twelve values of `algorithm=`, with two optimiser
steps per batch, because with one the ratios are 1 and most objectives are equal. `ages`: values of
`experiment.asynchrony.max_policy_age`, the largest also without off-policy correction and with a learning rate that
rises in two steps instead of fourteen. Held-out exact act is measured on points in wordings of the test split, one
sampled response each, after the warm-up and thrice in RL.

Writes benchmarks/results/learning_<arms>.json and docs/images/learning_<arms>.svg (again: learning_curve.py), and
prints a table in Markdown; intervals are 95 % crossed bootstraps over seeds and points. A finished run folder is read
instead of run again. `--add` keeps the seeds of an earlier call in that file; new seeds start from the warm-up in
`--out`, which is another one where that folder is new.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from learning import Items, as_rows, crossed, exact_items, from_rows
from learning_curve import draw_picture
from results_json import write_results

from hamr.apps.shared.machine import machine, versions
from hamr.telemetry.metrics import read_metrics

HERE = Path(__file__).resolve().parent
ALGORITHMS = (
    "dapo", "grpo", "dr_grpo", "gspo", "cispo", "rloo", "reinforce_plus_plus", "gmpo", "sapo", "dppo", "maxrl", "gdpo",
)  # fmt: skip
AGES = (0, 1, 2, 4)
ARMS = {
    "algorithms": {
        name: [f"algorithm={name}", "algorithm.minibatches=2", "algorithm.dynamic_sampling.enabled=false"]
        for name in ALGORITHMS
    },
    "ages": {
        **{f"age {age}": [f"experiment.asynchrony.max_policy_age={age}"] for age in AGES},
        f"age {AGES[-1]}, not corrected": [
            f"experiment.asynchrony.max_policy_age={AGES[-1]}",
            "algorithm.importance.cap=null",
        ],
        f"age {AGES[-1]}, short warm-up": [
            f"experiment.asynchrony.max_policy_age={AGES[-1]}",
            "trainer.warmup_frac=0.05",
        ],
    },
}
BASE = {"algorithms": "dapo", "ages": "age 0"}
"""The arm that the others are compared with."""
EQUAL_SAMPLES = {
    "experiment.checkpoint.every": 1000,
    "algorithm.dynamic_sampling.enabled": "false",
    "algorithm.all_wrong.reference": "false",
    "algorithm.std_floor": 0.1,
    "scorers.check_every": 0,
    "scorers.contexts": 0,
}
"""Settings with which every step trains on all of its groups, and nothing but steps takes time."""
PHASES = {"waits for groups": "rollout_score", "trains": "train", "loads weights": "sync", "step": "total"}


def settings(folder: Path, seed: int, args: argparse.Namespace) -> list[str]:
    """Return the overrides of every run."""
    given = {
        "experiment": "quickstart",
        "experiment.seed": seed,
        "experiment.run_dir": folder,
        "experiment.prompts_per_step": args.prompts,
        "trainer.warmup_frac": 0.3,
        "data.sage.test": args.points,
        **EQUAL_SAMPLES,
    }
    return [f"{key}={value}" for key, value in given.items()]


def train(folder: Path, overrides: list[str]) -> None:
    if (folder / "summary.json").is_file():
        return
    log = folder.with_suffix(".log")
    with log.open("w") as output:
        done = subprocess.run([sys.executable, "-m", "hamr", "train", *overrides], stdout=output, stderr=output)
    if done.returncode:
        raise SystemExit(f"hamr train failed, see {log}")


def timing(folder: Path) -> dict[str, Any]:
    """Return the mean seconds of a step's phases, and those of all steps up to 25, 50 and 100 % of the run."""
    rows = [row for row in read_metrics(folder / "metrics.jsonl") if row["stage"] == "rl"]
    totals = np.cumsum([row["timing/step/total"] for row in rows])
    return {
        "phases": {name: fmean(row[f"timing/step/{key}"] for row in rows) for name, key in PHASES.items()},
        "total_s": {share: float(totals[max(0, len(totals) * share // 100 - 1)]) for share in (25, 50, 100)},
        "policy_age": fmean(row["rollout/policy_age/max"] for row in rows),
        "stale_groups": sum(row.get("rollout/stale_groups", 0.0) for row in rows),
        "responses": sum(row["rollout/responses"] for row in rows),
        "machine": machine()["cpu"],
    }


def earlier_times(stored: Mapping[str, Any]) -> dict[str, dict[int, Any]]:
    """Return the timing of the runs in a results file: arm -> seed -> what `timing` returned."""
    return {
        arm: {
            int(seed): {
                "machine": stored["machine"]["cpu"],
                **run,
                "total_s": {int(share): seconds for share, seconds in run["total_s"].items()},
            }
            for seed, run in seeds.items()
        }
        for arm, seeds in stored["timing"].items()
    }


def shares(items: Mapping[str, tuple[str, float]]) -> np.ndarray:
    return np.array([items[item][1] for item in sorted(items)])


def compared(runs: dict[str, dict[int, Items]], base: str) -> dict[str, Any]:
    """Return every arm's exact act by stage, its gain over the warm-up, and its difference from the arm `base`."""
    found: dict[str, Any] = {}
    for arm, seeds in runs.items():
        stages = list(next(iter(seeds.values())))
        curve = {stage: fmean(float(shares(own[stage]).mean()) for own in seeds.values()) for stage in stages}
        gains = np.array([shares(own["rl"]) - shares(own["base"]) for own in seeds.values()])
        own = {"curve": curve, "best": max(curve.values()), "gain": crossed(gains)}
        own["seeds"] = {seed: float(shares(items["rl"]).mean()) for seed, items in seeds.items()}
        common = sorted(set(seeds) & set(runs[base]))
        if arm != base and common:
            own["against_base"] = crossed(
                np.array([shares(seeds[seed]["rl"]) - shares(runs[base][seed]["rl"]) for seed in common])
            )
        found[arm] = own
    return found


def interval(value: Mapping[str, float]) -> str:
    return f"{value['mean']:+.3f} [{value['low']:+.3f}, {value['high']:+.3f}]"


def markdown(found: Mapping[str, Any], times: Mapping[str, Mapping[int, Any]], base: str) -> str:
    stages = [stage for stage in next(iter(found.values()))["curve"]]
    head = ["arm", *stages, "gain", f"against {base}", *PHASES, "25 %", "50 %", "100 %"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for arm, own in found.items():
        runs = list(times[arm].values())
        ends = [f"{value:.3f}" for value in own["curve"].values()]
        ahead = interval(own["against_base"]) if "against_base" in own else ""
        phases = [f"{fmean(run['phases'][name] for run in runs):.2f} s" for name in PHASES]
        totals = [f"{fmean(run['total_s'][share] for run in runs):.0f} s" for share in (25, 50, 100)]
        lines.append(f"| {' | '.join([arm, *ends, interval(own['gain']), ahead, *phases, *totals])} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arms", choices=ARMS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=48, help="RL steps of each run")
    parser.add_argument("--prompts", type=int, default=16, help="prompts per RL step, with 8 responses each")
    parser.add_argument("--points", type=int, default=480, help="held-out points")
    parser.add_argument("--add", action="store_true", help="keep the seeds in the results file")
    parser.add_argument("--out", type=Path, default=Path("runs/learning_arms"), help="folder of the runs")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    start = args.out / "start"
    train(start, [*settings(start, 0, args), "experiment.steps=0"])
    policy = (max((start / "checkpoints").glob("step_*")) / "policy").absolute()
    results = HERE / "results" / f"learning_{args.arms}.json"
    stored = json.loads(results.read_text()) if args.add else None
    runs: dict[str, dict[int, Items]] = from_rows(stored["items"]) if stored else {}
    times: dict[str, dict[int, Any]] = earlier_times(stored) if stored else {}
    for seed in args.seeds:  # seed by seed, so that what is interrupted can be compared
        for arm, own in ARMS[args.arms].items():
            if seed in times.get(arm, {}):
                continue
            folder = args.out / f"{arm.replace(', ', '_').replace(' ', '_')}_{seed}"
            rl = [f"experiment.steps={args.steps}", f"experiment.eval_every={args.steps // 3}"]
            train(folder, [*settings(folder, seed, args), f"model.path={policy}", "experiment.sft.steps=0", *rl, *own])
            runs.setdefault(arm, {})[seed] = exact_items(folder)
            times.setdefault(arm, {})[seed] = timing(folder)
            head = {"steps": args.steps, "responses_per_step": 8 * args.prompts, "points": args.points}
            about = {"machine": machine(), "versions": versions()}
            body = {"arms": compared(runs, BASE[args.arms]), "timing": times, "items": as_rows(runs)}
            write_results(results, {**head, **about, **body})
    draw_picture(f"learning_{args.arms}")
    print(markdown(compared(runs, BASE[args.arms]), times, BASE[args.arms]))


if __name__ == "__main__":
    main()
