"""The benchmark of one GPU, as far as it can be tested without: its parts run in tiny shapes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.unit.launch.scripts import LAUNCH, load_script


@pytest.fixture(scope="module")
def gpu_bench() -> ModuleType:
    return load_script("gpu_bench")


def test_parts_fit_into_nine_minutes(gpu_bench: ModuleType) -> None:
    assert gpu_bench.TOTAL_S <= 540
    assert all(limit <= gpu_bench.TOTAL_S for _, limit in gpu_bench.PARTS.values())
    assert all(f"    {name} " in gpu_bench.__doc__ for name in gpu_bench.PARTS)


def test_shapes_have_the_size_of_their_names(gpu_bench: ModuleType) -> None:
    assert gpu_bench.parameters("135M") == pytest.approx(135e6, rel=0.02)
    assert gpu_bench.parameters("4B") == pytest.approx(4e9, rel=0.05)


def test_part_that_dies_is_a_line_and_costs_the_others_nothing(
    gpu_bench: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def child(arguments: list[str], limit_s: float) -> str:
        if arguments[1] == "step":
            raise subprocess.TimeoutExpired("gpu_bench.py", limit_s)
        return '{"seconds": 1.23456}\n'

    monkeypatch.setattr(gpu_bench, "child", child)
    monkeypatch.setattr(sys, "argv", ["gpu_bench.py", "attention", "step", "gap"])
    assert gpu_bench.main() == 1
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["part"] for row in rows if "failed" in row] == ["step"]
    assert {"part": "gap", "seconds": 1.235} in rows


@pytest.mark.deep
@pytest.mark.timeout(300)
def test_parts_run_in_tiny_shapes(tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    parts = ["exactness", "attention", "step", "gap"]
    done = subprocess.run(
        [sys.executable, str(LAUNCH / "gpu_bench.py"), *parts, "--small", "--out", str(out)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert {row["part"] for row in rows} == set(parts)
    assert all(row["max_difference_nats"] < 1e-5 for row in rows if row["part"] == "exactness")
    steps = {row["layout"]: row for row in rows if row["part"] == "step"}
    assert steps["shared_prompt"]["computed_tokens"] < steps["padded"]["computed_tokens"]
