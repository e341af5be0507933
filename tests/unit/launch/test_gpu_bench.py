"""The benchmark of one GPU, as far as it can be tested without: its parts run in tiny shapes."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.unit.launch.scripts import LAUNCH, load_script


@pytest.fixture(scope="module")
def gpu_bench() -> ModuleType:
    return load_script("gpu_bench")


def test_parts_fit_into_nine_minutes(gpu_bench: ModuleType) -> None:
    assert gpu_bench.TOTAL_S <= 540
    limits = [limit for _, limit in gpu_bench.PARTS.values()]
    assert sum(limits) <= gpu_bench.TOTAL_S
    assert all(f"    {name} " in gpu_bench.__doc__ for name in gpu_bench.PARTS)


def test_part_gets_the_time_that_earlier_parts_left(gpu_bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_bench, "PARTS", {"a": (None, 10), "b": (None, 20), "c": (None, 30)})
    assert gpu_bench.limit_of(["a", "b", "c"], 60) == 10
    assert gpu_bench.limit_of(["b", "c"], 58) == 28
    assert gpu_bench.limit_of(["c"], 30) == 30


def test_shapes_have_the_size_of_their_names(gpu_bench: ModuleType) -> None:
    assert gpu_bench.parameters("31M") == pytest.approx(31e6, rel=0.02)
    assert gpu_bench.parameters("135M") == pytest.approx(135e6, rel=0.02)
    assert gpu_bench.parameters("4B") == pytest.approx(4e9, rel=0.05)


def test_operations_count_layers_attention_and_rows_of_the_head(gpu_bench: ModuleType) -> None:
    head = 2560 * 151936
    body = gpu_bench.parameters("4B") - head
    attention = 4 * 50 * 36 * 32 * 128
    assert gpu_bench.operations("4B", 100, 10, 50, 3) == 6 * (100 * body + 10 * head) + 3 * attention
    assert gpu_bench.operations("4B", 100, 10, 50, 4) == 8 * 100 * body + 6 * 10 * head + 4 * attention


def test_pairs_of_attention_are_those_of_the_mask(gpu_bench: ModuleType) -> None:
    [group] = gpu_bench.groups_of(2, 3, 2, 10)
    lengths = [len(s.token_ids) for s in group.sequences]
    padded = sum(sum(range(1, 3 + n + 1)) for n in lengths)
    shared = sum(range(1, 4)) + sum(sum(range(3 + 1, 3 + n + 1)) for n in lengths)
    assert gpu_bench.attended(group, "padded") == padded
    assert gpu_bench.attended(group, "shared_prompt") == shared


def test_module_of_the_model_is_as_before_after_a_variant(gpu_bench: ModuleType) -> None:
    from transformers.models.qwen3 import modeling_qwen3

    before = modeling_qwen3.apply_rotary_pos_emb
    with gpu_bench.without_traces():
        modeling_qwen3.apply_rotary_pos_emb = None
    assert modeling_qwen3.apply_rotary_pos_emb is before


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989.0), ("NVIDIA H100 PCIe", 756.0), ("NVIDIA L40", 181.0), ("NVIDIA L4", 121.0),
        ("NVIDIA A100-SXM4-80GB", 312.0), ("NVIDIA A10G", None), ("NVIDIA B200", 2250.0),
    ],
)  # fmt: skip
def test_peak_is_that_of_the_gpu_with_this_name(gpu_bench: ModuleType, name: str, peak: float | None) -> None:
    assert gpu_bench.peak_tflops(name) == peak


def test_difference_above_its_limit_fails_the_part(gpu_bench: ModuleType) -> None:
    limits = {"nats": 1e-3, "gradient": 1e-2}
    assert gpu_bench.above({"nats": 5e-4, "gradient": 5e-3}, limits) == {}
    assert gpu_bench.above({"nats": 0.06, "gradient": 5e-3}, limits) == {"failed": "nats 0.06 is above 0.001"}
    assert "failed" in gpu_bench.above({"nats": float("nan"), "gradient": 5e-3}, limits)


def test_wrong_attention_fails_exactness_and_gap(gpu_bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [row for row in [*gpu_bench.exactness(True), *gpu_bench.gap(True)] if "failed" in row] == []
    right = gpu_bench.evaluated

    def blind(path: Path, groups: list[Any], layout: str, *rest: str) -> Any:
        """Miss the first half of the prompt."""
        changed = [replace(group, prompt_ids=group.prompt_ids[len(group.prompt_ids) // 2 :]) for group in groups]
        return right(path, changed if layout == "shared_prompt" else groups, layout, *rest)

    monkeypatch.setattr(gpu_bench, "evaluated", blind)
    for part in ("exactness", "gap"):
        assert all("failed" in row for row in gpu_bench.PARTS[part][0](True))


def test_goals_are_those_of_shared_prompts_of_four_billion_weights(gpu_bench: ModuleType) -> None:
    row = {"shape": "4B", "layout": "shared_prompt", "tokens_per_s": 5.0, "mfu": 0.3}
    assert gpu_bench.goals(row, 2.0) == {"speedup": 2.5, "met": {"speedup": True, "mfu": False}}
    assert gpu_bench.goals(row, None) == {"met": {"mfu": False}}
    assert gpu_bench.goals(row | {"layout": "plain"}, 5.0) == {"speedup": 1.0}


def test_stages_must_take_the_same_steps_and_resume(gpu_bench: ModuleType) -> None:
    row = {"stage": 0, "grad_norm": 1.0, "next_norm": 0.5, "resumed_norm": 0.5}
    assert gpu_bench.verdict([row, row | {"stage": 1, "grad_norm": 1.01}])["verdict"] == "works"
    for bad in ({"grad_norm": 1.03}, {"resumed_norm": 0.6}, {"crossed_norm": 0.52}):
        assert "failed" in gpu_bench.verdict([row, row | bad])


SCRIPT = """
echo "not a row"; echo '{"seconds": 1.23456}'
case $2 in
    step) sleep 600 & wait;;
    attention) echo broken >&2; exit 3;;
