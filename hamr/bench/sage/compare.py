"""Comparison of agents: ranks as in the paper's Table 1, paired tests on the same customers, and means by seed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations
from typing import Any

from hamr.bench.sage.assessment import Assessment
from hamr.bench.sage.metrics import means, turn_values
from hamr.bench.sage.traces import original_of
from hamr.bench.statistics import mean_interval, sign_flip_p
from hamr.config.sage import SageConfig

RANKED = ("overall", "logic", "chat")
TESTED = ("overall", "logic", "chat", "truth")


def ranks(averages: Mapping[str, Mapping[str, Any]], apart: Collection[str] = ()) -> dict[str, dict[str, int | None]]:
    """Return each agent's rank by overall, logic and chat; ties share the better one. None without a score.

    The agents in `apart` are ranked among themselves, as the paper ranks open and closed models.
    """
    from scipy.stats import rankdata

    found: dict[str, dict[str, int | None]] = {agent: dict.fromkeys(RANKED) for agent in averages}
    for is_apart in (False, True):
        group = [agent for agent in averages if (agent in apart) == is_apart]
        for name in RANKED:
            known = [agent for agent in group if averages[agent][name]["mean"] is not None]
            places = rankdata([-averages[agent][name]["mean"] for agent in known], method="min") if known else []
            for agent, place in zip(known, places, strict=True):
                found[agent][name] = int(place)
    return found


def paired_tests(assessed: Mapping[str, Sequence[Assessment]], config: SageConfig) -> list[dict[str, Any]]:
    """Return, for every two agents and score, the difference (second minus first) over the customers of both.

    A pair is one customer's mean score with each agent; a replacement counts as the customer that it replaces. `p` is
    that of a permutation test of paired samples, `adjusted_p` controls the false discovery rate over all rows of the
    score (Benjamini and Hochberg).
    """
    from scipy.stats import false_discovery_control

    found: list[dict[str, Any]] = []
    for name in TESTED:
        scores = {agent: _by_customer(turns, name) for agent, turns in assessed.items()}
        rows: list[dict[str, Any]] = []
        for one, other in combinations(assessed, 2):
            differences = [scores[other][key] - scores[one][key] for key in scores[one] if key in scores[other]]
            if not differences:
                continue
            estimate = mean_interval(differences, resamples=config.resamples, seed=config.seed)
            p = sign_flip_p(differences, resamples=config.resamples, seed=config.seed)
            figure = {"mean": estimate.mean, "low": estimate.low, "high": estimate.high}
            rows.append(
                {"score": name, "first": one, "second": other, "pairs": estimate.n, "difference": figure, "p": p}
            )
        adjusted = false_discovery_control([row["p"] for row in rows]) if rows else []
        found += [row | {"adjusted_p": float(value)} for row, value in zip(rows, adjusted, strict=True)]
    return found


def _by_customer(assessed: Sequence[Assessment], name: str) -> dict[tuple[str, str], float]:
    values: dict[tuple[str, str], list[float]] = {}
    for scenario in dict.fromkeys(a.scenario for a in assessed):
        own = [a for a in assessed if a.scenario == scenario]
        for a, value in zip(own, turn_values(name, own), strict=True):
            if value is not None:
                values.setdefault((scenario, original_of(a.dialogue)), []).append(value)
    return {key: sum(some) / len(some) for key, some in values.items()}


def by_seed(by_seed: Mapping[int, Mapping[str, Sequence[Assessment]]]) -> dict[str, Any]:
    """Return the means of the scenarios for each seed, and their standard deviation over the seeds.

    `by_seed`: seed -> scenario -> turns of one agent. Pooled figures weight every dialogue alike.
    """
    import numpy as np

    seeds: dict[str, dict[str, float | None]] = {}
    for seed, scenarios in sorted(by_seed.items()):
        tables = [means(turns) for turns in scenarios.values()]
        known = {name: [mean for table in tables if (mean := table[name]) is not None] for name in TESTED}
        seeds[str(seed)] = {name: sum(some) / len(some) if some else None for name, some in known.items()}
    spread = {}
    for name in TESTED:
        values = [value for row in seeds.values() if (value := row[name]) is not None]
        spread[name] = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return {"seeds": seeds, "standard_deviation": spread}
