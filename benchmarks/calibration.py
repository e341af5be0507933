"""Calibrating the cascade: how long it takes, and how far it stays behind exhaustive search.

    python benchmarks/calibration.py                # both parts, some minutes
    python benchmarks/calibration.py --only time
    python benchmarks/calibration.py --only gap --rows 1000 --minutes 1

README.md in this folder says how to read what it prints.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

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


GENERATORS: dict[str, Callable[[np.random.Generator, int], Triples]] = {
    "noisy": noisy,
    "trusted middle": trusted_middle,
    "ties": ties,
    "hard verdicts": hard_verdicts,
}


def exhaustive(triples: Triples, cuts: Sequence[float], steps: int, seconds: float = float("inf")) -> dict[str, Any]:
    """The highest exact rho over all intervals between two of `cuts` (the bands are S_R < cut a, S_R > cut b) and all
    weights in `steps` steps of [0, 1]; stops after `seconds` and says so."""
    s_r, s_j, y = triples
    target = Target.of(y)
    weights = np.arange(steps + 1)[:, None] / steps
    mixes = weights * s_r + (1.0 - weights) * s_j
    best, tried, started = -np.inf, 0, time.perf_counter()
    for a in range(len(cuts)):
        for b in range(a, len(cuts)):
            below, above = s_r < cuts[a], s_r > cuts[b]
            first = np.where(below, mixes, s_r) if below.any() else s_r[None]
            last = mixes if above.any() else s_r[None]
            for values in first:
                best = max(best, float(_rhos(np.where(above, last, values), target).max()))
            tried += len(first) * len(last)
            if time.perf_counter() - started > seconds:
                return {"rho": best, "candidates": tried, "complete": False}
    return {"rho": best, "candidates": tried, "complete": True}


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


def gap(name: str, rows: int, seed: int, minutes: float) -> dict[str, Any]:
    """hamr's fit against exhaustive search: over the whole of hamr's own grid where S_R has few values, else over the
    finest even grid that takes about so long."""
    triples = GENERATORS[name](np.random.default_rng(seed), rows)
    started = time.perf_counter()
    fit = calibrate(*triples, folds=0, resamples=0)
    seconds = time.perf_counter() - started
    cuts, steps = all_cuts(triples[0]), 100
    whole = len(cuts) <= 40
    if not whole:
        started = time.perf_counter()
        exhaustive(triples, [0.3, 0.6], 20)
        affordable = minutes * 60 / ((time.perf_counter() - started) / (3 * 21**2))
        steps = 20
        many = max(3, int((2 * affordable / (steps + 1) ** 2) ** 0.5))
        cuts = np.quantile(cuts, np.linspace(0, 1, many)).tolist()
    found = exhaustive(triples, cuts, steps, 10 * 60 * minutes)
    return {
        "generator": name,
        "seed": seed,
        "rows": rows,
        "rho": fit.spearman,
        "seconds": seconds,
        "exhaustive": found,
        "cuts": len(cuts),
        "weight_steps": steps,
        "whole_grid": whole and found["complete"],
        "gap": found["rho"] - fit.spearman,
    }


def timing(rows: int, repeats: int) -> list[dict[str, Any]]:
    """Wall and CPU seconds of a whole `calibrate`, cross-validation and interval included, and of the fit alone."""
    out = []
    for name, generator in GENERATORS.items():
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
    grid = f"{row['cuts']} cuts, weights by {1 / row['weight_steps']:g}, {row['exhaustive']['candidates']:.2g} cascades"
    kind = "whole grid" if row["whole_grid"] else "coarser grid" if row["exhaustive"]["complete"] else "cut short"
    return (
        f"{row['generator']:15s} seed {row['seed']}  hamr {row['rho']:.5f}  exhaustive {row['exhaustive']['rho']:.5f}"
        f"  gap {row['gap']:+.5f}  ({kind}: {grid})"
    )


def machine() -> dict[str, Any]:
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    names = [line.split(":", 1)[1].strip() for line in info.splitlines() if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "load": os.getloadavg(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("time", "gap"), help="one part; the other's figures in the file stay")
    parser.add_argument("--time-rows", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rows", type=int, default=1000, help="rows of the exhaustive search")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--generators", nargs="+", choices=GENERATORS, default=list(GENERATORS))
    parser.add_argument("--minutes", type=float, default=1.0, help="per exhaustive search over a coarser grid")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "calibration.json")
    args = parser.parse_args(argv)
    out = json.loads(args.out.read_text()) if args.only and args.out.is_file() else {}
    out |= {"when": datetime.now(UTC).isoformat(timespec="seconds"), "machine": machine()}
    if args.only != "gap":
        out["time"] = timing(args.time_rows, args.repeats)
    if args.only != "time":
        out["gap"] = []
        for name in args.generators:
            for seed in args.seeds:
                out["gap"].append(gap(name, args.rows, seed, args.minutes))
                print(_gap_line(out["gap"][-1]), flush=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(out, indent=1) + "\n")
    print(f"written to {args.out}")


if __name__ == "__main__":
    main()
