"""The section of `sft`: what `hamr sft` trains on. How it steps stands in `trainer`, how long a prompt and its target
may be in `model.max_context`, where it writes and how often it validates in `experiment`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveInt, model_validator

from hamr.config.section import AbsolutePath, NonNegative, Section
from hamr.types import Aggregation, SftKind, SftPart


class SftSetConfig(Section):
    """One set of a mix."""

    path: AbsolutePath | None = None
    """JSONL of SFT items (`hamr.data.sft_items`); null: the references of the samples of `data`, as decisions."""
    weight: NonNegative = 1.0
    """How often an epoch goes through the set: 2 takes every item twice, 0.5 half of them, others the next time."""
    name: str | None = None
    """What metrics call it; null: the file's name without its ending."""
    validation: AbsolutePath | None = None
    """JSONL of held-out items; null splits `sft.held_out_frac` off. With `path: null` it is the validation split of
    `data`."""

    @property
    def label(self) -> str:
        """What metrics and tables call the set."""
        given = self.name or (Path(self.path).stem if self.path else "references")
        return re.sub(r"[^A-Za-z0-9_.-]+", "-", given)

    @model_validator(mode="after")
    def _one_validation(self) -> SftSetConfig:
        if self.validation and not self.path:
            raise ValueError(
                "validation belongs to a set with a path; the other one takes the validation split of `data`"
            )
        return self


class SftConfig(Section):
    sets: tuple[SftSetConfig, ...] = ()
    kinds: tuple[SftKind, ...] = ()
    """Items of other kinds are left out and counted; empty takes all. It is what tells the arms of a comparison apart
    where one file holds the items of all of them."""
    without_loss: tuple[SftPart, ...] = ()
    """Parts of the target that carry no loss. Empty is what the formulas say: everything behind the prompt counts, the
    environment's predicted turn too."""
    epochs: PositiveInt = 1
    steps: PositiveInt | None = None
    """Optimiser steps in all; null: as many as the epochs give."""
    batch_size: PositiveInt = 256
    """Items of one optimiser step, over all ranks."""
    loss_aggregation: Aggregation = "token_mean"
    long_item: Literal["drop", "refuse"] = "drop"
    """What to do with an item that is longer than `model.max_context`: drop and count, or refuse to start."""
    held_out_frac: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.05
    """Share of the dialogues whose items are kept for validation, the same dialogues in every set; 0 keeps none."""
    max_validation: PositiveInt = 200
    """At most so many items of a set per validation."""

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
