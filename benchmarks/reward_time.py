"""The reward stage of one batch: judge calls, time and agreement with a teacher, as ratios to a judge for all.

    python benchmarks/reward_time.py                               # three synthetic models, under a minute
    python benchmarks/reward_time.py --models fooled --frac 0.3
    python benchmarks/reward_time.py --seeds 12               # is a difference more than the luck of one draw?
    python benchmarks/reward_time.py --triples triples.jsonl       # real scores: s_r, s_j, y

README.md in this folder says what is simulated and how to read the table.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import simulated_time  # noqa: E402
from calibration import machine  # noqa: E402
from results_json import write_results  # noqa: E402
from reward_model import MODELS, Replies, from_file, synthetic  # noqa: E402

from hamr.calibration.cascade import Cascade  # noqa: E402
from hamr.calibration.fit import calibrate  # noqa: E402
from hamr.calibration.ranks import spearman  # noqa: E402
from hamr.cascade.cascade_controller import CascadeController, ControlledRewarder  # noqa: E402
from hamr.cascade.router import RewardRouter  # noqa: E402
from hamr.config.rewards import RewardsConfig  # noqa: E402
from hamr.types import (  # noqa: E402
    Answer,
    Question,
    Reference,
    Reply,
    RewardRecord,
    Rollout,
    SampleKey,
    ServiceSample,
    Turn,
)

GOAL_SAVED, GOAL_RHO = 0.6, 0.005
AUDIT_FRAC = 0.05
"""Of the corrected arm; its fit leaves room for these calls."""


class Pool:
    """A scorer that knows its answers: `seconds` each, `places` at a time, first come first served."""

    def __init__(self, scores: np.ndarray, *, seconds: float, places: int) -> None:
        self._scores, self._seconds, self.calls = scores, seconds, 0
        self._free = asyncio.Semaphore(places)

    async def __call__(self, question: Question) -> Answer:
        self.calls += 1
        if self._seconds:
            async with self._free:
                await asyncio.sleep(self._seconds)
        group, response = map(int, question.variables["statement_b"].split()[1:3])
        return Answer(score=float(self._scores[group, response]), verdict="part")


@dataclass(frozen=True)
class Arm:
    """One way to reward. `cached`: siblings that say the same share an answer; `controller` has made its moves."""

    name: str
    consistency: Mapping[str, Any]
    cached: bool = False
    controller: CascadeController | None = None


@dataclass(frozen=True)
class Pools:
    """`reranker_s`, `judge_s`: seconds per question. `reranker_places`, `judge_places`: concurrent questions."""

    reranker_s: float
    judge_s: float
    reranker_places: int
    judge_places: int


async def score(arm: Arm, replies: Replies, pools: Pools, step: int = 0) -> tuple[list[RewardRecord], float, int]:
    """(records in order, simulated seconds, judge calls) of one batch through the real router, all concurrently."""
    reranker = Pool(replies.s_r, seconds=pools.reranker_s, places=pools.reranker_places)
    judge = Pool(replies.s_j, seconds=pools.judge_s, places=pools.judge_places)
    router = RewardRouter(
        RewardsConfig.model_validate({"consistency": arm.consistency}),
        {"reranker": reranker, "judge": judge},
        count_tokens=len,
        deadline_s=3600.0,
        clock=asyncio.get_running_loop().time,
        cache_size=4096 if arm.cached else 0,
    )
    rewarder = router if arm.controller is None else ControlledRewarder(router, arm.controller)
    groups, responses = replies.s_r.shape
    asked = []
    for g in range(groups):
        sample = ServiceSample(
            id=f"p{g}",
            ticket={},
            policy="",
            tools=(),
            history=(Turn(role="customer", content="My package is too dear."),),
            references=(Reference(action=Reply(content="May I offer a cheaper one?")),),
        )
        for i in range(responses):
            asked.append(rewarder.score(sample, _rollout(step, g, i, replies.said[g, i], responses, arm.cached)))
    loop = asyncio.get_running_loop()
    started = loop.time()
    records = list(await asyncio.gather(*asked))
    seconds = loop.time() - started
    await router.close()
    if isinstance(rewarder, ControlledRewarder):
        rewarder.step_ended()
    return records, seconds, judge.calls


def _rollout(step: int, group: int, response: int, said: int, responses: int, cached: bool) -> Rollout:
    """Without a cache every text is its own, so that nothing is shared that happens to be under way either."""
    text = f"answer {group} {said}" + ("" if cached else f" {response}")
    return Rollout(
        key=SampleKey(run="bench", step=step, prompt=f"p{group}", sample=response),
        prompt_ids=(),
        token_ids=(),
        logprobs=(),
        text=text,
        finish_reason="stop",
        versions=(),
        siblings=responses,
    )


def arms(args: argparse.Namespace, fitted: Cascade, with_room: Cascade) -> list[Arm]:
    """Arms from the judge for every response to all savings together; adaptive cascades start from the fit.
    `with_room`: the fit to fewer calls, by those of the audits."""
    fit = {"cascade": _parameters(fitted)}
    budget = {"budget": {"judge_frac": args.frac, "max_move": 0.1, "window": 2000}}
    audited = {"cascade": _parameters(with_room), "audit_frac": AUDIT_FRAC}
    found = [
        Arm("judge only", {"mode": "soft_judge"}),
        Arm("reranker only", {"mode": "reranker"}),
        Arm("the paper's cascade", {}),
        Arm("calibrated", fit),
        Arm("calibrated, cache", fit, cached=True),
        Arm("budget, cache", {**fit, **budget}, cached=True),
        Arm("audits, cache", audited, cached=True),
        Arm("corrected, cache", {**audited, "correction": "stratified"}, cached=True),
    ]
    found = [arm for arm in found if arm.name in (found[0].name, *(args.arms or [a.name for a in found]))]
    return [
        replace(a, controller=_adapted_controller(a)) if {"budget", "correction"} & {*a.consistency} else a
        for a in found
    ]


def _parameters(cascade: Cascade) -> dict[str, float]:
    return dict(zip(("tau_a", "tau_b", "w1", "w2"), cascade.parameters, strict=True))


def _adapted_controller(arm: Arm) -> CascadeController:
    return CascadeController(RewardsConfig.model_validate({"consistency": arm.consistency}).consistency)


async def measure(name: str, fitting: Replies, batches: Sequence[Replies], args: argparse.Namespace) -> dict[str, Any]:
    """Every arm on `batches`: the first few to move on, the next with latencies, the rest for the correlation."""
    fit = calibrate(*fitting.flat(), max_escalated_frac=args.frac, folds=0, resamples=0)
    slow = Pools(args.judge_s / 10, args.judge_s, args.reranker_places, args.judge_places)
    quick = Pools(0.0, 0.0, args.reranker_places, args.judge_places)
    timed, rest = batches[args.warm_up], batches[args.warm_up + 1 :]
    rows: list[dict[str, Any]] = []
    room = calibrate(*fitting.flat(), max_escalated_frac=args.frac - AUDIT_FRAC, folds=0, resamples=0)
    for arm in arms(args, fit.cascade, room.cascade):
        if arm.controller is not None:
            for step, batch in enumerate(batches[: args.warm_up]):
                await score(arm, batch, quick, step)
        cascade = arm.controller.cascade if arm.controller else None
        _, seconds, calls = await score(arm, timed, slow, args.warm_up)
        rewards: list[np.ndarray] = []
        asked = 0
        # An interval stays where the warm-up has brought it, so that all of it is one and the same cascade.
        moved = "budget" in arm.consistency
        frozen = replace(arm, controller=None, consistency=_with(arm.consistency, cascade)) if moved else arm
        for step, batch in enumerate(rest):
            records, _, questions = await score(frozen, batch, quick, 1000 + step)
            rewards.append(np.array([r.total.value for r in records]).reshape(batch.s_r.shape))
            asked += questions
        given, y = np.concatenate(rewards), np.concatenate([b.y for b in rest])
        within = [spearman(a, b) for a, b in zip(given, y, strict=True)]
        rows.append(
            {
                "arm": arm.name,
                "cascade": _used(arm, cascade),
                "seconds": seconds,
                "judge_calls": calls,
                "judge_frac": asked / y.size,
                "spearman": spearman(given.ravel(), y.ravel()),
                "spearman_in_groups": float(np.nanmean(within)),
            }
        )
    first = rows[0]
    for row in rows:
        row["saved"] = 1.0 - row["seconds"] / first["seconds"]
        row["meets_goal"] = row["saved"] >= GOAL_SAVED and row["spearman"] >= first["spearman"] - GOAL_RHO
    return {"scores": name, "replies": int(y.size), "timed": int(timed.y.size), "arms": rows}


def _with(consistency: Mapping[str, Any], cascade: Cascade | None) -> dict[str, Any]:
    if cascade is None:
        return dict(consistency)
    return {**consistency, "cascade": _parameters(cascade)}


def _used(arm: Arm, moved: Cascade | None) -> tuple[float, ...] | None:
    if "mode" in arm.consistency:
        return None
    used = moved or Cascade(**arm.consistency.get("cascade", _parameters(Cascade(0.68, 0.98, 0.05, 0.72))))
    return tuple(round(value, 4) for value in used.parameters)


def table(found: Mapping[str, Any]) -> str:
    first = found["arms"][0]
    lines = [
        f"{found['scores']}: {found['timed']} replies timed, Spearman over {found['replies']}",
        "| | judge calls | time | Spearman | in groups | goal |",
        "|---|---|---|---|---|---|",
    ]
    for row in found["arms"]:
        lines.append(
            f"| {row['arm']} | {row['judge_calls'] / max(1, first['judge_calls']):.2f} "
            f"| {row['seconds'] / first['seconds']:.2f} | {row['spearman']:.4f} "
            f"({row['spearman'] - first['spearman']:+.4f}) | {row['spearman_in_groups']:.4f} "
            f"| {'yes' if row['meets_goal'] else ''} |"
        )
    return "\n".join(lines)


def over_draws(draws: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Per arm the means over draws; `difference` from the judge's rho in the same draw, with the deviation of one draw
    and the half width of the mean's 95 % interval (Student's t)."""
    rows = []
    for i, arm in enumerate(draws[0]["arms"]):
        own = [draw["arms"][i] for draw in draws]
        judged = [draw["arms"][0]["spearman"] for draw in draws]
        differences = np.array([row["spearman"] - rho for row, rho in zip(own, judged, strict=True)])
        deviation = float(differences.std(ddof=1))
        width = float(stats.t.ppf(0.975, len(draws) - 1)) * deviation / len(draws) ** 0.5
        rows.append(
            {
                "arm": arm["arm"],
                "time": float(np.mean([1.0 - row["saved"] for row in own])),
                "difference": float(differences.mean()),
                "deviation": deviation,
                "half_width": width,
                "meets_goal": sum(row["meets_goal"] for row in own),
            }
        )
    return rows


