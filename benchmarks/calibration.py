"""Calibrating the cascade: how long it takes, and how far it stays behind exhaustive search.

    python benchmarks/calibration.py                # both parts, some ten minutes
    python benchmarks/calibration.py --only time
    python benchmarks/calibration.py --only gap --generators narrow fooled --seeds 0 1

README.md in this folder says how to read what it prints.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from every_cascade import best_of_every_cascade

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from results_json import write_results  # noqa: E402

from hamr.apps.shared.machine import machine, versions  # noqa: E402
from hamr.calibration.fit import calibrate  # noqa: E402
from hamr.calibration.ranks import Target  # noqa: E402

Triples = tuple[np.ndarray, np.ndarray, np.ndarray]


def noisy(rng: np.random.Generator, n: int) -> Triples:
    """A noisy reranker whose scores heap up at both ends, and a better judge."""
    y = rng.beta(0.5, 0.5, n)
    s_r = 1.0 / (1.0 + np.exp(-6.0 * (y - 0.5) - rng.normal(0.0, 2.5, n)))
    return s_r, np.clip(y + rng.normal(0.0, 0.25, n), 0.0, 1.0), y


def trusted_middle(rng: np.random.Generator, n: int) -> Triples:
    """A reranker that is good in the middle of its range and blind at its ends: what Eq. 4 is made for."""
    s_r = rng.random(n)
    blind = (s_r < 0.45) | (s_r > 0.9)
    y = np.where(blind, rng.random(n), np.clip(s_r + rng.normal(0.0, 0.03, n), 0.0, 1.0))
    return s_r, np.clip(y + rng.normal(0.0, 0.12, n), 0.0, 1.0), y


def ties(rng: np.random.Generator, n: int) -> Triples:
    """Every score in steps: S_R of 0.05, S_J of 0.1, y the mean of four verdicts."""
    s_r, s_j, y = noisy(rng, n)
    return (s_r * 20).round() / 20, (s_j * 10).round() / 10, (y * 8).round() / 8


def hard_verdicts(rng: np.random.Generator, n: int) -> Triples:
    """A judge that says 0, 0.5 or 1, and S_R in steps of 0.05."""
    s_r, s_j, y = trusted_middle(rng, n)
    return (s_r * 20).round() / 20, (s_j * 2).round() / 2, y


def narrow(rng: np.random.Generator, n: int) -> Triples:
    """A reranker that is right in one band of 3 to 12 % of its range and blind elsewhere."""
    s_r, start, width = rng.random(n), rng.uniform(0.2, 0.6), rng.uniform(0.03, 0.12)
    y = np.where((s_r > start) & (s_r < start + width), s_r, rng.random(n))
    return s_r, np.clip(y + rng.normal(0.0, 0.3, n), 0.0, 1.0), y


def top(rng: np.random.Generator, n: int) -> Triples:
    """A reranker that is right above 0.97 only."""
    s_r = rng.random(n)
    y = np.where(s_r > 0.97, s_r, np.clip(s_r + rng.normal(0.0, 0.4, n), 0.0, 1.0))
    return s_r, np.clip(y + rng.normal(0.0, 0.15, n), 0.0, 1.0), y


def heap(rng: np.random.Generator, n: int) -> Triples:
    """Nine in ten scores within some thousandths of 0.5, where the reranker is right within 0.0005."""
    s_r = np.where(rng.random(n) < 0.9, rng.normal(0.5, 0.001, n), rng.random(n))
    y = np.where(np.abs(s_r - 0.5) < 0.0005, np.clip((s_r - 0.4995) * 1000, 0.0, 1.0), rng.random(n))
    return s_r, np.clip(y + rng.normal(0.0, 0.4, n), 0.0, 1.0), y


def levels(rng: np.random.Generator, n: int) -> Triples:
    """Three levels of y; the judge names one of them, in four of five cases the right one or by chance."""
    y = rng.integers(0, 3, n) / 2
    s_r = 1.0 / (1.0 + np.exp(-3.0 * (y - 0.5) - rng.normal(0.0, 1.0, n)))
    return s_r, np.where(rng.random(n) < 0.8, y, rng.integers(0, 3, n) / 2), y


def fooled(rng: np.random.Generator, n: int) -> Triples:
    """One reply in seven has S_R of 0.86 to 0.975 at a y of 0.2 to 0.75."""
    y, fooling = rng.random(n), rng.random(n) < 1 / 7
    s_r = np.where(
        fooling, rng.uniform(0.86, 0.975, n), 1.0 / (1.0 + np.exp(-5.0 * (y - 0.5) - rng.normal(0.0, 0.8, n)))
    )
    y = np.where(fooling, rng.uniform(0.2, 0.75, n), y)
    return s_r, np.clip(y + rng.normal(0.0, 0.15, n), 0.0, 1.0), y


TIMED: dict[str, Callable[[np.random.Generator, int], Triples]] = {
    "noisy": noisy,
    "trusted middle": trusted_middle,
    "ties": ties,
    "hard verdicts": hard_verdicts,
}
GENERATORS = TIMED | {"narrow": narrow, "top": top, "heap": heap, "levels": levels, "fooled": fooled}
BOUND = 0.4
"""Share of judge calls in the second comparison of a set."""


def exhaustive(triples: Triples, cuts: Sequence[float], steps: int) -> tuple[int, float]:
    """The number of cascades, and the highest exact rho over all intervals between two of `cuts` (the bands are
    S_R < cut a, S_R > cut b) and all weights in `steps` steps of [0, 1]."""
    s_r, s_j, y = triples
    target = Target.of(y)
    weights = np.arange(steps + 1)[:, None] / steps
    mixes = weights * s_r + (1.0 - weights) * s_j
    best, tried = -np.inf, 0
    for a in range(len(cuts)):
        for b in range(a, len(cuts)):
            below, above = s_r < cuts[a], s_r > cuts[b]
            first = np.where(below, mixes, s_r) if below.any() else s_r[None]
            last = mixes if above.any() else s_r[None]
            for values in first:
                best = max(best, float(_rhos(np.where(above, last, values), target).max()))
            tried += len(first) * len(last)
    return tried, best


def _rhos(values: np.ndarray, target: Target) -> np.ndarray:
    """Spearman's rho of every row of `values` with the target, ties by average ranks; -inf for a constant row."""
    n = values.shape[1]
    order = np.argsort(values, axis=1)
    ordered = np.take_along_axis(values, order, axis=1)
    fresh = np.ones(values.shape, dtype=bool)
    np.not_equal(ordered[:, 1:], ordered[:, :-1], out=fresh[:, 1:])
    y = target.centred[order]
    if fresh.all():
        return y @ (np.arange(n) - (n - 1) / 2) / (target.norm * np.sqrt((n**3 - n) / 12))
    places = np.arange(n, dtype=np.int32)
    first = np.maximum.accumulate(np.where(fresh, places, 0), axis=1)
    ends = np.ones(values.shape, dtype=bool)
    ends[:, :-1] = fresh[:, 1:]
    last = np.minimum.accumulate(np.where(ends, places, n)[:, ::-1], axis=1)[:, ::-1]
    ranks = (first + last) / 2 - (n - 1) / 2
    spread = np.einsum("ij,ij->i", ranks, ranks)
    together = np.einsum("ij,ij->i", ranks, y)
    return np.where(spread > 0, together / (target.norm * np.sqrt(np.maximum(spread, 1e-12))), -np.inf)


