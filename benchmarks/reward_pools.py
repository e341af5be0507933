"""The reward stage of one batch through real pools: calls, prompt tokens, wall time and agreement with the truth.

    python benchmarks/reward_pools.py experiment=quickstart                      # its fine-tuned scorers
    python benchmarks/reward_pools.py experiment=smoke --groups 2 --responses 4  # random models: a rehearsal

The counterpart of reward_time.py, which simulates the scorers. README.md in this folder says how to read it.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from calibration import machine  # noqa: E402
from results_json import write_results  # noqa: E402

from hamr.apps.scorer.pair_check import pair_question  # noqa: E402
from hamr.calibration.fit import calibrate  # noqa: E402
from hamr.calibration.ranks import spearman  # noqa: E402
from hamr.cascade.router import RewardRouter  # noqa: E402
from hamr.config.load import load_config  # noqa: E402
from hamr.config.rewards import RewardsConfig  # noqa: E402
from hamr.config.schema import Config  # noqa: E402
from hamr.data.contrasts import generated_contrast  # noqa: E402
from hamr.data.pairs import PairLabel, reply_pairs  # noqa: E402
from hamr.protocols import Ask  # noqa: E402
from hamr.rewards.verdict import hard_score  # noqa: E402
from hamr.types import Reference, Reply, RewardRecord, Rollout, SampleKey, ServiceSample  # noqa: E402

RUN = "reward-pools"
LONGEST_S = 3600.0


@dataclass(frozen=True)
class Batch:
    """Groups of replies to generated dialogues; `y` (groups, responses) is what each is worth: 1, 0.5 or 0."""

    samples: tuple[ServiceSample, ...]
    texts: tuple[tuple[str, ...], ...]
    y: np.ndarray


@dataclass(frozen=True)
class Arm:
    """One way to reward. `shared`: siblings that say the same share an answer."""

    name: str
    consistency: Mapping[str, Any]
    shared: bool = True


def batch(samples: Sequence[ServiceSample], groups: int, responses: int, repeats: float, seed: int) -> Batch:
    """One reference a group, replies of all three labels; a share `repeats` of them in a sibling's very words."""
    rng = Random(f"reward-pools/{seed}")
    replying = [s for s in samples if any(isinstance(r.action, Reply) for r in s.references)]
    chosen, texts, y = [], [], []
    for _ in range(groups):
        sample = rng.choice(replying)
        contrast = generated_contrast(sample, rng)
        chosen.append(replace(sample, references=(Reference(action=Reply(content=contrast.reference)),)))
        known: dict[PairLabel, Sequence[str]] = {
            "consistent": (contrast.reference, *contrast.right),
            "partial": contrast.partial,
            "inconsistent": [wrong.text for wrong in contrast.wrong],
        }
        labels = [label for label, found in known.items() if found]
        said: list[tuple[str, float]] = []
        for _ in range(responses):
            label = rng.choice(labels)
            fresh = (rng.choice(known[label]), hard_score(label))
            said.append(rng.choice(said) if said and rng.random() < repeats else fresh)
        texts.append(tuple(text for text, _ in said))
        y.append([worth for _, worth in said])
    return Batch(samples=tuple(chosen), texts=tuple(texts), y=np.array(y))


def arms(rewards: RewardsConfig, fitted: Mapping[str, float]) -> list[Arm]:
    """Arms from the judge for every response to all savings within one batch."""
    keep = rewards.consistency.model_dump(include={"reranker", "judge", "judge_best_k"})
    fit = {**keep, "cascade": dict(fitted)}
    return [
        Arm("judge only", {**keep, "mode": "soft_judge"}, shared=False),
        Arm("reranker only", {**keep, "mode": "reranker"}, shared=False),
        Arm("the paper's cascade", keep, shared=False),
        Arm("calibrated", fit, shared=False),
        Arm("calibrated, cache", fit),
    ]


