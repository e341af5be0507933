"""Does RL learn? Held-out exact act of the compact policy after RL, against its own warm-up and three controls.

    .venv/bin/python benchmarks/learning.py --seeds 0 1 2 3 4                    # all arms
    .venv/bin/python benchmarks/learning.py rollout.samples_per_prompt=16 --arms rl true --seeds 0
    .venv/bin/python benchmarks/learning.py --experiment smollm2 --name learning_smollm2 --seeds 0 1 2

Arms, each a whole `hamr train experiment=...` per seed: `rl`, as it ships; `true`, the rule itself as the reranker and
no judge; `shuffled`, the rewards of `true` dealt out anew within each group; `sft`, no RL but more SFT steps, as many
as take the wall time of SFT and RL in the median `rl` run so far (of `true` without any). A finished run folder is
read instead of run again. Writes benchmarks/results/<name>.json and prints a table in Markdown; intervals are 95 %
crossed bootstraps over seeds and held-out items. `--add` keeps the runs of an earlier call in that file, whose folders
may be gone, and adds the seeds and arms of this one.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from benchmarks.results_json import write_results  # noqa: E402
from hamr.algorithms.batch import BatchBuilder  # noqa: E402
from hamr.apps.shared.machine import machine, versions  # noqa: E402
from hamr.apps.shared.preparation import load_splits  # noqa: E402
from hamr.config.load import load_config, load_dumped  # noqa: E402
from hamr.config.schema import SageDataConfig  # noqa: E402
from hamr.data.sage_samples import generate_samples  # noqa: E402
from hamr.rewards.truth import ExactAct  # noqa: E402
from hamr.telemetry.ledger import Ledger  # noqa: E402
from hamr.telemetry.metrics import read_metrics  # noqa: E402
from hamr.telemetry.record_json import record_from_json  # noqa: E402
from hamr.types import Action, Answer, Question, Reply, RolloutGroup, ScorerCall  # noqa: E402

HERE = Path(__file__).resolve().parent
ARMS = ("rl", "true", "shuffled", "sft")
RULE_POOL = (
    "pools=tiny",
    "pools.reranker.type=embedding",
    "pools.reranker.model=all-minilm-l6-v2",
    "pools.reranker.prompt=''",
    "rewards.consistency.mode=reranker",
    "rewards.consistency.judge_best_k=null",
    "scorers.on_alarm=warn",  # a rule cannot be refitted
)
RESAMPLES = 10_000


Items = dict[str, dict[str, tuple[str, float]]]
"""Stage -> held-out item -> (its act, the share of its responses that are exact)."""


class RuleScorer:
    """The truth as a scorer: 1 for a reply that takes the reference's act with its facts, else 0."""

    def __init__(self, pool: str, config: Any, model: Path) -> None:
        samples = generate_samples(SageDataConfig(train=300, validation=100, test=100))
        rule = ExactAct.of((*samples.train, *samples.validation, *samples.test))
        assert rule is not None, "generated samples name their acts"
        self.pool, self.rule = pool, rule

    async def score(self, questions: Sequence[Question]) -> list[Answer]:
        return [self._answer(question) for question in questions]

    def _answer(self, question: Question) -> Answer:
        started = time.perf_counter()
        reference, response = (question.variables[f"statement_{side}"] for side in "ab")
        same = self.rule.agree(Reply(content=reference), Reply(content=response))
        call = ScorerCall(
            pool=self.pool,
            model="rule",
            prompt_version="1",
            replica="",
            queue_s=0.0,
            service_s=time.perf_counter() - started,
            prompt_tokens=0,
            output_tokens=0,
        )
        return Answer(score=float(same), verdict="yes" if same else "no", call=call)

    async def check(self) -> None: ...

    def close(self) -> None: ...


class ShufflingBatchBuilder(BatchBuilder):
    """Deals each group's rewards out anew: the same spread, nothing to learn."""

    def rewards(self, group: RolloutGroup) -> list[float | None]:
        dealt = super().rewards(group)
        random.Random(repr(group.rollouts[0].key)).shuffle(dealt)
        return dealt


def run_here(arm: str, overrides: list[str]) -> int:
    """`hamr train` in this process, with the arm's changes."""
    import ray.cloudpickle

    from hamr.apps.shared.commands import parse_command
    from hamr.apps.train import run_actors as world
    from hamr.apps.train import stages

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    if arm in ("true", "shuffled"):
        world.start_pools = functools.partial(world.start_pools, scorer_factory=RuleScorer)  # type: ignore[assignment]
    if arm == "shuffled":
        stages.BatchBuilder = ShufflingBatchBuilder  # type: ignore[misc]
    return parse_command(["train", *overrides]).run()


