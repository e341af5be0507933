"""Section `sft`: training data of `hamr sft`.

Related settings are in other sections: the optimiser in `trainer`, the length of a prompt with its target in
`model.max_context`, the output folder and the validation interval in `experiment`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from hamr.config.section import AbsolutePath, NonNegative, PositiveInt, SampleCount, Section, SmallInt
from hamr.types import Aggregation, SftKind


class SftSetConfig(Section):
    """One set of a mix."""

    path: AbsolutePath | None = None
    """JSONL of SFT items (`hamr.data.sft_items`). null: the references of the samples of `data`, as decisions. Items
    longer than `model.max_context` are dropped and counted."""
    weight: NonNegative = 1.0
    """Number of passes through the set per epoch: 2 uses every item twice, 0.5 half of them, and the others in the next
    epoch."""
    name: str | None = None
    """Name of the set in metrics. null: the file name without its extension."""
    validation: AbsolutePath | None = None
    """JSONL of held-out items. null splits `sft.held_out_frac` off. With `path: null` it is the validation split of
    `data`."""

    @property
    def label(self) -> str:
        """Name of the set in metrics and tables."""
        given = self.name or (Path(self.path).stem if self.path else "references")
        return re.sub(r"[^A-Za-z0-9_.-]+", "-", given)

    @model_validator(mode="after")
    def _one_validation(self) -> SftSetConfig:
        if self.validation and not self.path:
            raise ValueError(
                "validation belongs to a set with a path; without a path, the set uses the validation split of `data`"
            )
        return self


class SftConfig(Section):
    sets: tuple[SftSetConfig, ...] = ()
    """Sets of the mix. Empty: the references of the samples of `data`."""
    kinds: tuple[SftKind, ...] = ()
    """Kinds of items to use; empty uses all. Others are excluded and counted. It selects the arm of a comparison if one
    file contains the items of all arms."""
    epochs: SmallInt = 1
    """Number of passes over the mix."""
    steps: PositiveInt | None = None
    """Total number of optimiser steps. null: as many as the epochs give."""
    batch_size: SampleCount = 256
    """Items of one optimiser step, over all ranks."""
    loss_aggregation: Aggregation = "token_mean"
    """Mean of the loss: over all tokens of the batch (`token_mean`), or first over the tokens of each item
    (`sequence_mean`)."""
    held_out_frac: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.05
    """Share of the dialogues whose items are held out for validation, the same dialogues in every set. 0: none."""
    max_validation: PositiveInt = 200
    """Maximum number of items of a set per validation."""

    @model_validator(mode="after")
    def _mix(self) -> SftConfig:
        names = [s.label for s in self.sets]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(
                f"two sets are called {twice!r}; give them names: sft.sets=[{{path: ..., name: ...}}, ...]"
            )
        if self.sets and not any(s.weight for s in self.sets):
            weights = ", ".join(f"{s.label} {s.weight:g}" for s in self.sets)
            raise ValueError(f"the weights of the mix sum to zero ({weights}); give at least one set a weight above 0")
        return self
