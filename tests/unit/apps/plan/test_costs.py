"""Memory and speed, against hand-computed figures and published sizes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hamr.apps.plan.costs import (
    GIB,
    GPUS,
    answer_time,
    engine_memory,
    gpus_needed,
    sync_time,
    train_time,
    trained_share,
    trainer_memory,
)
from hamr.apps.plan.models import KNOWN, from_config, model_size
from hamr.config.schema import TrainerConfig
from hamr.config.section import LoraConfig
from hamr.errors import BadInput
from hamr.models.bundled import describe, resolve_model

H100 = GPUS["h100"]
JUDGE = KNOWN["qwen3-32b"]


def test_kv_cache_per_token_counts_keys_and_values_of_all_layers() -> None:
    # Qwen3-32B: 2 x 64 layers x 8 heads x 128 x 2 bytes.
    assert JUDGE.kv_bytes_per_token == 262_144
    memory = engine_memory(JUDGE, H100, 4, sequences=16, tokens=4096, utilisation=0.9)
    assert memory.weights_gib == pytest.approx(32.76e9 * 2 / 4 / GIB)
    assert memory.cache_gib == pytest.approx(16 * 4096 * 262_144 / 4 / GIB) == pytest.approx(4.0)
    assert memory.have_gib == pytest.approx(71.1)
    assert memory.fits


def test_tensor_parallelism_is_the_smallest_that_fits_weights_and_cache() -> None:
    few = {"sequences": 16, "tokens": 4096, "utilisation": 0.9}
    # 61 GiB of weights and 16 of cache do not go into 71; half of each does.
    assert gpus_needed(JUDGE, H100, **few) == 2
    assert gpus_needed(KNOWN["qwen3-4b"], H100, **few) == 1
    assert gpus_needed(JUDGE, H100, sequences=2000, tokens=4096, utilisation=0.9) is None
    # Three heads of keys and values divide by no power of two but one, and are divided by none.
    assert gpus_needed(KNOWN["smollm2-135m"], H100, sequences=10_000, tokens=4096, utilisation=0.9) is None


def test_answer_time_counts_weight_reads_per_token_and_prefill_once() -> None:
    time = answer_time(JUDGE, H100, 1, prompt_tokens=1000, cached_frac=0.75, output_tokens=100)
    bandwidth, flops = 3.35e12 * 0.6, 989e12 * 0.4
    assert time.fixed_s == pytest.approx(100 * 65.52e9 / bandwidth)
    cache = 262_144 * 1050 / bandwidth
    assert time.each_s == pytest.approx(65.52e9 * 250 / flops + 100 * (cache + 65.52e9 / flops))
    faster = answer_time(JUDGE, H100, 4, prompt_tokens=1000, cached_frac=0.75, output_tokens=100)
    assert faster.fixed_s == pytest.approx(time.fixed_s / (4 * 0.8))


def test_training_costs_6_flops_per_parameter_and_8_with_recomputation() -> None:
    model = KNOWN["qwen3-4b"]
    plain = train_time(model, H100, 8, 1e5, recompute=False)
    assert plain == pytest.approx(6 * 4.02e9 * 1e5 / (8 * 989e12 * 0.35))
    assert train_time(model, H100, 8, 1e5, recompute=True) == pytest.approx(plain * 8 / 6)
    assert train_time(model, H100, 8, 1e5, recompute=False, trained=0.02) == pytest.approx(plain * 4.04 / 6)
    assert sync_time(model, 1.0) == pytest.approx(8.04 / 25)
    assert sync_time(model, trained_share(LoraConfig(rank=32))) == pytest.approx(0.02 * 8.04 / 25)


@pytest.mark.parametrize(("stage", "bytes_each"), [(0, 16), (1, 6 + 12 / 8), (2, 2 + 16 / 8), (3, 18 / 8)])
def test_zero_partitions_memory_by_stage(stage: int, bytes_each: float) -> None:
    model = KNOWN["qwen3-4b"]
    trainer = TrainerConfig(ranks=8, zero_stage=stage, tokens_per_microbatch=1024, gradient_checkpointing=True)
    memory = trainer_memory(model, H100, trainer, reference=False)
    assert memory.weights_gib == pytest.approx(4.02e9 * bytes_each / GIB)
    assert memory.cache_gib == pytest.approx(2 * 2560 * 36 * 1024 / GIB)


def test_model_size_is_looked_up_by_base_name() -> None:
    assert model_size("model.path", "Qwen/Qwen3-4B") == KNOWN["qwen3-4b"]
    assert model_size("model.path", "Qwen/Qwen2.5-7B-Instruct") == KNOWN["qwen2.5-7b"]
    with pytest.raises(BadInput, match=r"pools.judge.model: 'acme/oracle': its size is not known"):
        model_size("pools.judge.model", "acme/oracle")


def test_config_of_a_folder_overrides_known_sizes(tmp_path: Path) -> None:
    config = {
        "hidden_size": 2560, "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128, "intermediate_size": 9728, "vocab_size": 151936, "tie_word_embeddings": True,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    size = model_size("model.path", str(tmp_path))
    assert size.parameters == pytest.approx(KNOWN["qwen3-4b"].parameters, rel=0.002)
    assert size.kv_bytes_per_token == KNOWN["qwen3-4b"].kv_bytes_per_token
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_experts": 128}))
    with pytest.raises(BadInput, match="mixture of experts"):
        model_size("model.path", str(tmp_path))
    (tmp_path / "config.json").write_text('{"hidden_size": 3}')
    with pytest.raises(BadInput, match="not that of a dense decoder"):
        model_size("model.path", str(tmp_path))


@pytest.mark.slow
def test_known_sizes_match_the_bundled_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HAMR_CACHE", str(tmp_path))
    folder = resolve_model("tiny")
    told, counted = from_config(json.loads((folder / "config.json").read_text())), describe(folder)
    assert told.parameters == pytest.approx(counted["parameters"], rel=0.01)
    assert (told.layers, told.hidden) == (KNOWN["tiny"].layers, KNOWN["tiny"].hidden)
    assert told.kv_bytes_per_token == KNOWN["tiny"].kv_bytes_per_token
