"""Model sizes that determine memory and speed: from a folder's `config.json`, or published values."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hamr.algorithms.packing import padding_reason
from hamr.config.schema import Config, TrainerConfig
from hamr.errors import BadInput


@dataclass(frozen=True, kw_only=True)
class ModelSize:
    """Size of a dense decoder. `parameters` counts tied embeddings once."""

    parameters: float
    layers: int
    hidden: int
    kv_heads: int
    head_dim: int

    @property
    def kv_bytes_per_token(self) -> int:
        """Return the bytes of keys and values of all layers in 16 bits: 2 x layers x kv_heads x head_dim x 2.

        >>> KNOWN["qwen3-32b"].kv_bytes_per_token
        262144
        """
        return 2 * self.layers * self.kv_heads * self.head_dim * 2


def _size(billions: float, layers: int, hidden: int, kv_heads: int, head_dim: int) -> ModelSize:
    return ModelSize(
        parameters=billions * 1e9, layers=layers, hidden=hidden, kv_heads=kv_heads, head_dim=head_dim
    )  # fmt: skip


KNOWN: dict[str, ModelSize] = {
    "tiny": _size(0.001, 3, 128, 2, 32),
    "smollm2-135m": _size(0.1345, 30, 576, 3, 64),
    "qwen3-0.6b": _size(0.596, 28, 1024, 8, 128),
    "qwen3-1.7b": _size(1.72, 28, 2048, 8, 128),
    "qwen3-4b": _size(4.02, 36, 2560, 8, 128),
    "qwen3-8b": _size(8.19, 36, 4096, 8, 128),
    "qwen3-14b": _size(14.77, 40, 5120, 8, 128),
    "qwen3-32b": _size(32.76, 64, 5120, 8, 128),
    "qwen2.5-7b": _size(7.62, 28, 3584, 4, 128),
    "qwen2.5-32b": _size(32.76, 64, 5120, 8, 128),
    "qwen2.5-72b": _size(72.71, 80, 8192, 8, 128),
}
"""Keyed by the last part of a model's name, in lower case, without a suffix such as -instruct."""


def model_size(key: str, name: str) -> ModelSize:
    """Return the size of the model that the setting `key` names: a folder with `config.json`, or a name in KNOWN.

    Raises BadInput.
    """
    folder = Path(name).expanduser()
    if (folder / "config.json").is_file():
        try:
            return from_config(json.loads((folder / "config.json").read_text(encoding="utf-8")))
        except (KeyError, TypeError, ValueError) as error:
            remedy = (
                f"its config.json is not that of a dense decoder ({type(error).__name__}: {error}); give another model"
            )
            raise BadInput(key, name, remedy) from None
    bare = name.rstrip("/").rpartition("/")[2].lower()
    # The longest match first: qwen3-4b must not match a longer name.
    for known in sorted(KNOWN, key=len, reverse=True):
        if bare == known or bare.startswith(f"{known}-"):
            return KNOWN[known]
    raise BadInput(key, name, f"its size is not known; name a folder with its config.json, or one of {sorted(KNOWN)}")


def trainer_in_use(config: Config) -> TrainerConfig:
    """Return the trainer's settings, with padded rows where the model in a folder supports no other layout."""
    try:
        keys = json.loads((Path(config.model.path).expanduser() / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return config.trainer  # `model_size` refuses a broken file; the models in KNOWN support every layout
    padded = isinstance(keys, dict) and padding_reason(SimpleNamespace(**keys))
    return config.trainer.model_copy(update={"attention": "padded"}) if padded else config.trainer


def from_config(config: dict[str, Any]) -> ModelSize:
    """Return the size from a Hugging Face `config.json` of a decoder with a gated MLP (Llama, Qwen, Mistral and
    similar).

    Parameters: embeddings (twice if not tied), and per layer the projections of queries and output (hidden x heads x
    head_dim each), of keys and values (hidden x kv_heads x head_dim each) and three of the MLP (hidden x intermediate
    each). Norms and biases are ignored, a share below 0.001.
    """
    if (config.get("num_experts") or config.get("num_local_experts") or config.get("n_routed_experts") or 0) > 1:
        raise ValueError("it is a mixture of experts")
    hidden, layers, heads = config["hidden_size"], config["num_hidden_layers"], config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or hidden // heads
    layer = 2 * hidden * heads * head_dim + 2 * hidden * kv_heads * head_dim + 3 * hidden * config["intermediate_size"]
    embeddings = config["vocab_size"] * hidden * (1 if config.get("tie_word_embeddings") else 2)
    return ModelSize(
        parameters=float(layers * layer + embeddings),
        layers=layers,
        hidden=hidden,
        kv_heads=kv_heads,
        head_dim=head_dim,
    )
