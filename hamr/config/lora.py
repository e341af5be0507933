"""The section of an adapter: who trains one, and not all weights, names it under `lora`."""

from __future__ import annotations

from pydantic import PositiveFloat, PositiveInt

from hamr.config.section import Section


class LoraConfig(Section):
    rank: PositiveInt = 16
    alpha: PositiveFloat = 32.0
    target_modules: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