def finished(arm: str, seed: int, args: argparse.Namespace, sft_steps: int | None) -> Path:
    """The arm's run folder, made now if it is not there."""
    folder = args.out / f"{arm}_{seed}"
    if not (folder / "summary.json").is_file():
        overrides = [f"experiment={args.experiment}", f"experiment.seed={seed}", f"experiment.run_dir={folder}"]
        overrides += args.overrides
        overrides += RULE_POOL if arm in ("true", "shuffled", "sft") else ()
        if sft_steps is not None:
            overrides += ["experiment.steps=0", f"experiment.sft.steps={sft_steps}"]
        child = [sys.executable, str(HERE / "learning.py"), "--here", arm, *overrides]
        before, since = os.times(), time.perf_counter()
        subprocess.run(child, check=True)
        after = os.times()
        cpu = after.children_user + after.children_system - before.children_user - before.children_system
        capability = os.environ.get("ATEN_CPU_CAPABILITY")
        spent = {"wall_s": time.perf_counter() - since, "driver_cpu_s": cpu, "cpu_capability": capability}
        (folder / "spent.json").write_text(json.dumps(spent))
    return folder


def judged(folder: Path) -> float | None:
    """Return the share of the replies in RL that the judge scored, of those that the router scored."""
    shares = [
        row.get("router/escalated_frac") for row in read_metrics(folder / "metrics.jsonl") if row["stage"] == "rl"
    ]
    known = [share for share in shares if share is not None]
    return fmean(known) if known else None


def equal_time(overrides: Sequence[str], spent: dict[str, Any]) -> int:
    """Return the SFT steps that take as long as the SFT and RL steps of the median `rl` run (of `true` without any)."""
    timings = {name: run["timing"] for name, run in spent.items()}
    for arm in ("rl", "true"):
        ratios = [own["rl"] / own["sft"] for name, own in timings.items() if name.startswith(f"{arm}_")]
        if ratios:
            return round(load_config(overrides).experiment.sft.steps * (1 + median(ratios)))
    raise SystemExit("the arm `sft` needs a run of `rl` or `true` to be as long as")


def exact_items(folder: Path, read: Callable[[Action | None], Action | None] = lambda action: action) -> Items:
    """Return the exact acts of a run's evaluations. `read` returns the action that the rule sees of each."""
    config = load_dumped(folder / "config.yaml")
    splits = load_splits(config.data, config.experiment.seed)
    samples = {s.id: s for s in splits.test}
    rule = ExactAct.of((*splits.train, *splits.validation, *splits.test))
    assert rule is not None, "the data name their acts"
    found: dict[str, dict[str, list[bool]]] = {}
    with Ledger(folder / "ledger.sqlite", readonly=True) as ledger:
        for run, text in ledger.query("SELECT run, record FROM records WHERE run LIKE '%/eval-%'"):
            record = record_from_json(text)
            sample = samples[record.key.prompt]
            own = found.setdefault(run.rpartition("/eval-")[2], {})
            own.setdefault(sample.id, []).append(rule.is_exact(read(record.action), sample))
    return {
        stage: {item: (str(samples[item].meta["act"]), float(np.mean(held))) for item, held in sorted(own.items())}
        for stage, own in found.items()
    }


def crossed(differences: np.ndarray, seed: int = 0) -> dict[str, float]:
    """Mean of a seeds x items table, with the middle 95 % when both are drawn anew."""
    rng = np.random.default_rng(seed)
    seeds, items = differences.shape
    means = [
        differences[np.ix_(rng.integers(seeds, size=seeds), rng.integers(items, size=items))].mean()
        for _ in range(RESAMPLES)
    ]
    low, high = np.quantile(means, [0.025, 0.975])
    return {"mean": float(differences.mean()), "low": float(low), "high": float(high)}


def as_rows(runs: dict[str, dict[int, Items]]) -> dict[str, Any]:
    """Return the runs' held-out items as JSON: each item's act once, and the values of a stage in one line."""
    stages = next(iter(next(iter(runs.values())).values()))
    acts = {item: act for item, (act, _) in next(iter(stages.values())).items()}
    shares = {
        arm: {
            seed: {stage: " ".join(str(own[item][1]) for item in acts) for stage, own in items.items()}
            for seed, items in of.items()
        }
        for arm, of in runs.items()
    }
    return {"acts": acts, "shares": shares}


def from_rows(rows: dict[str, Any]) -> dict[str, dict[int, Items]]:
    """Invert `as_rows`."""
    acts = list(rows["acts"].items())
    return {
        arm: {
            int(seed): {
                stage: {item: (act, float(value)) for (item, act), value in zip(acts, values.split(), strict=True)}
                for stage, values in stages.items()
            }
            for seed, stages in seeds.items()
        }
        for arm, seeds in rows["shares"].items()
    }


