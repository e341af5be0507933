"""Error of `hamr plan`'s simulation of a step against the steps of real runs.

    hamr train experiment=quickstart experiment.run_dir=runs/q0
    python benchmarks/plan_check.py runs/q0 [RUN ...]

Runs may be asynchronous (experiment.asynchrony.max_policy_age) or oversampled; what is simulated is then the time that
a step waits for its groups, and its error is relative to the whole step.

For each run the simulation is fitted to the first half of its RL steps and predicts all of them, as `hamr plan
from=RUN` prints it. Written down, apart for the steps that were fitted to and for those that were not: mean seconds
predicted and measured, the mean of |predicted - measured| / measured, of generating and scoring (what is simulated) and
of the whole step, and its median. Writes results/plan_check.json and prints a table in Markdown.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean, median
from typing import Any

from results_json import write_results

from hamr.apps.plan.measured import Prediction, mean_errors
from hamr.apps.plan.run import read_past


def checked(run: Path) -> dict[str, Any]:
    past = read_past(run)
    config = past.config
    made = past.simulation.compare(past.steps)
    return {
        "experiment": config.experiment.name,
        "seed": config.experiment.seed,
        "max_policy_age": config.experiment.asynchrony.max_policy_age,
        "oversample": config.algorithm.dynamic_sampling.oversample,
        "steps": [vars(p) for p in made],
        "fitted": means(made, fitted=True),
        "predicted": means(made, fitted=False),
    }


def means(made: list[Prediction], *, fitted: bool) -> dict[str, float]:
    mine = [p for p in made if p.fitted is fitted]
    score, whole = mean_errors(made, fitted=fitted)
    return {
        "steps": len(mine),
        "score_predicted_s": fmean(p.predicted_score_s for p in mine),
        "score_measured_s": fmean(p.measured_score_s for p in mine),
        "score_error": score,
        "step_predicted_s": fmean(p.predicted_s for p in mine),
        "step_measured_s": fmean(p.measured_s for p in mine),
        "step_error": whole,
        "step_median_error": median(p.error for p in mine),
        # Errors of steps in sequence cancel out where one waits for what another did not.
        "total_error": abs(sum(p.predicted_s for p in mine) / sum(p.measured_s for p in mine) - 1),
    }


def table(runs: list[dict[str, Any]]) -> str:
    lines = [
        "| run | age | steps | generation and scores: predicted | measured | error | step: predicted | measured "
        "| error | median | of the sum |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for number, run in enumerate(runs, 1):
        for kind in ("fitted", "predicted"):
            m = run[kind]
            told = f"{m['steps']} {'fitted to' if kind == 'fitted' else 'not fitted to'}"
            cells = [f"{m[f'{part}_{what}']:.1f} s" if what != "error" else f"{m[f'{part}_error']:.0%}"
                     for part in ("score", "step") for what in ("predicted_s", "measured_s", "error")]  # fmt: skip
            cells += [f"{m['step_median_error']:.0%}", f"{m['total_error']:.0%}"]
            name = f"{run['experiment']} {number}, seed {run['seed']}"
            lines.append(f"| {name} | {run['max_policy_age']} | {told} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "plan_check.json")
    args = parser.parse_args()
    found = [checked(run) for run in args.runs]
    write_results(args.out, {"runs": found})
    print(table(found))


if __name__ == "__main__":
    main()
