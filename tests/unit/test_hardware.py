"""`dtype: auto` follows the hardware, and a chosen type is kept."""

from __future__ import annotations

import pytest

from hamr import hardware
from hamr.config.load import dump_config, load_config, load_dumped
from hamr.errors import ConfigError
from hamr.hardware import prefers_bfloat16, resolve_dtype


@pytest.mark.parametrize(
    ("flags", "vendor", "environment", "expected"),
    [
        ("avx2", "AuthenticAMD", {}, False),
        ("avx2 avx512f", "GenuineIntel", {}, False),
        ("avx512f avx512_bf16", "AuthenticAMD", {}, True),
        ("avx512f avx512_bf16", "GenuineIntel", {}, False),
        ("avx512_bf16 amx_bf16", "GenuineIntel", {}, True),
        ("avx512_bf16", "AuthenticAMD", {"ATEN_CPU_CAPABILITY": "avx2"}, False),
        ("avx512_bf16", "AuthenticAMD", {"ONEDNN_MAX_CPU_ISA": "AVX2"}, False),
        ("avx512_bf16", "AuthenticAMD", {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}, True),
        ("avx512_bf16 amx_bf16", "GenuineIntel", {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}, False),
        ("avx512_bf16 amx_bf16", "GenuineIntel", {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_AMX"}, True),
    ],
)
def test_bfloat16_requires_fast_instructions_and_permission(flags, vendor, environment, expected):
    assert prefers_bfloat16(flags, vendor, environment) is expected


@pytest.mark.parametrize("native", [False, True])
def test_auto_dtype_follows_the_cpu_and_is_bfloat16_on_gpus(monkeypatch, native):
    monkeypatch.setattr(hardware, "cpu_prefers_bfloat16", lambda: native)
    assert resolve_dtype("auto", on_gpu=False) == ("bfloat16" if native else "float32")
    assert resolve_dtype("auto", on_gpu=True) == "bfloat16"
    assert resolve_dtype("float32", on_gpu=True) == "float32"
    assert resolve_dtype("bfloat16", on_gpu=False) == "bfloat16"


def test_auto_dtype_is_resolved_in_every_section_and_saved(monkeypatch, tmp_path):
    monkeypatch.setattr(hardware, "cpu_prefers_bfloat16", lambda: False)
    config = load_config(["experiment=quickstart", "pools.judge.dtype=bfloat16"])
    assert (config.model.dtype, config.trainer.dtype) == ("float32", "float32")
    assert (config.pools["reranker"].dtype, config.pools["judge"].dtype) == ("float32", "bfloat16")
    assert config.pools["reranker"].finetune.dtype == "float32"
    saved = tmp_path / "config.yaml"
    saved.write_text(dump_config(config))
    assert "auto" not in [line.split()[-1] for line in saved.read_text().splitlines() if "dtype" in line]
    monkeypatch.setattr(hardware, "cpu_prefers_bfloat16", lambda: True)
    assert load_dumped(saved) == config


def test_sections_with_gpus_resolve_to_bfloat16_on_any_driver(monkeypatch):
    monkeypatch.setattr(hardware, "cpu_prefers_bfloat16", lambda: False)
    config = load_config(["experiment=paper_hrm"])
    assert config.model.dtype == config.trainer.dtype == config.pools["judge"].dtype == "bfloat16"


def test_unknown_dtype_is_reported_with_the_choices():
    with pytest.raises(ConfigError, match=r"^model\.dtype.*float16") as error:
        load_config(["experiment=smoke", "model.dtype=float16"])
    assert "bfloat16" in str(error.value) and "\n" not in str(error.value)