async def score(arm: Arm, asks: Mapping[str, Ask], work: Batch, mark: str, at_once: int) -> dict[str, Any]:
    """One batch. `mark` begins every dialogue, so that no prompt's own part is in a cache from another arm."""
    rewards = RewardsConfig.model_validate({"consistency": arm.consistency})
    groups, responses = work.y.shape

    def router() -> RewardRouter:
        return RewardRouter(rewards, asks, count_tokens=lambda text: len(text.split()), deadline_s=LONGEST_S)

    # Siblings that share nothing have a router each.
    routers = [router()] * responses if arm.shared else [router() for _ in range(responses)]
    free = asyncio.Semaphore(at_once)

    async def one(g: int, i: int) -> RewardRecord:
        async with free:
            return await routers[i].score(marked(work.samples[g], f"{mark}-{g}"), _rollout(mark, g, i, work))

    started = time.perf_counter()
    records = await asyncio.gather(*(one(g, i) for g in range(groups) for i in range(responses)))
    return {"seconds": time.perf_counter() - started, "records": records}


def marked(sample: ServiceSample, mark: str) -> ServiceSample:
    """The sample with its dialogue begun by `mark`, under an id of its own."""
    first, *rest = sample.history
    return replace(sample, id=mark, history=(replace(first, content=f"Case {mark}. {first.content}"), *rest))


def _rollout(mark: str, group: int, response: int, work: Batch) -> Rollout:
    return Rollout(
        key=SampleKey(run=RUN, step=0, prompt=f"{mark}-{group}", sample=response),
        prompt_ids=(),
        token_ids=(),
        logprobs=(),
        text=work.texts[group][response],
        finish_reason="stop",
        versions=(),
        siblings=work.y.shape[1],
    )


