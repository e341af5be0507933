"""Adapters as PEFT folders: base model and adapter give the logits of the merged checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hamr.config.section import LoraConfig  # noqa: E402
from hamr.trainer.adapters import FOLDER, adapter_files, read_adapter, trained_adapter, write_adapter  # noqa: E402
from hamr.trainer.deepspeed_weights import side_files, write_model_folder  # noqa: E402
from hamr.trainer.policy_model import load_policy  # noqa: E402

FIRST = LoraConfig(rank=2, alpha=5.0, target_modules=("q_proj", "down_proj"))
SECOND = LoraConfig(rank=3, target_modules=("q_proj", "v_proj"))
IDS = torch.arange(1, 13)[None]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    sizes = dict(vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)
    folder = tmp_path_factory.mktemp("base")
    Qwen3ForCausalLM(Qwen3Config(**sizes, num_key_value_heads=2, head_dim=8)).save_pretrained(folder)
    return folder


def stage(model: Path, lora: LoraConfig, seed: int) -> Any:
    """Return the policy of a stage on `model` whose adapter is far from zero."""
    torch.manual_seed(seed)
    policy = load_policy(model, dtype=torch.float32, layout="padded", lora=lora)
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    return policy


def written(path: Path) -> Any:
    return path.open("wb")


@pytest.fixture(scope="module")
def stages(base: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Checkpoints of two stages, the second with another rank, scale and layers."""
    folder = tmp_path_factory.mktemp("stages")
    first, second = folder / "first", folder / "second"
    policy = stage(base, FIRST, 1)
    write_model_folder(policy, first, torch.float32, 0, side_files(base), written)
    write_adapter(trained_adapter(policy), first / FOLDER)
    policy.causal_lm.save_pretrained(folder / "peft")
    policy = stage(first, SECOND, 2)
    write_model_folder(policy, second, torch.float32, 0, side_files(base), written)
    earlier = read_adapter(first / FOLDER)
    assert earlier is not None
    write_adapter(earlier.join(trained_adapter(policy)), second / FOLDER)
    return first, second


@torch.no_grad()
def logits(model: Any) -> Any:
    return model.eval()(IDS).logits


def plain(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


@pytest.mark.parametrize("number", [0, 1])
def test_base_and_adapter_give_the_logits_of_the_merged_checkpoint(
    base: Path, stages: tuple[Path, Path], number: int
) -> None:
    from peft import PeftModel

    merged = logits(plain(stages[number]))
    assert (logits(plain(base)) - merged).abs().max() > 0.01
    adapted = logits(PeftModel.from_pretrained(plain(base), stages[number] / FOLDER))
    torch.testing.assert_close(adapted, merged, atol=1e-4, rtol=0)


def test_later_adapter_alone_belongs_to_the_merged_weights_of_the_earlier_stage(
    stages: tuple[Path, Path], tmp_path: Path
) -> None:
    from peft import PeftModel

    joined = read_adapter(stages[1] / FOLDER)
    assert joined is not None
    for name, content in adapter_files(joined.part(2, joined.rank)).items():
        (tmp_path / name).write_bytes(content)
    adapted = logits(PeftModel.from_pretrained(plain(stages[0]), tmp_path))
    torch.testing.assert_close(adapted, logits(plain(stages[1])), atol=1e-4, rtol=0)


def test_adapter_of_one_stage_equals_the_one_that_peft_writes(stages: tuple[Path, Path]) -> None:
    from safetensors.torch import load_file

    ours, theirs = (
        load_file(folder / "adapter_model.safetensors") for folder in (stages[0] / FOLDER, stages[0].parent / "peft")
    )
    assert ours.keys() == theirs.keys()
    assert "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight" in ours
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())
    settings = json.loads((stages[0] / FOLDER / "adapter_config.json").read_text())
    assert (settings["peft_type"], settings["r"], settings["lora_alpha"]) == ("LORA", 2, 5.0)
    assert set(settings["target_modules"]) == {"q_proj", "down_proj"}


def test_earlier_adapter_is_restored_from_the_joined_one(stages: tuple[Path, Path]) -> None:
    first, second = (read_adapter(folder / FOLDER) for folder in stages)
    assert first is not None and second is not None
    earlier = second.part(0, second.rank - 3)
    assert any(up.any() for _, up in earlier.pairs.values())
    assert (earlier.rank, earlier.alpha) == (2, 2)
    for name, (down, up) in first.pairs.items():
        assert torch.equal(earlier.pairs[name][0], down)
        torch.testing.assert_close(earlier.pairs[name][1], up * 2.5)
    assert not any(up.any() for name, (_, up) in earlier.pairs.items() if "v_proj" in name)


def test_folder_without_adapter_has_none(base: Path) -> None:
    assert read_adapter(base / FOLDER) is None