esac
"""


def test_part_that_dies_or_is_late_keeps_its_rows(
    gpu_bench: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The process that the late part has started would keep its output open."""
    (tmp_path / "gpu_bench.sh").write_text(SCRIPT)
    monkeypatch.setattr(gpu_bench, "__file__", str(tmp_path / "gpu_bench.sh"))
    monkeypatch.setattr(sys, "executable", "/bin/sh")
    monkeypatch.setattr(gpu_bench, "PARTS", {"attention": (None, 2.0), "step": (None, 0.5), "gap": (None, 5.0)})
    monkeypatch.setattr(gpu_bench, "TOTAL_S", 7.5)
    monkeypatch.setattr(sys, "argv", ["gpu_bench.py", "attention", "step", "gap"])
    assert gpu_bench.main() == 1
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    failed = {r["part"]: r["failed"] for r in rows if "failed" in r}
    assert failed == {"attention": "exit code 3: broken", "step": failed["step"]}
    assert failed["step"].startswith("no end within")
    assert [r["part"] for r in rows if r.get("seconds") == 1.235] == ["attention", "step", "gap"]


@pytest.mark.deep
@pytest.mark.timeout(300)
def test_parts_run_in_tiny_shapes(tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    parts = ["machine", "exactness", "attention", "step", "deepspeed", "ipc", "gap"]
    done = subprocess.run(
        [sys.executable, str(LAUNCH / "gpu_bench.py"), *parts, "--small", "--out", str(out)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert {row["part"] for row in rows} == set(parts)
    exact = [row for row in rows if row["part"] == "exactness"]
    assert all(row["max_difference_nats"] < 1e-5 and row["gradient_difference"] < 1e-4 for row in exact)
    [found] = [row for row in rows if "verdict" in row]
    assert found["verdict"] == "works" and len(found["crossed"]) == 1
    steps = {row["layout"]: row for row in rows if row["part"] == "step"}
    assert steps["shared_prompt"]["speedup"] > 0
    assert steps["shared_prompt"]["computed_tokens"] < steps["padded"]["computed_tokens"]
