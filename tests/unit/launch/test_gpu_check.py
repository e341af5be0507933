"""The check of a GPU node, as far as it can be tested without GPUs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hamr.cluster.resource_requests import learners
from hamr.config.load import load_config
from tests.unit.launch.scripts import LAUNCH, load_script
from tests.unit.trainer.test_attention_kernels import backward, flash_on_cpu


@pytest.fixture(scope="module")
def gpu_check() -> ModuleType:
    return load_script("gpu_check")


def test_missing_gpu_is_reported_in_one_line(
    gpu_check: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_check, "gpu_count", lambda: 0)
    assert gpu_check.main([]) == 1
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert "no GPU here" in out


SCRIPTED = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
import gpu_check
from gpu_check import Check, NotHere, run

def works(): return "seen"
def raises(): raise RuntimeError("two\\nlines")
def dies(): os._exit(7)
def hangs(): time.sleep(600)
def absent(): raise NotHere("not installed")

if __name__ == "__main__":
    for f in (works, raises, dies, hangs, absent):
        result = run(Check(name=f.__name__, run=f), have=1, limit_s=3.0 if f is hangs else 60.0)
        print(result.works, result.detail, sep="|")
    print(run(Check(name="two", run=works, gpus=2), have=1).detail)
"""


@pytest.mark.slow
def test_each_check_runs_in_a_separate_process(tmp_path: Path) -> None:
    script = tmp_path / "scripted.py"
    script.write_text(SCRIPTED)
    done = subprocess.run([sys.executable, str(script), str(LAUNCH)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "True|seen",
        "False|RuntimeError: two lines",
        "False|its process died (exit code 7)",
        "False|no answer within 3 s",
        "None|not installed",
        "needs 2 GPUs, there are 1",
    ]


def test_only_required_checks_decide_the_result(gpu_check: ModuleType) -> None:
    def needed(works: bool | None, optional: bool) -> bool:
        return gpu_check.needed(gpu_check.Result(name="x", works=works, detail="", seconds=0.0, optional=optional))

    assert [needed(w, False) for w in (True, False, None)] == [False, True, True]
    # What is optional need not be there; where it is there it has to work.
    assert [needed(w, True) for w in (True, False, None)] == [False, True, False]


def test_trainer_engine_agreement_is_read_from_the_metrics(gpu_check: ModuleType) -> None:
    def rows(*gaps: float | None) -> str:
        return "\n".join(json.dumps({"step": i, "rollout/logprob_diff/mean": gap}) for i, gap in enumerate(gaps))

    assert "after 2 syncs, in nats: 0.02" in gpu_check.agreement(rows(0.01, 0.02, None))
    with pytest.raises(RuntimeError, match="checked no sync"):
        gpu_check.agreement(rows(None))
    for bad in (3.0, float("nan")):
        with pytest.raises(RuntimeError, match="above"):
            gpu_check.agreement(rows(bad))


def test_runs_of_the_checks_need_only_the_gpus_that_they_name(
    gpu_check: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    apart = load_config(gpu_check.apart_overrides())
    assert (apart.rollout.transfer, apart.trainer.backend, apart.rollout.check_logprobs) == ("nccl", "nccl", True)
    runs: list[list[str]] = []
    monkeypatch.setattr(gpu_check, "smoke_run", runs.append)
    trained = ("colocated", "two ranks", "nccl weight", "in flight")
    checks = [check for check in gpu_check.CHECKS if check.name.startswith(trained)]
    for check in checks:
        check.run()
    configs = {check.name: load_config(overrides) for check, overrides in zip(checks, runs, strict=True)}
    for check in checks:
        config = configs[check.name]
        rank, engine = config.trainer.num_gpus, config.rollout.engine.num_gpus
        assert not config.with_asked_pools().pools, "vLLM's build for GPUs has no engines on CPUs"
        assert config.trainer.ranks * rank + config.rollout.workers * engine == check.gpus
        if not check.name.startswith(("nccl", "in flight")):
            assert config.rollout.colocated and config.experiment.sft.steps and config.algorithm.kl.measure
    assert [configs[f"two ranks{how}"].rollout.transfer for how in ("", " over ipc")] == ["shared_memory", "ipc"]
    assert {configs[f"two ranks{how}"].trainer.zero_stage for how in ("", " over ipc")} == {3}
    assert configs["colocated with adapter"].trainer.lora is not None


def test_checks_share_a_budget_and_are_written_as_json(
    gpu_check: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock = iter(range(0, 10_000, 50))
    monkeypatch.setattr(gpu_check.time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(gpu_check, "gpu_count", lambda: 1)
    limits: list[float] = []

    def run(check: Any, have: int, limit_s: float) -> Any:
        limits.append(limit_s)
        return gpu_check.Result(name=check.name, works=True, detail="", seconds=1.5, optional=check.optional)

    monkeypatch.setattr(gpu_check, "run", run)
    out = tmp_path / "checks.jsonl"
    assert gpu_check.main(["--one-gpu", "--minutes", "3", "--out", str(out)]) == 1
    assert limits == [130.0, 80.0, 30.0]
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["name"] for row in rows] == [check.name for check in gpu_check.CHECKS if check.gpus == 1]
    assert rows[0]["seconds"] == 1.5
    assert (rows[-1]["works"], rows[-1]["detail"]) == (None, "the 3 minutes are over")


def test_two_gpu_engine_gets_one_bundle_of_a_placement_group(gpu_check: ModuleType) -> None:
    """vLLM sees the same bundle here and in a run."""
    config = load_config(gpu_check.rollout_overrides(2))
    assert config.rollout.engine.tensor_parallel_size == 2
    [together] = learners(config)
    assert [bundle.get("GPU", 0) for bundle in together.bundles()] == [0, 2]


def test_flash_check_compares_outputs_and_gradients(gpu_check: ModuleType) -> None:
    with flash_on_cpu():
        assert 0 < gpu_check.flash_gap("cpu") < 0.02

    def half(*values: Any, scale: float) -> tuple[Any, ...]:
        dq, dk, dv = backward(*values, scale=scale)
        return dq, dk * 0.5, dv

    with flash_on_cpu(half):
        assert gpu_check.flash_gap("cpu") > 0.3


def test_every_gpu_part_has_a_check(gpu_check: ModuleType) -> None:
    names = {check.name for check in gpu_check.CHECKS}
    assert {"nccl weight transfer", "flash-attention", "tensor parallel", "sleep mode", "replaced engine"} <= names
    assert {"colocated", "colocated over ipc", "colocated with adapter", "in flight"} <= names
    assert {"two ranks", "two ranks over ipc"} <= names
