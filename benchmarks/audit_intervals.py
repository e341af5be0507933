"""Coverage of the 95 % intervals of means that audits correct (`hamr.calibration.prediction_powered`).

    .venv/bin/python benchmarks/audit_intervals.py

Rewards are drawn from Beta(4, 1.5): of 600 prompts with one response each, or of 100 prompts with six equal ones. For a
share of the prompts the auditor's reward is 80 % lower. A random share of the responses is audited. Beside hamr's
interval, that of the textbook, which counts responses as independent. Writes benchmarks/results/audit_intervals.json
and prints a table in Markdown.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from results_json import write_results

from hamr.apps.shared.summary import machine, versions
from hamr.calibration.prediction_powered import DebiasedMean

RESULTS = Path(__file__).resolve().parent / "results" / "audit_intervals.json"
RUNS = 1000
LOSS = 0.8
WORLDS = {"independent": (600, 1), "copies": (100, 6)}
FOOLED = (0.0, 0.02, 0.05, 0.15, 0.4)
AUDITED = (0.05, 0.15)


def draw(rng: np.random.Generator, world: str, fooled: float, audited: float) -> tuple[np.ndarray, ...]:
    """Return values, residuals and audits, each of shape (prompts, copies)."""
    prompts, copies = WORLDS[world]
    shape = (prompts, 1)
    value = np.broadcast_to(rng.beta(4.0, 1.5, shape), (prompts, copies))
    residual = np.broadcast_to(-LOSS * value[:, :1] * (rng.random(shape) < fooled), (prompts, copies))
    return value, residual, rng.random((prompts, copies)) < audited


def textbook(value: np.ndarray, residual: np.ndarray, audits: np.ndarray) -> tuple[float, float]:
    """Return the interval with variance var(v) / N + var(r) / n."""
    known = residual[audits]
    mean = value.mean() + known.mean()
    half = 1.96 * (value.var(ddof=1) / value.size + known.var(ddof=1) / known.size) ** 0.5
    return mean - half, mean + half


def coverage(world: str, fooled: float, audited: float) -> dict[str, float | str]:
    """Return the share of the runs with enough audits in which each interval holds the true mean."""
    rng, true = np.random.default_rng(0), 4.0 / 5.5 * (1.0 - LOSS * fooled)
    ours, theirs, widths = [], [], []
    for _ in range(RUNS):
        value, residual, audits = draw(rng, world, fooled, audited)
        means = DebiasedMean()
        for i, j in np.ndindex(*value.shape):
            means.add(value[i, j], residual=residual[i, j] if audits[i, j] else None, cluster=i)
        if not (found := means.estimate()):
            continue
        ours.append(found["low"] <= true <= found["high"])
        widths.append((found["high"] - found["low"]) / 2.0)
        low, high = textbook(value, residual, audits)
        theirs.append(low <= true <= high)
    return {
        "world": world,
        "fooled": fooled,
        "audited": audited,
        "runs": len(ours),
        "coverage": float(np.mean(ours)),
        "textbook": float(np.mean(theirs)),
        "half_width": float(np.mean(widths)),
    }


def main() -> None:
    rows = [coverage(world, fooled, audited) for world in WORLDS for fooled in FOOLED for audited in AUDITED]
    body = {"runs": RUNS, "seed": 0, "machine": machine(), "versions": versions(), "rows": rows}
    write_results(RESULTS, body)
    print("| responses | replies that fool | audited | coverage | of the textbook | half width |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        shares = f"{row['fooled']:.0%} | {row['audited']:.0%} | {row['coverage']:.1%} | {row['textbook']:.1%}"
        print(f"| {row['world']} | {shares} | {row['half_width']:.3f} |")


if __name__ == "__main__":
    main()
