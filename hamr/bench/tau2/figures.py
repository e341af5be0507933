"""Figures of tau2-bench: rewards and pass^k with intervals over the tasks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from hamr.bench.statistics import mean_interval

RESAMPLES = 2000


def pass_hat_k(trials: int, successes: int, k: int) -> float:
    """Return the chance that k of the trials, drawn without replacement, all succeeded (tau-bench, pass^k).

    >>> pass_hat_k(4, 2, 1), pass_hat_k(4, 2, 2), pass_hat_k(4, 2, 4)
    (0.5, 0.16666666666666666, 0.0)
    """
    return math.comb(successes, k) / math.comb(trials, k)


def figures(rows: Sequence[Mapping[str, Any]], trials: int) -> dict[str, Any]:
    """Return the figures of each agent. A task counts for pass^k if k of its dialogues were finished.

    The intervals are bootstraps over the tasks. `failed`: dialogues that a participant did not answer, which have no
    reward.
    """
    found: dict[str, Any] = {}
    for agent in dict.fromkeys(row["agent"] for row in rows):
        own = [row for row in rows if row["agent"] == agent]
        done = [row for row in own if row.get("reward") is not None]
        rewards: dict[str, list[float]] = {}
        for row in done:
            rewards.setdefault(row["task"], []).append(row["reward"])
        counts = {task: (len(values), sum(value == 1.0 for value in values)) for task, values in rewards.items()}
        found[agent] = {
            "tasks": len(rewards),
            "dialogues": len(done),
            "failed": len(own) - len(done),
            "endings": dict(Counter(row["ending"] for row in done).most_common()),
            "turns": sum(row["turns"] for row in done) / len(done) if done else None,
            "reward": _interval([sum(values) / len(values) for values in rewards.values()]),
            "pass": {
                str(k): _interval([pass_hat_k(n, right, k) for n, right in counts.values() if n >= k])
                for k in range(1, trials + 1)
            },
        }
    return found


def _interval(values: Sequence[float]) -> dict[str, Any]:
    return asdict(mean_interval(values, resamples=RESAMPLES, seed=0))