def all_cuts(s_r: np.ndarray) -> list[float]:
    """A number between every two neighbouring scores, and 0 and 1 (the generators' scores reach or leave them)."""
    values = np.unique(s_r)
    return [0.0, *((values[1:] + values[:-1]) / 2).tolist(), 1.0]


def gaps(name: str, rows: int, seed: int) -> list[dict[str, Any]]:
    """hamr's fit against all cascades with a cut between any two scores and weights in steps of 0.01. With distinct
    scores also among those that judge at most BOUND of the rows."""
    triples = GENERATORS[name](np.random.default_rng(seed), rows)
    cuts = all_cuts(triples[0])
    bounds: tuple[float, ...] = (1.0,)
    if len(cuts) <= rows:
        count, best = exhaustive(triples, cuts, 100)
        found = [best]
    else:
        bounds = (1.0, BOUND)
        count, found = best_of_every_cascade(triples, bounds)
    out = []
    for bound, rho in zip(bounds, found, strict=True):
        started = time.perf_counter()
        fit = calibrate(*triples, folds=0, resamples=0, max_escalated_frac=bound)
        seconds = time.perf_counter() - started
        out.append(
            {
                "generator": name, "seed": seed, "rows": rows, "cuts": len(cuts), "most_escalated": bound,
                "rho": fit.spearman, "escalated": fit.escalated_frac, "seconds": seconds,
                "cascades": count, "best": rho, "gap": rho - fit.spearman,
            }
        )  # fmt: skip
        print(_gap_line(out[-1]), flush=True)
    return out