def compared(runs: dict[str, dict[int, Items]]) -> dict[str, Any]:
    """Every arm's last stage against its own warm-up, per act too, and against the SFT-only control."""

    def last(arm: str, seed: int) -> dict[str, tuple[str, float]]:
        stages = runs[arm][seed]
        return stages.get("rl", stages["sft"])

    def table(arm: str, seeds: Sequence[int], of: Any, against: Any) -> np.ndarray:
        rows = []
        for seed in seeds:
            ours, theirs = of(seed), against(seed)
            rows.append([ours[item][1] - theirs[item][1] for item in sorted(ours)])
        return np.array(rows)

    found: dict[str, Any] = {}
    for arm, seeds in runs.items():
        own: dict[str, Any] = {"seeds": {}}
        for seed, stages in sorted(seeds.items()):
            now = last(arm, seed)
            acts = sorted({act for act, _ in now.values()})
            own["seeds"][seed] = {
                stage: {
                    "exact_act": float(np.mean([v for _, v in items.values()])),
                    "by_act": {a: float(np.mean([v for act, v in items.values() if act == a])) for a in acts},
                }
                for stage, items in stages.items()
            }
        own["gain"] = crossed(
            table(arm, sorted(seeds), lambda seed, a=arm: last(a, seed), lambda seed, a=arm: runs[a][seed]["sft"])
        )
        common = sorted(set(seeds) & set(runs.get("sft", {})))
        if arm != "sft" and common:
            ahead = table(arm, common, lambda seed, a=arm: last(a, seed), lambda seed: last("sft", seed))
            own["over_sft_only"] = {**crossed(ahead), "seeds": common}
        found[arm] = own
    return found


def markdown(found: dict[str, Any]) -> str:
    lines = ["| arm | seed | after SFT | at the end | gain | least gain of an act |", "|---|---|---|---|---|---|"]
    for arm, own in found.items():
        for seed, stages in own["seeds"].items():
            start, end = stages["sft"], stages.get("rl", stages["sft"])
            worst, act = min((end["by_act"][a] - start["by_act"][a], a) for a in end["by_act"])
            change = end["exact_act"] - start["exact_act"]
            ends = f"{start['exact_act']:.3f} | {end['exact_act']:.3f} | {change:+.3f}"
            lines.append(f"| {arm} | {seed} | {ends} | {worst:+.2f} {act} |")
        for name in ("gain", "over_sft_only"):
            if name in own:
                lines.append(
                    f"| **{arm}** | **{name}** | | | {own[name]['mean']:+.3f} [{own[name]['low']:+.3f}, "
                    f"{own[name]['high']:+.3f}] | |"
                )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--experiment", default="quickstart")
    parser.add_argument("--name", default="learning", help="of the results, and of the folder of the runs")
    parser.add_argument("--add", action="store_true", help="keep the runs in the results file")
    parser.add_argument("--out", type=Path, help="folder of the runs; runs/<name> if not given")
    parser.add_argument("overrides", nargs="*", help="further key=value for every run")
    args = parser.parse_args()
    args.out = args.out or Path("runs") / args.name
    results = HERE / "results" / f"{args.name}.json"
    earlier = json.loads(results.read_text()) if args.add else {}
    runs: dict[str, dict[int, Items]] = from_rows(earlier["items"]) if args.add else {}
    spent: dict[str, Any] = earlier.get("runs", {})
    for seed in args.seeds:  # seed by seed, so that what is interrupted can be compared
        for arm in (a for a in ARMS if a in args.arms):
            if args.add and seed in runs.get(arm, {}):
                continue
            steps = None
            if arm == "sft":
                steps = equal_time([f"experiment={args.experiment}", *args.overrides], spent)
            folder = finished(arm, seed, args, steps)
            runs.setdefault(arm, {})[seed] = exact_items(folder)
            summary = json.loads((folder / "summary.json").read_text())
            times = folder / "spent.json"  # not in a folder of `hamr train` itself
            own = json.loads(times.read_text()) if times.is_file() else {}
            spent[f"{arm}_{seed}"] = {
                "timing": summary["timing"],
                "memory_gb_peak": summary["memory_gb_peak"],
                "judged": judged(folder),
                "cpu_capability": own.get("cpu_capability"),
                "machine": machine()["cpu"],
            }
            results.parent.mkdir(exist_ok=True)
            head = {"experiment": args.experiment, "overrides": args.overrides}
            about = {"machine": machine(), "versions": versions()}
            body = {**head, **about, "arms": compared(runs), "runs": spent, "items": as_rows(runs)}
            write_results(results, body)
    print(markdown(compared(runs)))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--here"]:
        raise SystemExit(run_here(sys.argv[2], sys.argv[3:]))
    main()
