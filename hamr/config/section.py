"""Base class and common types of the sections in the schema."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
NonNegative = Annotated[float, Field(ge=0.0)]
Steps = Annotated[int, Field(ge=0, le=10_000_000)]
Samples = Annotated[int, Field(ge=1, le=1_000_000)]
"""The upper bounds catch slips of the keyboard before they fill the memory."""
RewardName = Annotated[str, Field(pattern="^[a-z][a-z0-9_]*$")]
"""Name of a user's reward: that of its component in records and metrics."""
AbsolutePath = Annotated[str, AfterValidator(lambda path: str(Path(path).expanduser().resolve()))]
"""Absolute, so that a run resumed from another folder reads the same files."""


def _check_folder_name(name: str) -> str:
    size = len(name.encode())
    if not name.strip() or name.startswith(".") or "/" in name or "\0" in name or size > 200:
        raise ValueError(f"{name[:40]!r} becomes part of a folder's name; give 1 to 200 bytes, no slash, no dot first")
    return name


FolderName = Annotated[str, AfterValidator(_check_folder_name)]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False)