def draws_table(repeated: Mapping[str, Any]) -> str:
    lines = [
        f"{repeated['scores']}: {repeated['draws']} draws",
        "| | time | Spearman - judge's, mean | one draw varies by | draws that meet the goal |",
        "|---|---|---|---|---|",
    ]
    for row in repeated["arms"]:
        lines.append(
            f"| {row['arm']} | {row['time']:.2f} | {row['difference']:+.4f} ± {row['half_width']:.4f} "
            f"| {row['deviation']:.4f} | {row['meets_goal']} |"
        )
    return "\n".join(lines)


def draw(name: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """Calibration set and batches by one seed, and every arm on them."""
    rng = np.random.default_rng(seed)
    if args.triples:
        fitting, rest = from_file(args.triples, rng, args.responses)
        batches = [rest] * (args.warm_up + 2)
    else:
        sizes = {"responses": args.responses, "repeats": args.repeats}
        groups = -(-args.fitting // args.responses)
        fitting = synthetic(name, rng, groups=groups, shift=0.0, **sizes)
        count = args.warm_up + 1 + args.batches
        batches = [synthetic(name, rng, groups=args.groups, shift=args.shift, **sizes) for _ in range(count)]
    return simulated_time.run(measure(name, fitting, batches, args))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--arms", nargs="+", help="only these and the judge for every response")
    parser.add_argument("--triples", type=Path, help="real scores in place of the models")
    parser.add_argument("--groups", type=int, default=32)
    parser.add_argument("--responses", type=int, default=16)
    parser.add_argument("--batches", type=int, default=6, help="for the correlation; synthetic only")
    parser.add_argument("--warm-up", type=int, default=5, help="batches that a moving interval has seen before")
    parser.add_argument("--fitting", type=int, default=2000, help="replies to calibrate on; synthetic only")
    parser.add_argument("--shift", type=float, default=0.2, help="by which the policy is better than at calibration")
    parser.add_argument("--repeats", type=float, default=0.15, help="share that says what a sibling says")
    parser.add_argument("--frac", type=float, default=0.4, help="most judge calls of the fit, and the budget")
    parser.add_argument("--judge-s", type=float, default=2.0, help="of one question; the reranker's is a tenth")
    parser.add_argument("--judge-places", type=int, default=16)
    parser.add_argument("--reranker-places", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1, help="draws of everything, calibration set included")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "reward_time.json")
    args = parser.parse_args(argv)
    found, repeated = [], []
    for name in [str(args.triples.name)] if args.triples else args.models:
        draws = [draw(name, seed, args) for seed in range(args.seed, args.seed + args.seeds)]
        found.append(draws[0])
        print(table(draws[0]) + "\n", flush=True)
        if args.seeds > 1:
            repeated.append({"scores": name, "draws": args.seeds, "arms": over_draws(draws)})
            print(draws_table(repeated[-1]) + "\n", flush=True)
    # Paths say nothing to others.
    settings = {key: value for key, value in vars(args).items() if key not in ("out", "triples")}
    out = {"when": datetime.now(UTC).isoformat(timespec="seconds"), "machine": machine(), "settings": settings}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    write_results(args.out, {**out, "found": found, "repeated": repeated})
    print(f"written to {args.out}")


if __name__ == "__main__":
    main()
