"""Weight files in shared memory, the comparison of log-probabilities, and the ranks of independent engines."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from hamr.errors import BadInput
from hamr.models.weights import (
    check_shared_room,
    engine_init,
    logprob_gap,
    sweep_stale,
    unchanged_attention,
    weight_file,
)
from hamr.trainer.deepspeed_weights import overwritten, write_safetensors

LOGPROBS = st.lists(st.floats(min_value=-60, max_value=0), min_size=1, max_size=20)


def test_sweep_removes_only_files_of_dead_processes_of_this_container(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    own = weight_file(tmp_path, "ab")
    dead = own.with_name(own.name.replace(f"-{os.getpid()}-", f"-{child.pid}-"))
    others = [tmp_path / "psm_123", tmp_path / "hamr-weights-x-1.safetensors", dead.with_suffix(".txt")]
    others.append(tmp_path / f"hamr-weights-1-{child.pid}-ab.safetensors")  # of another container
    for file in (dead, own, *others):
        file.write_text("w")
    assert sweep_stale(tmp_path) == [dead]
    assert sorted(tmp_path.iterdir()) == sorted([own, *others])


def test_sweep_keeps_the_files_of_other_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not this run's to remove, and the sticky folder does not let it."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    theirs = tmp_path / weight_file(tmp_path, "ab").name.replace(f"-{os.getpid()}-", f"-{child.pid}-")
    theirs.write_text("w")
    me = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: me + 1)
    assert sweep_stale(tmp_path) == [] and theirs.exists()


def test_file_name_contains_namespace_process_and_group(tmp_path: Path) -> None:
    assert re.fullmatch(rf"hamr-weights-\d+-{os.getpid()}-ab\.safetensors", weight_file(tmp_path, "ab").name)


def test_insufficient_shared_memory_is_rejected(tmp_path: Path) -> None:
    check_shared_room(tmp_path, 1)
    with pytest.raises(BadInput, match=rf"rollout.transfer: '{tmp_path}': .* GB free on .*1000000000.0 GB needed"):
        check_shared_room(tmp_path, 10**18)
    with pytest.raises(BadInput, match="0.0 GB free"):
        check_shared_room(tmp_path / "none", 1)


def test_logprob_gap_matches_hand_computed_values() -> None:
    assert logprob_gap([-1.0, -2.0, -math.inf], [-1.5, -2.0, -math.inf]) == (pytest.approx(0.5 / 3), 0.5)
    assert logprob_gap([], []) == (0.0, 0.0)
    assert logprob_gap([-math.inf], [-1.0]).max == math.inf
    with pytest.raises(ValueError, match="one text"):
        logprob_gap([-1.0], [])


@given(LOGPROBS, st.floats(min_value=-3, max_value=3))
def test_logprob_gap_measures_a_shift_and_is_symmetric(logprobs: list[float], shift: float) -> None:
    shifted = [x + shift for x in logprobs]
    gap = logprob_gap(logprobs, shifted)
    assert gap.mean == pytest.approx(abs(shift), abs=1e-9)
    assert gap.max == pytest.approx(abs(shift), abs=1e-9)
    assert gap == logprob_gap(shifted, logprobs)


@given(engines=st.integers(1, 6), tensor_parallel=st.integers(1, 4))
def test_every_worker_gets_its_own_rank(engines: int, tensor_parallel: int) -> None:
    """The sender has rank 0; vLLM adds a worker's rank within its engine to the offset."""
    ranks = [
        engine_init({"rank_offset": 1, "packed": True}, engine, tensor_parallel)["rank_offset"] + within
        for engine in range(engines)
        for within in range(tensor_parallel)
    ]
    assert [0, *ranks] == list(range(1 + engines * tensor_parallel))


@given(
    shapes=st.lists(st.lists(st.integers(0, 4), max_size=3), min_size=1, max_size=4),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
)
@settings(max_examples=25, deadline=None)
def test_overwritten_file_equals_one_written_by_safetensors(
    tmp_path_factory: pytest.TempPathFactory, shapes: list[list[int]], dtype: torch.dtype
) -> None:
    """Overwrites a longer and a shorter file in the same inode; safetensors reads the result."""
    tensors = {f"layer.{i}.wéight": torch.randn(shape).to(dtype) for i, shape in enumerate(shapes)}
    file = tmp_path_factory.mktemp("weights") / "w.safetensors"
    for before in (b"", b"x" * 10_000, b"y"):
        file.write_bytes(before)
        inode = file.stat().st_ino
        with overwritten(file) as opened:
            metadata = [(name, dtype, tensor.shape) for name, tensor in tensors.items()]
            write_safetensors(metadata, tensors.items(), opened)
        assert file.stat().st_ino == inode
        read = load_file(file)
        assert read.keys() == tensors.keys()
        assert all(read[name].dtype == dtype and torch.equal(read[name], tensors[name]) for name in tensors)


@pytest.mark.deep
def test_choice_of_cudnn_attention_survives_vllm() -> None:
    """vLLM switches it off where it is imported on GPUs. Its build for CPUs lacks the operators."""
    pytest.importorskip("vllm")
    script = (
        "import sys, torch, types; from hamr.models.weights import unchanged_attention\n"
        "sys.modules.setdefault('vllm._C_stable_libtorch', types.ModuleType('operators'))\n"
        "torch.backends.cuda.enable_cudnn_sdp(True)\n"
        "with unchanged_attention():\n"
        "    import vllm.platforms.cuda\n"
        "    switched = not torch.backends.cuda.cudnn_sdp_enabled()\n"
        "print(switched, torch.backends.cuda.cudnn_sdp_enabled())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-2:] == ["True", "True"]


@pytest.mark.parametrize("enabled", [True, False])
def test_choice_of_cudnn_attention_survives_an_import_that_changes_it(enabled: bool) -> None:
    before = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        torch.backends.cuda.enable_cudnn_sdp(enabled)
        with unchanged_attention():
            torch.backends.cuda.enable_cudnn_sdp(not enabled)
        assert torch.backends.cuda.cudnn_sdp_enabled() is enabled
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
