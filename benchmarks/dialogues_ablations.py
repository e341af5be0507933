"""Credit, pairing and curriculum in RL on dialogues, with the policy of `dialogues.py`, which is a table.

    python benchmarks/dialogues_ablations.py --out benchmarks/results/dialogues_ablations.json

Arms, each from the same start with the same number of dialogues a step: `turn_normalised` (hamr's default), `outcome`
(the completion of the case alone), `turn` (the plain sum of the later rewards, compared over all turns of a group),
`unpaired` (the default, with 8 different customers in a group) and `curriculum` (the default, with `env.curriculum`).
Evaluated with customers of the test split: the share of right turns by their own cases, its mean over paths, and the
share of completed cases, in points of 100. Intervals are over seeds. CPU only, minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

from benchmarks.dialogues import (  # noqa: E402
    SIZE,
    TablePolicy,
    advantages,
    customers,
    ends,
    gradient,
    interval,
    mix_customers,
    request,
    runner,
)
from benchmarks.results_json import results_text  # noqa: E402
from hamr.algorithms.group_outcomes import right_share  # noqa: E402
from hamr.apps.shared.machine import machine  # noqa: E402
from hamr.data.curriculum import Curriculum, customer_path  # noqa: E402
from hamr.data.stream import PromptStream  # noqa: E402
from hamr.types import RolloutGroup, Scored, ServiceSample  # noqa: E402

ARMS: Mapping[str, str] = {
    "turn_normalised": "turn_normalised",
    "outcome": "outcome",
    "turn": "turn",
    "unpaired": "turn_normalised",
    "curriculum": "turn_normalised",
}
"""Arm -> its credit."""


async def train(arm: str, seed: int, steps: Sequence[int], prompts: int, rate: float, skill: float) -> dict[int, Any]:
    """Return the figures after each number of steps."""
    policy, data = TablePolicy(skill, seed), customers(seed)
    dialogues = runner(policy)
    order = Curriculum if arm == "curriculum" else PromptStream
    stream, found = order(data.train, seed), {}
    for step in range(1, max(steps) + 1):
        policy.forget()
        each = 1 if arm == "unpaired" else SIZE
        batch = stream.take(prompts * SIZE // each)
        held = await dialogues.hold(batch, [request(step, s, range(each), seed) for s in batch])
        for group in held:
            stream.learn(group.sample, right_share(group) or 0.0)
        groups = in_groups(held) if arm == "unpaired" else held
        for group in groups:
            own = advantages(group, ARMS[arm], normalize_std=True)
            for state, values in gradient(policy, group, own).items():
                policy.table[state] = policy.table[state] + rate * values
        if step in steps:
            found[step] = await evaluate(policy, data.test)
    return found


def in_groups(held: Sequence[RolloutGroup]) -> list[RolloutGroup]:
    """Return groups of SIZE dialogues with different customers."""
    return [g for i in range(0, len(held), SIZE * SIZE) for g in mix_customers(held[i : i + SIZE * SIZE])]


async def evaluate(policy: TablePolicy, samples: Sequence[ServiceSample]) -> dict[str, float]:
    policy.forget()
    groups = await runner(policy).hold(samples, [request(0, s, [0], 77) for s in samples])
    paths: dict[str, list[float]] = defaultdict(list)
    for group in groups:
        paths[customer_path(group.sample)] += [r.total.value for r in group.records if isinstance(r.total, Scored)]
    right = [value for own in paths.values() for value in own]
    return {
        "logic": 100 * float(np.mean(right)),
        "logic_by_path": 100 * float(np.mean([np.mean(own) for own in paths.values()])),
        "completion": 100 * float(np.mean([e.components[0].value for g in groups for e in ends(g)])),
    }


async def measure(seeds: Sequence[int], steps: Sequence[int], **how: Any) -> dict[str, Any]:
    """Return, by arm, its figures after each number of steps, and what it differs from the default by."""
    runs = {arm: [await train(arm, seed, steps, **how) for seed in seeds] for arm in ARMS}
    start = [await evaluate(TablePolicy(how["skill"], seed), customers(seed).test) for seed in seeds]
    found: dict[str, Any] = {"start": {name: interval([own[name] for own in start]) for name in start[0]}}
    for arm, of_seeds in runs.items():
        found[arm] = {}
        for step in steps:
            own, default = [run[step] for run in of_seeds], [run[step] for run in runs["turn_normalised"]]
            found[arm][str(step)] = {
                name: interval([o[name] for o in own])
                | {"over_default": interval([o[name] - d[name] for o, d in zip(own, default, strict=True)])}
                for name in own[0]
            }
        print(arm, json.dumps(found[arm]), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--steps", type=int, nargs="+", default=[10, 20, 40])
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--rate", type=float, default=1.0, help="learning rate")
    parser.add_argument("--skill", type=float, default=0.5, help="chance of the right act at the start")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    how = {"prompts": given.prompts, "rate": given.rate, "skill": given.skill}
    found = asyncio.run(measure(given.seeds, given.steps, **how))
    result = {"machine": machine(), "seeds": given.seeds, "dialogues_per_group": SIZE, **how, "arms": found}
    text = results_text(result)
    print(text)
    if given.out:
        given.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
