"""Base class and common types of the sections in the schema."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
NonNegative = Annotated[float, Field(ge=0.0)]
RewardName = Annotated[str, Field(pattern="^[a-z][a-z0-9_]*$")]
"""Name of a user's reward: that of its component in records and metrics."""
AbsolutePath = Annotated[str, AfterValidator(lambda path: str(Path(path).expanduser().resolve()))]
"""Absolute, so that a run resumed from another folder reads the same files."""


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False)
