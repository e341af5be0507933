"""Base class and common types of the sections in the schema."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
PositiveFloat = Annotated[float, Field(gt=0.0, le=1e9)]
NonNegative = Annotated[float, Field(ge=0.0, le=1e9)]
PositiveInt = Annotated[int, Field(gt=0, le=1_000_000_000)]
NonNegativeInt = Annotated[int, Field(ge=0, le=1_000_000_000)]
"""The upper bounds catch typing errors before they overflow a library's integers or fill the memory."""
MOST_STEPS = 10_000_000
Steps = Annotated[int, Field(ge=0, le=MOST_STEPS)]
MOST_SAMPLES = 1_000_000
SampleCount = Annotated[int, Field(ge=1, le=MOST_SAMPLES)]
"""Number of samples, sequences or requests that are held together."""
SmallInt = Annotated[int, Field(gt=0, le=10_000)]
"""Number of processes, replicas, threads or passes."""
Megabytes = Annotated[int, Field(gt=0, le=100_000_000)]
Tokens = Annotated[int, Field(ge=1, le=1 << 24)]
Seed = Annotated[int, Field(ge=0, le=(1 << 32) - 1)]
"""The range of NumPy's seeds, which is smaller than that of torch."""
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
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        protected_namespaces=(),
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    def clash(self, first: str, second: str, why: str) -> ValueError:
        """Return the error for the values of two keys that contradict each other."""
        return ValueError(f"{first}={self.yaml_value(first)} but {second}={self.yaml_value(second)}{why}")

    def yaml_value(self, key: str) -> str:
        """Return the value of a dotted key as YAML would have it, texts in quotes."""
        value: Any = self
        while key:
            if isinstance(value, dict):  # the name of a pool may have dots
                name = next(name for name in value if f"{key}.".startswith(f"{name}."))
                value = value[name]
            else:
                name = key.partition(".")[0]
                value = getattr(value, name)
            key = key[len(name) + 1 :]
        if value is None or isinstance(value, bool):
            return {None: "null", True: "true", False: "false"}[value]
        if isinstance(value, float):
            return f"{value:g}"
        return repr(list(value)) if isinstance(value, tuple) else repr(value)
