"""The hamr side of the benchmarks on tiny sizes: it does the work that it reports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hamr.calibration.ranks import spearman

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.integration


SMALL = ["--only", "hamr", "--model", "tiny", "--prompts", "2", "--samples", "4", "--prompt-tokens", "40"]


def test_hamr_side_does_the_reported_work(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "step_time.py"), *SMALL]
    done = subprocess.run(
        [*command, "--new-tokens", "16", "--pairs", "1", "--threads", "1", "--out", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    side = json.loads(out.read_text())["sides"]["hamr"]
    [step] = side["steps"]
    assert set(step["phases"]) == {"generation", "scoring", "training", "sync"}
    assert sum(step["phases"].values()) <= step["seconds"]
    assert step["cpu_seconds"] > 0
    # The trainer saw every token that was sampled, and took the step.
    assert step["metrics"]["policy/tokens"] == 2 * 4 * 16
    assert step["metrics"]["policy/skipped_steps"] == 0
    assert step["metrics"]["policy/grad_norm"] > 0


def test_calibration_is_compared_with_an_exhaustive_grid_search(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "calibration.py"), "--only", "gap", "--out", str(out)]
    small = ["--rows", "30", "--generators", "ties", "hard verdicts", "fooled"]
    done = subprocess.run([*command, *small], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for row in json.loads(out.read_text())["gap"]:
        assert row["cascades"] > 100_000
        # With 30 distinct scores one exchange of neighbours moves rho by up to 0.01.
        assert -1e-9 <= row["gap"] <= (0.01 if row["generator"] == "fooled" else 0.001)


@pytest.mark.parametrize("name", ["noisy", "trusted middle", "levels"])
def test_best_of_every_cascade_equals_the_exhaustive_search(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import calibration

    triples = calibration.GENERATORS[name](np.random.default_rng(3), 12)
    _, best = calibration.exhaustive(triples, calibration.all_cuts(triples[0]), 100)
    count, (free, bounded, never) = calibration.best_of_every_cascade(triples, (1.0, 0.5, 0.0))
    assert count == 13 * 14 // 2 * 101**2
    assert free == pytest.approx(best, abs=1e-12) and never <= bounded <= free
    assert never == pytest.approx(spearman(triples[0], triples[2]), abs=1e-12)


def test_router_load_goes_through_the_router_actor(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "router_load.py"), "--only", "actor", "--out", str(out)]
    small = ["--groups", "2", "--responses", "4", "--alone", "4", "--rates", "1000"]
    done = subprocess.run([*command, *small], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    actor = json.loads(out.read_text())["actor"]
    assert actor["responses"] == 8
    assert actor["p50_ms"] <= actor["p99_ms"]


def test_soak_counts_every_response(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "soak.py"), "--out", str(out), "--responses", "64"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())["summary"]
    assert found["responses"] == sum(found["outcomes"].values()) == 64
    assert (found["lost"], found["twice"], found["raised"], found["replayed otherwise"]) == (0, 0, 0, 0)
    assert sum(found["faults"].values()) >= 64, "the reranker was asked about every response"


def test_sft_packing_gives_equal_steps_in_every_layout(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "sft_packing.py"), "--out", str(out)]
    small = ["--batch", "2", "--steps", "1", "--hidden", "64", "--layers", "1", "--threads", "1"]
    done = subprocess.run([*command, *small], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    [step] = found["seconds"]
    assert set(step) == {"padded", "packed", "shared_prompt"}
    assert found["padded_over_real_tokens"] >= 1.0
    assert found["ratio"]["packed"] == pytest.approx(step["padded"]["clock"] / step["packed"]["clock"])
    assert found["tokens_per_s"]["packed"] == pytest.approx(found["tokens"][0] / step["packed"]["clock"])
