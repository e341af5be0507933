"""Share of each reward in the advantages of the eleven-reward mix, with `rewards.normalise=sum` and `gdpo`.

    python benchmarks/decoupled_rewards.py

Draws groups of responses whose components have the scales and frequencies of the real ones (grades in quarters, rare
violations, a length in tokens), independent of each other, with the weights of `rewards=olamind_stage2` and 1 for
consistency and sage_logic. No model is involved: the table shows how the normalisation distributes the signal.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from benchmarks.results_json import write_results  # noqa: E402
from hamr.algorithms.advantages import decoupled_advantages, group_advantages  # noqa: E402

GROUPS, SIZE = 4000, 8
RESULTS = Path(__file__).parent / "results" / "decoupled_rewards.json"


def grade(rng: random.Random) -> float:
    """A judge's grade from 1 to 5, mostly 3 to 5, on [0, 1]."""
    return (rng.choices(range(1, 6), (1, 2, 4, 6, 3))[0] - 1) / 4


def rare(value: float, chance: float, usual: float) -> Callable[[random.Random], float]:
    return lambda rng: value if rng.random() < chance else usual


MIX: dict[str, tuple[float, Callable[[random.Random], float]]] = {
    "consistency": (1.0, lambda rng: round(rng.betavariate(0.5, 0.5), 2)),
    "dialogue": (1.0, grade),
    "policy": (1.0, grade),
    "tool": (1.0, grade),
    "rubric": (1.0, grade),
    "format": (0.2, rare(0.0, 0.03, 1.0)),
    "length": (1.0, lambda rng: round(-max(0.0, rng.gauss(0.0, 0.1)), 3)),
    "rules": (1.0, rare(0.0, 0.03, 1.0)),
    "risk": (1.0, rare(0.0, 0.03, 1.0)),
    "hallucination": (3.0, rare(-1.0, 0.1, 0.0)),
    "sage_logic": (1.0, rare(0.0, 0.5, 1.0)),
}
"""Component -> (weight, its value for one response)."""


def measure(seed: int, groups: int = GROUPS) -> dict[str, dict[str, float]]:
    """Return, for each component, its share in the variance of the advantages under both normalisations.

    A share is the covariance of the advantage with the component's own part in it, by the advantage's variance. The
    shares of all components add up to 1.
    """
    rng = random.Random(seed)
    covariance = {how: dict.fromkeys(MIX, 0.0) for how in ("sum", "gdpo")}
    for _ in range(groups):
        drawn = {name: (weight, [draw(rng) for _ in range(SIZE)]) for name, (weight, draw) in MIX.items()}
        totals = [sum(w * values[i] for w, values in drawn.values()) for i in range(SIZE)]
        spread = statistics.pstdev(totals)
        of_sum, of_gdpo = group_advantages(totals), decoupled_advantages(list(drawn.values()))
        for name, (weight, values) in drawn.items():
            mean = statistics.fmean(values)
            parts = {
                "sum": [weight * (v - mean) / spread for v in values],
                "gdpo": [weight * a for a in group_advantages(values)],
            }
            for how, advantages in (("sum", of_sum), ("gdpo", of_gdpo)):
                covariance[how][name] += sum(a * p for a, p in zip(advantages, parts[how], strict=True))
    whole = {how: sum(of.values()) for how, of in covariance.items()}
    return {
        name: {"weight": MIX[name][0], **{how: round(of[name] / whole[how], 4) for how, of in covariance.items()}}
        for name in MIX
    }


def main() -> None:
    shares = measure(0)
    print(f"{'component':<14} {'weight':>6} {'sum':>7} {'gdpo':>7}")
    for name, of in shares.items():
        print(f"{name:<14} {of['weight']:>6g} {of['sum']:>7.1%} {of['gdpo']:>7.1%}")
    write_results(RESULTS, {"groups": GROUPS, "size": SIZE, "shares": shares})


if __name__ == "__main__":
    main()
