"""LoRA adapters as PEFT folders. A run's stages train adapters of their own, each on the merged weights of the previous
stage; joined, they are one adapter of the model that the first stage started from."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from hamr.trainer.deepspeed_weights import gather
from hamr.trainer.policy_model import PolicyModel

FOLDER = "adapter"
"""Folder of the adapter inside that of the merged model."""
WEIGHTS, SETTINGS = "adapter_model.safetensors", "adapter_config.json"
_PREFIX = "base_model.model."
"""PEFT's prefix of the names of the base model."""


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """Changes `scale * B @ A` of linear layers by name: A [rank, in], B [out, rank], float32."""

    pairs: Mapping[str, tuple[Tensor, Tensor]]
    rank: int
    alpha: float
    targets: tuple[str, ...]
    base: str | None = None

    def join(self, later: Adapter) -> Adapter:
        """Return the sum of both as one adapter of scale 1, whose last rows are those of `later`."""
        pairs = {}
        for name in {**self.pairs, **later.pairs}:
            down, up = later.pairs.get(name) or self.pairs[name]
            parts = [
                (own[0], own[1] * (part.alpha / part.rank))
                if (own := part.pairs.get(name))
                else (down.new_zeros(part.rank, down.shape[1]), up.new_zeros(up.shape[0], part.rank))
                for part in (self, later)
            ]
            pairs[name] = (torch.cat([a for a, _ in parts]), torch.cat([b for _, b in parts], dim=1))
        rank = self.rank + later.rank
        targets = tuple(dict.fromkeys((*self.targets, *later.targets)))
        return Adapter(pairs=pairs, rank=rank, alpha=rank, targets=targets, base=self.base)

    def part(self, begin: int, end: int) -> Adapter:
        """Return the adapters with the rows `begin` to `end` of those that were joined to this one."""
        pairs = {name: (down[begin:end], up[:, begin:end]) for name, (down, up) in self.pairs.items()}
        rank = end - begin
        return Adapter(pairs=pairs, rank=rank, alpha=rank, targets=self.targets, base=self.base)


def trained_adapter(model: PolicyModel) -> Adapter:
    """Copy the adapter of a model. Collective under ZeRO-3."""
    causal_lm = model.causal_lm
    config = causal_lm.peft_config["default"]  # type: ignore[index]
    pairs = {}
    for name, layer in causal_lm.get_base_model().named_modules():  # type: ignore[operator]
        if "default" in getattr(layer, "lora_A", ()):
            matrices = layer.lora_A["default"].weight, layer.lora_B["default"].weight
            with gather(list(matrices)):
                down, up = (matrix.detach().float().cpu().clone() for matrix in matrices)
            pairs[name] = (down, up)
    return Adapter(pairs=pairs, rank=config.r, alpha=config.lora_alpha, targets=tuple(sorted(config.target_modules)))


def write_adapter(adapter: Adapter, folder: Path) -> None:
    """Write the folder that `peft.PeftModel.from_pretrained` and vLLM load."""
    from peft import LoraConfig
    from safetensors.torch import save_file

    LoraConfig(
        r=adapter.rank,
        lora_alpha=adapter.alpha,  # type: ignore[arg-type]
        target_modules=list(adapter.targets),
        task_type="CAUSAL_LM",
        inference_mode=True,
        base_model_name_or_path=adapter.base,
    ).save_pretrained(str(folder))
    tensors = {}
    for name, (down, up) in adapter.pairs.items():
        tensors[f"{_PREFIX}{name}.lora_A.weight"] = down.contiguous()
        tensors[f"{_PREFIX}{name}.lora_B.weight"] = up.contiguous()
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def adapter_files(adapter: Adapter) -> dict[str, bytes]:
    """Return the content of the files of `write_adapter` by name."""
    with tempfile.TemporaryDirectory(prefix="hamr-adapter-") as folder:
        write_adapter(adapter, Path(folder))
        return {name: (Path(folder) / name).read_bytes() for name in (SETTINGS, WEIGHTS)}


def read_adapter(folder: Path) -> Adapter | None:
    """Read the adapter of a folder that `write_adapter` wrote, or None if it changes nothing or is missing."""
    if not (folder / SETTINGS).is_file():
        return None
    from safetensors.torch import load_file

    settings = json.loads((folder / SETTINGS).read_text())
    tensors = load_file(folder / WEIGHTS)
    downs = {name: tensor for name, tensor in tensors.items() if name.endswith(".lora_A.weight")}
    adapter = Adapter(
        pairs={
            name.removeprefix(_PREFIX).removesuffix(".lora_A.weight"): (down, tensors[name.replace("lora_A", "lora_B")])
            for name, down in downs.items()
        },
        rank=settings["r"],
        alpha=settings["lora_alpha"],
        targets=tuple(settings["target_modules"]),
        base=settings["base_model_name_or_path"],
    )
    return adapter if any(up.any() for _, up in adapter.pairs.values()) else None