def figures(arm: Arm, parts: Sequence[Mapping[str, Any]], batches: Sequence[Batch], names: Mapping[str, str]) -> dict:
    """Calls and time of an arm over its batches, and rho of its rewards. A response without a reward is left out of rho
    and counted."""
    records = [record for part in parts for record in part["records"]]
    y = np.concatenate([work.y.ravel() for work in batches])
    values = np.array([r.total.value if r.total.ok else np.nan for r in records])
    known = ~np.isnan(values)
    row: dict[str, Any] = {
        "arm": arm.name,
        "seconds": sum(part["seconds"] for part in parts),
        "responses": len(records),
        "failed": int((~known).sum()),
        "spearman": spearman(values[known], y[known]) if known.any() else float("nan"),
    }
    for role, pool in names.items():
        # The call of a response that shares an answer has no tokens.
        calls = [call for r in records for call in r.calls if call.pool == pool and call.prompt_tokens]
        row[role] = {
            "calls": len(calls),
            "prompt_tokens": sum(call.prompt_tokens for call in calls),
            "cached_tokens": sum(call.cached_tokens for call in calls),
            "output_tokens": sum(call.output_tokens for call in calls),
        }
    return row


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Calls and time as ratios to the first row; the share of prompt tokens that a prefix cache held."""
    first = rows[0]
    lines = ["| | judge calls | time | Spearman | from cache: reranker, judge | failed |", "|---|---|---|---|---|---|"]
    for row in rows:
        hits = (
            f"{part['cached_tokens'] / part['prompt_tokens']:.2f}" if part["prompt_tokens"] else "-"
            for part in (row["reranker"], row["judge"])
        )
        lines.append(
            f"| {row['arm']} | {row['judge']['calls'] / max(1, first['judge']['calls']):.2f} "
            f"| {row['seconds'] / first['seconds']:.2f} | {row['spearman']:.3f} "
            f"({row['spearman'] - first['spearman']:+.3f}) | {', '.join(hits)} | {row['failed']} |"
        )
    return "\n".join(lines)


async def measure(config: Config, paths: Mapping[str, Path], splits: Any, args: argparse.Namespace) -> dict[str, Any]:
    from hamr.pools.client import PoolClient
    from hamr.pools.deployment import start_pools, stop_pools

    # A whole batch waits in line here, so that no deadline may pass meanwhile.
    pools = {name: pool.model_copy(update={"deadline_s": LONGEST_S}) for name, pool in config.pools.items()}
    named = config.rewards.consistency
    names = {"reranker": named.reranker, "judge": named.judge}
    await start_pools(pools, paths, run=RUN, timeout_s=config.cluster.start_timeout_s)
    clients = {name: PoolClient(name, pools[name], RUN) for name in names.values()}
    asks = {name: client.ask for name, client in clients.items()}
    try:
        fit = await fitted(asks, names, splits.validation, args)
        cascade = dict(zip(("tau_a", "tau_b", "w1", "w2"), fit.parameters, strict=True))
        print(f"fitted to {args.fitting} pairs: {cascade}", flush=True)
        batches = [
            batch(splits.test, args.groups, args.responses, args.repeats, args.seed + r) for r in range(args.rounds)
        ]
        ways = arms(config.rewards, cascade)
        await score(ways[2], asks, batch(splits.test, 2, 2, 0.0, -1), "warm", args.at_once)
        parts: dict[str, list[dict[str, Any]]] = {arm.name: [] for arm in ways}
        for number, work in enumerate(batches):
            # Forth and back, so that what drifts meanwhile falls on all alike.
            for place, arm in list(enumerate(ways))[:: -1 if number % 2 else 1]:
                parts[arm.name].append(await score(arm, asks, work, f"{number}{place}", args.at_once))
                print(f"round {number + 1}, {arm.name}: {parts[arm.name][-1]['seconds']:.1f} s", flush=True)
        rows = [figures(arm, parts[arm.name], batches, names) for arm in ways]
        return {"cascade": cascade, "models": {n: config.pools[n].model for n in names.values()}, "arms": rows}
    finally:
        await asyncio.gather(*(client.close() for client in clients.values()))
        await stop_pools(RUN)


async def fitted(asks: Mapping[str, Ask], names: Mapping[str, str], samples: Sequence[Any], args: Any) -> Any:
    """The cascade fitted to labelled pairs of the validation split, with at most `--frac` of them judged."""
    pairs = reply_pairs(samples, args.fitting, args.seed)
    asked = [asks[names[role]](pair_question(pair)) for role in ("reranker", "judge") for pair in pairs]
    answers = [answer.score for answer in await asyncio.gather(*asked)]
    rows = zip(answers[: len(pairs)], answers[len(pairs) :], (hard_score(p.label) for p in pairs), strict=True)
    whole = [row for row in rows if None not in row]
    s_r, s_j, y = zip(*whole, strict=True)
    return calibrate(s_r, s_j, y, max_escalated_frac=args.frac, folds=0, resamples=0).cascade


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=32)
    parser.add_argument("--responses", type=int, default=16)
    parser.add_argument(
        "--rounds", type=int, default=1, help="batches; every second one goes through the arms backwards"
    )
    parser.add_argument("--repeats", type=float, default=0.15, help="share that says what a sibling says")
    parser.add_argument("--fitting", type=int, default=240, help="labelled pairs that the cascade is fitted to")
    parser.add_argument("--frac", type=float, default=0.4, help="most judge calls of the fit")
    parser.add_argument("--at-once", type=int, default=64, help="responses on their way")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "reward_pools.json")
    parser.add_argument("overrides", nargs="*", help="of the configuration, whose pools are asked")
    args = parser.parse_args(argv)
    from hamr.apps.scorer.prepare import prepare_scorers
    from hamr.apps.shared.preparation import load_splits
    from hamr.cluster.session import ray_session

    config = load_config([*args.overrides, "data.type=sage"])
    config = config.with_asked_pools()
    splits = load_splits(config.data, config.experiment.seed)
    scorers = prepare_scorers(config, splits.train, splits.validation, lambda line: print(line, flush=True))
    with ray_session(config.cluster):
        found = asyncio.run(measure(config, {n: s.path for n, s in scorers.items()}, splits, args))
    print(table(found["arms"]))
    settings = {key: value for key, value in vars(args).items() if key not in ("out", "overrides")}
    out = {"when": datetime.now(UTC).isoformat(timespec="seconds"), "machine": machine(), "settings": settings}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    write_results(args.out, {**out, **found})
    print(f"written to {args.out}")


if __name__ == "__main__":
    main()