def timing(rows: int, repeats: int) -> list[dict[str, Any]]:
    """Wall and CPU seconds of a whole `calibrate`, cross-validation and interval included, and of the fit alone."""
    out = []
    for name, generator in TIMED.items():
        triples = generator(np.random.default_rng(0), rows)
        for what, options in (("whole", {}), ("fit alone", {"folds": 0, "resamples": 0})):
            walls, cpus = [], []
            for _ in range(repeats):
                wall, cpu = time.perf_counter(), time.process_time()
                calibrate(*triples, **options)
                walls.append(time.perf_counter() - wall)
                cpus.append(time.process_time() - cpu)
            out.append({"generator": name, "rows": rows, "what": what, "seconds": walls, "cpu_seconds": cpus})
            print(_time_line(out[-1]), flush=True)
    return out


def _time_line(row: dict[str, Any]) -> str:
    return (
        f"{row['generator']:15s} {row['rows']:7d} rows  {row['what']:9s}  "
        f"{min(row['seconds']):5.2f} .. {max(row['seconds']):5.2f} s  cpu {max(row['cpu_seconds']):5.2f} s"
    )


def _gap_line(row: dict[str, Any]) -> str:
    return (
        f"{row['generator']:15s} seed {row['seed']}  judged <= {row['most_escalated']:.0%}  hamr {row['rho']:.5f}  "
        f"best of {row['cascades']:.2g} {row['best']:.5f}  gap {row['gap']:.5f}"
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only",
        choices=("time", "gap"),
        help="one part; the other's figures in the file stay, also those of other sets",
    )
    parser.add_argument("--time-rows", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", type=int, default=1000, help="rows of the exhaustive search")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--generators", nargs="+", choices=GENERATORS, default=list(GENERATORS))
    parser.add_argument("--out", type=Path, default=HERE / "results" / "calibration.json")
    args = parser.parse_args(argv)
    out = json.loads(args.out.read_text()) if args.only and args.out.is_file() else {}
    when = datetime.now(UTC).isoformat(timespec="seconds")
    if args.only != "gap":
        out |= {
            "when": when,
            "machine": machine() | {"load": os.getloadavg()},
            "versions": versions(),
            "time": timing(args.time_rows, args.repeats),
        }
    if args.only != "time":
        sets = [(name, seed) for seed in args.seeds for name in args.generators]
        kept = [row for row in out.get("gap", []) if (row["generator"], row["seed"]) not in sets]
        out["gap"] = kept + [{"when": when, **row} for name, seed in sets for row in gaps(name, args.rows, seed)]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    write_results(args.out, out)
    print(f"written to {args.out}")


if __name__ == "__main__":
    main()
