"""Section of a LoRA adapter, under the key `lora`, for training an adapter instead of all weights."""

from __future__ import annotations

from pydantic import model_validator

from hamr.config.section import PositiveFloat, Section, SmallInt


class LoraConfig(Section):
    rank: SmallInt = 16
    """Rank of the adapter matrices."""
    alpha: PositiveFloat = 32.0
    """Scale of the adapter: its output is multiplied by alpha / rank."""
    target_modules: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    """Names of the linear layers that get an adapter. `lm_head` cannot have one."""

    @model_validator(mode="after")
    def _targets_are_trained(self) -> LoraConfig:
        for name in self.target_modules:
            if name.rpartition(".")[2] in ("lm_head", "embed_tokens"):
                raise ValueError(
                    f"target_modules has {name!r}, whose adapter would not be trained or exported; remove it"
                )
        return self
